// The sampler: headrace.sampling.recipe is its meaning, stage by stage; this is the same over slices and threads.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "rows.h"

namespace headrace {

// The vocabulary is drawn in slices of this many ids; the best of the slices does not depend on who drew which.
constexpr int64_t SAMPLE_SLICE = 8192;
constexpr int64_t SAMPLE_TILE = 1024;

struct Candidate {
    float value = 0.0f;
    int32_t id = -1;  // -1: none yet
    // Keeps the larger value; on a tie the one that came first, so offer ids in ascending order.
    void offer(float other_value, int32_t other_id) {
        if (id < 0 || other_value > value) {
            value = other_value;
            id = other_id;
        }
    }
};

// One thread's memory for sampling; sized once for the vocabulary.
struct SamplerScratch {
    void reserve(int64_t vocab);
    int64_t num_bytes() const { return static_cast<int64_t>(keys.size() * 24 + (sample.size() + 3 * tile.size()) * 4); }

    std::vector<float> scaled;      // [vocab]
    std::vector<uint64_t> keys;     // [vocab]
    std::vector<uint64_t> moved;    // [vocab]
    std::vector<float> candidates;  // [vocab]
    std::vector<float> sample;
    std::vector<float> tile, noise;   // [SAMPLE_TILE]
    std::vector<int32_t> tile_ids;    // [SAMPLE_TILE]
};

class Sampler {
  public:
    Sampler(const Kernels& kernels, int64_t vocab) : kernels_(kernels), vocab_(vocab) {}

    // top_k or top_p: the candidates must be found before the draw, so the row is one unit of work.
    bool needs_candidates(const RowParams& p) const;
    int64_t num_slices(const RowParams& p) const {
        return needs_candidates(p) ? 1 : (vocab_ + SAMPLE_SLICE - 1) / SAMPLE_SLICE;
    }

    // The winner among the ids of one slice. `position` is the one the sampled token will take.
    Candidate draw_slice(const float* logits, const RowParams& p, int64_t slice, uint32_t position, SamplerScratch& s) const;
    Candidate draw_candidates(const float* logits, const RowParams& p, uint32_t position, SamplerScratch& s) const;

    // Of the raw logits: logprob and rank of `id`, and the num_top likeliest (ids padded with -1 by the caller).
    void report(const float* logits, int32_t id, int64_t num_top, float* logprob, int32_t* rank, int32_t* top_ids,
                float* top_logprobs, SamplerScratch& s) const;

  private:
    void scale(const float* logits, const RowParams& p, int64_t begin, int64_t end, float* out) const;
    // The `want` largest of x[vocab] into s.keys, in order of (value descending, id ascending).
    int64_t select(const float* x, int64_t want, SamplerScratch& s) const;
    int64_t gather(const float* x, float threshold, uint64_t* keys) const;

    const Kernels& kernels_;
    const int64_t vocab_;
};

}  // namespace headrace
