// What each op of a plan does in a step: how its work is cut into units, which kernel computes them.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "gates.h"
#include "kernels.h"
#include "rows.h"
#include "sampler.h"
#include "step_header.h"
#include "threads.h"

namespace headrace {

// Floats or bytes at a cache line's start, sized before the first step.
class Buffer {
  public:
    void reserve(int64_t num_bytes) { bytes_.resize(std::max(bytes_.size(), static_cast<size_t>(num_bytes) + 64)); }
    int64_t num_bytes() const { return static_cast<int64_t>(bytes_.size()); }
    void* data() {
        const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
        return bytes_.data() + (64 - address % 64) % 64;
    }

  private:
    std::vector<uint8_t> bytes_;
};

struct ThreadScratch {
    Buffer activations;  // prepared rows, when each thread prepares its own
    Buffer attention;
    std::vector<float*> out_rows;
    SamplerScratch sampler;
};

struct alignas(64) SplitCounter {
    std::atomic<int64_t> count{0};
};

// All that the calls of a step read and write.
struct StepContext {
    const Kernels* kernels = nullptr;
    Rows* rows = nullptr;
    Outputs* outputs = nullptr;
    StepTokens* step = nullptr;
    Gates* gates = nullptr;
    std::vector<KvGroup> groups;
    Buffer activations;                  // prepared rows shared by all threads
    Buffer partials;                     // of attention over parts of the history
    int64_t max_partial_floats = 0;
    std::vector<SplitCounter> splits_done;  // per tile and KV head; zero between calls
    std::vector<Candidate> slice_best;   // [max_logits_rows, slices]
    std::vector<int64_t> sample_units;   // of the sampler's first phase: row * slices + slice
    std::vector<ThreadScratch> threads;
    StepHeader header;
    std::chrono::nanoseconds gate_timeout{std::chrono::seconds(60)};
    int64_t timed_out_gate = -1;
};

// Up to so many values it is cheaper that every thread prepares all rows than to share them and wait.
constexpr int64_t OWN_PREPARE_VALUES = 8192;
// With fewer units than this per thread, attention also splits over the history.
constexpr int64_t ATTENTION_UNITS_PER_THREAD = 4;
// Products that take about a microsecond of one row's matmul.
constexpr int64_t LINEAR_CLAIM_MACS = 20'000;

inline int64_t activation_stride(const Kernels& kernels, const Call& c) {
    return (kernels.act_bytes(static_cast<Format>(c.dim[2]), c.dim[1]) + 63) / 64 * 64;
}

// Throws std::invalid_argument when the call's numbers make no sense. `index` is for the message.
void check_call(const Call& call, int64_t index);
// The same against the KV memory that the call reaches into.
void check_call_memory(const Call& call, int64_t index, const std::vector<KvGroup>& groups);
// Grows the context's scratch to what the call may need for `sizes`.
void reserve_scratch(const Call& call, const RowSizes& sizes, StepContext& context);

// A call is up to two phases of units (threads.h), each complete before the next begins.
constexpr int NUM_PHASES = 2;
// What a phase is in this step. May do what only the opener of a phase may: gates publish and wait here.
Phase phase_of(StepContext& context, const Call& call, int phase);
void run_units(StepContext& context, const Call& call, int phase, const Share& share);

// attention_op.cpp
Phase attention_phase(const StepContext& context, const Call& call, int phase);
void run_attention(StepContext& context, const Call& call, const Share& share);

// sample_op.cpp
Phase sample_phase(StepContext& context, const Call& call, int phase);
void run_sample(StepContext& context, const Call& call, int phase, const Share& share);

inline float* floats(uint64_t address) { return reinterpret_cast<float*>(address); }
inline const float* const_floats(uint64_t address) { return reinterpret_cast<const float*>(address); }

}  // namespace headrace
