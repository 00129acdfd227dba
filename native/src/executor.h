// The executor: owns the threads, the row state and a plan, and runs one step per call.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops.h"

namespace headrace {

class Executor : private Work {
  public:
    // Throws std::invalid_argument for an ISA this CPU lacks or a thread count out of [1, 1024].
    Executor(const std::string& isa, int num_threads);
    ~Executor() override;

    const char* isa() const { return kernels_.isa; }
    int num_threads() const { return num_threads_; }
    int64_t num_steps() const { return num_steps_.load(std::memory_order_relaxed); }

    // `segment_starts`: the first call of each segment; a segment ends where the next one starts.
    void load_plan(const uint8_t* calls, int64_t num_bytes, const std::vector<int64_t>& segment_starts);
    // Allocates the rows and forgets what was in them.
    void set_rows(const RowSizes& sizes);
    void set_kv_group(int64_t index, const KvGroup& group);

    void step(const int32_t* header, int64_t num_words);
    // Calls [first, first + count). Call 0 begins the step and applies the header's writes; later slices continue it.
    void run_calls(const int32_t* header, int64_t num_words, int64_t first, int64_t count);
    void run_segment(const int32_t* header, int64_t num_words, int64_t segment);

    std::shared_ptr<Rows> rows() const;
    std::shared_ptr<Outputs> outputs() const;
    std::shared_ptr<StepTokens> step_tokens() const;

    std::pair<int64_t, int64_t> progress() const { return gates_.progress(); }
    void raise_gate(int64_t gate, int64_t value);
    void set_gate_timeout(double seconds);

    // Row state, outputs and scratch, for the memory table. Sizes the scratch if no step has done so yet.
    int64_t memory_bytes();

    // Starts from zero, or stops, to keep the time of each call; with `trace` every claimed share of it too.
    void set_profile(bool on, bool trace = false);
    const std::vector<uint64_t>& call_times_ns() const { return call_times_ns_; }
    // Per call: time in units, over all threads, and phases that were handed out to them.
    std::vector<uint64_t> call_busy_ns() const;
    const std::vector<int64_t>& call_phases() const { return call_phases_; }
    // By thread in the order of time; nanoseconds of the steady clock.
    struct TraceEvent {
        int64_t thread, call, phase, start_ns, end_ns;
    };
    std::vector<TraceEvent> trace() const;
    int64_t num_calls() const { return static_cast<int64_t>(calls_.size()); }
    int64_t num_segments() const { return static_cast<int64_t>(segment_bounds_.size()) - 1; }

    void close();

  private:
    class Claim;  // holds the executor for one operation; a second caller gets an error
    void require_rows() const;
    void prepare();
    void begin(const int32_t* header, int64_t num_words);
    void check_continues(const int32_t* header, int64_t num_words);
    void run(int64_t first, int64_t count);
    bool next(int thread, Phase& phase) override;
    void run(const Share& share) override;
    void run_timed(const Share& share);
    void book_call();

    const Kernels& kernels_;
    const int num_threads_;
    std::unique_ptr<ThreadPool> pool_;
    std::atomic<bool> is_busy_{false};
    std::atomic<int64_t> num_steps_{0};

    std::vector<Call> calls_;
    std::vector<int64_t> segment_bounds_{0, 0};
    HeaderLimits limits_;
    std::shared_ptr<Rows> rows_;
    std::shared_ptr<Outputs> outputs_;
    std::shared_ptr<StepTokens> step_tokens_;
    std::unique_ptr<HeaderReader> reader_;
    std::vector<int32_t> header_;  // own copy: the caller's array may change once the GIL is released
    Gates gates_;
    StepContext context_;
    bool is_prepared_ = false, has_step_ = false, is_profiling_ = false;
    // The call and phase being run, of calls up to run_end_; between phases the opener's, else read only.
    int64_t call_ = 0, run_end_ = 0;
    int phase_ = 0;
    std::vector<uint64_t> call_times_ns_;
    std::chrono::steady_clock::time_point call_start_;
    std::vector<int64_t> call_phases_;
    struct alignas(64) ThreadProfile {
        std::vector<uint64_t> busy_ns;  // per call
        std::vector<TraceEvent> events;
    };
    std::vector<ThreadProfile> thread_profiles_;
    bool is_tracing_ = false;
};

// A gate's counter did not reach its target in time; the step was left there.
struct GateTimeout : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace headrace
