#include "sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace headrace {
namespace {

// Below this the division loses the order of the logits; it is greedy in every respect that matters.
constexpr float kGreedyTemperature = 1e-5f;
constexpr int kBucketBits = 12;
constexpr int64_t kFirstNucleus = 256;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

bool is_greedy(const RowParams& p) { return p.temperature < kGreedyTemperature; }

// A number that orders like (value, then lower id first). NaN orders as -inf, -0 as +0.
uint64_t key_of(float value, int64_t id) {
    const uint32_t bits = std::bit_cast<uint32_t>(std::isnan(value) ? kLowest : value + 0.0f);
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(id);
}

int32_t id_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

float value_of(uint64_t key) {
    const auto ordered = static_cast<uint32_t>(key >> 32);
    return std::bit_cast<float>(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// exp for x <= 0 in plain double arithmetic: the cut of top_p is the same on every machine.
double exp_of(double x) {
    if (!(x > -700.0)) return 0.0;
    constexpr double kLog2e = 1.4426950408889634, kLn2High = 0x1.62e42fefa0000p-1, kLn2Low = 0x1.cf79abc9e3b39p-40;
    const double n = std::nearbyint(x * kLog2e);
    const double r = (x - n * kLn2High) - n * kLn2Low;
    double sum = 1.0;
    for (int i = 13; i > 0; --i) sum = 1.0 + r * sum / i;
    return std::ldexp(sum, static_cast<int>(n));
}

}  // namespace

void SamplerScratch::reserve(int64_t vocab) {
    const auto n = std::max(scaled.size(), static_cast<size_t>(vocab));
    scaled.resize(n);
    keys.resize(n);
    candidates.resize(n);
    histogram.resize(size_t{1} << kBucketBits);
    tile.resize(SAMPLE_TILE);
    noise.resize(SAMPLE_TILE);
    tile_ids.resize(SAMPLE_TILE);
}

bool Sampler::needs_candidates(const RowParams& p) const {
    return !is_greedy(p) && ((p.top_k > 0 && p.top_k < vocab_) || p.top_p < 1.0f);
}

void Sampler::scale(const float* logits, const RowParams& p, int64_t begin, int64_t end, float* out) const {
    for (int64_t i = begin; i < end; ++i) out[i - begin] = std::isnan(logits[i]) ? kLowest : logits[i];
    auto bias = std::lower_bound(p.bias.begin(), p.bias.end(), begin, [](const Bias& b, int64_t id) { return b.id < id; });
    for (; bias != p.bias.end() && bias->id < end; ++bias) out[bias->id - begin] += bias->value;
    if (!is_greedy(p) && p.temperature != 1.0f)
        for (int64_t i = 0; i < end - begin; ++i) out[i] /= p.temperature;
}

Candidate Sampler::draw_slice(const float* logits, const RowParams& p, int64_t slice, uint32_t position,
                              SamplerScratch& s) const {
    const int64_t slice_begin = slice * SAMPLE_SLICE, slice_end = std::min(slice_begin + SAMPLE_SLICE, vocab_);
    const bool greedy = is_greedy(p);
    Candidate best;
    if (greedy && p.bias.empty()) {
        const int64_t i = slice_begin + kernels_.argmax(logits + slice_begin, slice_end - slice_begin);
        best.offer(std::isnan(logits[i]) ? kLowest : logits[i], static_cast<int32_t>(i));
        return best;
    }
    for (int64_t begin = slice_begin; begin < slice_end; begin += SAMPLE_TILE) {
        const int64_t end = std::min(begin + SAMPLE_TILE, slice_end), n = end - begin;
        scale(logits, p, begin, end, s.tile.data());
        if (!greedy) {
            std::iota(s.tile_ids.begin(), s.tile_ids.begin() + n, static_cast<int32_t>(begin));
            kernels_.gumbel(p.seed, p.sample_index, position, s.tile_ids.data(), n, s.noise.data());
            kernels_.add(s.tile.data(), s.noise.data(), s.tile.data(), n);
        }
        const int64_t i = kernels_.argmax(s.tile.data(), n);
        best.offer(s.tile[static_cast<size_t>(i)], static_cast<int32_t>(begin + i));
    }
    return best;
}

Candidate Sampler::draw_candidates(const float* logits, const RowParams& p, uint32_t position, SamplerScratch& s) const {
    float* x = s.scaled.data();
    scale(logits, p, 0, vocab_, x);
    const bool has_top_k = p.top_k > 0 && p.top_k < vocab_;
    const int64_t num_kept = has_top_k ? p.top_k : vocab_;
    int64_t num_sorted = select(x, has_top_k ? p.top_k : std::min(kFirstNucleus, vocab_), true, s);
    int64_t num_candidates = num_sorted;
    if (p.top_p < 1.0f) {
        float log_sum;
        if (has_top_k) {
            for (int64_t i = 0; i < num_sorted; ++i) s.candidates[static_cast<size_t>(i)] = value_of(s.keys[static_cast<size_t>(i)]);
            log_sum = kernels_.log_sum_exp(s.candidates.data(), num_sorted);
        } else {
            log_sum = kernels_.log_sum_exp(x, vocab_);
        }
        double reached = 0.0;
        num_candidates = 0;
        // A token stays while those before it have not reached top_p; the first always does.
        while (num_candidates < num_kept && (num_candidates == 0 || reached < static_cast<double>(p.top_p))) {
            if (num_candidates == num_sorted) num_sorted = select(x, std::min(num_sorted * 8, vocab_), false, s);
            reached += exp_of(double{value_of(s.keys[static_cast<size_t>(num_candidates++)])} - double{log_sum});
        }
    }
    Candidate best;
    for (int64_t begin = 0; begin < num_candidates; begin += SAMPLE_TILE) {
        const int64_t n = std::min(SAMPLE_TILE, num_candidates - begin);
        const uint64_t* keys = s.keys.data() + begin;
        for (int64_t i = 0; i < n; ++i) s.tile_ids[static_cast<size_t>(i)] = id_of(keys[i]);
        kernels_.gumbel(p.seed, p.sample_index, position, s.tile_ids.data(), n, s.noise.data());
        for (int64_t i = 0; i < n; ++i) {
            const Candidate c{value_of(keys[i]) + s.noise[static_cast<size_t>(i)], s.tile_ids[static_cast<size_t>(i)]};
            if (best.id < 0 || c.value > best.value || (c.value == best.value && c.id < best.id)) best = c;
        }
    }
    return best;
}

int64_t Sampler::select(const float* x, int64_t want, bool new_row, SamplerScratch& s) const {
    constexpr int kShift = 64 - kBucketBits;
    if (new_row) {
        std::fill(s.histogram.begin(), s.histogram.end(), 0u);
        for (int64_t i = 0; i < vocab_; ++i) ++s.histogram[key_of(x[i], 0) >> kShift];
    }
    size_t bucket = s.histogram.size();
    for (int64_t above = 0; bucket > 0 && above < want;) above += s.histogram[--bucket];
    const uint64_t threshold = uint64_t{bucket} << kShift;
    uint64_t* end = s.keys.data();
    for (int64_t i = 0; i < vocab_; ++i) {
        const uint64_t key = key_of(x[i], i);
        *end = key;  // keys has room for the whole vocabulary: at most i + 1 are kept so far
        end += key >= threshold;
    }
    uint64_t* wanted = s.keys.data() + std::min<int64_t>(want, end - s.keys.data());
    if (wanted != end) std::nth_element(s.keys.data(), wanted, end, std::greater<>());
    std::sort(s.keys.data(), wanted, std::greater<>());
    return wanted - s.keys.data();
}

void Sampler::report(const float* logits, int32_t id, int64_t num_top, float* logprob, int32_t* rank, int32_t* top_ids,
                     float* top_logprobs, SamplerScratch& s) const {
    const float log_sum = kernels_.log_sum_exp(logits, vocab_), own = logits[id];
    *logprob = own - log_sum;
    int32_t num_before = 0;
    for (int64_t i = 0; i < vocab_; ++i) num_before += logits[i] > own;
    for (int64_t i = 0; i < id; ++i) num_before += logits[i] == own;
    *rank = num_before + 1;
    if (num_top == 0) return;
    const int64_t found = select(logits, num_top, true, s);
    for (int64_t i = 0; i < found; ++i) {
        const uint64_t key = s.keys[static_cast<size_t>(i)];
        top_ids[i] = id_of(key);
        top_logprobs[i] = value_of(key) - log_sum;
    }
}

}  // namespace headrace
