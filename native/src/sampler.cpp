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
constexpr int64_t kSampleSize = 1024;
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
    double sum = 1.0 / 39916800;  // Taylor to the 11th power: 1e-14 of the value for |r| <= ln 2 / 2
    for (const double c : {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
        sum = sum * r + c;
    return sum * std::bit_cast<double>(static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52);
}

// The probability of the tokens taken so far. A token stays while those before it have not reached top_p.
struct Nucleus {
    float top_p, log_sum;
    double reached;

    bool is_full() const { return !(reached < double{top_p}); }
    double probability(uint64_t key) const { return exp_of(double{value_of(key)} - double{log_sum}); }
    // How many of keys in their final order stay.
    int64_t cut_sorted(const uint64_t* keys, int64_t n) {
        int64_t kept = 0;
        for (; kept < n && !is_full(); ++kept) reached += probability(keys[kept]);
        return kept;
    }
};

constexpr int64_t kNumBuckets = 512, kSortedBucket = 128;
constexpr float kBucketRange = 64.0f;  // logits so far below the best weigh nothing: one bucket

// Moves all keys that stay to the front, in no particular order, and returns how many. Keys come with ids ascending. Buckets of
// equal width, likeliest first, are taken whole until one would pass top_p; that one is cut the same way, a small one by sorting.
int64_t cut_wide(Nucleus nucleus, uint64_t* keys, uint64_t* moved, int64_t n) {
    for (int64_t begin = 0, end = n;;) {
        const auto [low_key, high_key] = std::minmax_element(keys + begin, keys + end);
        const float high = value_of(*high_key), low = std::max(value_of(*low_key), high - kBucketRange);
        const float per_value = static_cast<float>(kNumBuckets - 1) / (high - low);
        if (end - begin <= kSortedBucket || !std::isfinite(per_value)) {
            if (!std::is_sorted(keys + begin, keys + end, std::greater<>())) std::sort(keys + begin, keys + end, std::greater<>());
            return begin + std::max<int64_t>(nucleus.cut_sorted(keys + begin, end - begin), begin == 0);
        }
        const auto bucket_of = [&](uint64_t key) {
            return static_cast<size_t>(std::min((high - value_of(key)) * per_value, static_cast<float>(kNumBuckets - 1)));
        };
        int64_t starts[kNumBuckets + 1] = {};
        for (int64_t i = begin; i < end; ++i) ++starts[bucket_of(keys[i]) + 1];
        starts[0] = begin;
        for (int64_t b = 0; b < kNumBuckets; ++b) starts[b + 1] += starts[b];
        int64_t next[kNumBuckets];
        std::copy_n(starts, kNumBuckets, next);
        for (int64_t i = begin; i < end; ++i) moved[next[bucket_of(keys[i])]++] = keys[i];
        std::copy(moved + begin, moved + end, keys + begin);
        int64_t b = 0;
        for (; b < kNumBuckets; ++b) {
            Nucleus with = nucleus;
            for (int64_t i = starts[b]; i < starts[b + 1]; ++i) with.reached += with.probability(keys[i]);
            if (with.is_full()) break;
            nucleus = with;
        }
        if (b == kNumBuckets) return end;
        begin = starts[b];
        end = starts[b + 1];
    }
}

}  // namespace

void SamplerScratch::reserve(int64_t vocab) {
    const auto n = std::max(scaled.size(), static_cast<size_t>(vocab));
    scaled.resize(n);
    keys.resize(n);
    moved.resize(n);
    candidates.resize(n);
    sample.resize(kSampleSize);
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
    int64_t num_candidates = select(x, has_top_k ? p.top_k : std::min(kFirstNucleus, vocab_), s);
    if (p.top_p < 1.0f) {
        float log_sum;
        if (has_top_k) {
            for (int64_t i = 0; i < num_candidates; ++i) s.candidates[static_cast<size_t>(i)] = value_of(s.keys[static_cast<size_t>(i)]);
            log_sum = kernels_.log_sum_exp(s.candidates.data(), num_candidates);
        } else {
            log_sum = kernels_.log_sum_exp(x, vocab_);
        }
        Nucleus nucleus{p.top_p, log_sum, 0.0};
        const int64_t kept = nucleus.cut_sorted(s.keys.data(), num_candidates);
        if (nucleus.is_full() || has_top_k || num_candidates == vocab_) {
            num_candidates = std::max<int64_t>(kept, 1);
        } else {
            for (int64_t i = 0; i < vocab_; ++i) s.keys[static_cast<size_t>(i)] = key_of(x[i], i);
            num_candidates = cut_wide({p.top_p, log_sum, 0.0}, s.keys.data(), s.moved.data(), vocab_);
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

int64_t Sampler::select(const float* x, int64_t want, SamplerScratch& s) const {
    // A sorted sample of the row tells where about the want-th value lies; everything at or above is gathered. A guess too
    // high is lowered, so that the sample decides how much work there is and never the result.
    const int64_t step = (vocab_ + kSampleSize - 1) / kSampleSize, sample_size = (vocab_ + step - 1) / step;
    for (int64_t i = 0; i < sample_size; ++i) s.sample[static_cast<size_t>(i)] = std::isnan(x[i * step]) ? kLowest : x[i * step];
    int64_t rank = want / step + want / step / 2 + 8, found = 0;
    for (;; rank *= 4) {
        float threshold = kLowest;
        if (rank < sample_size) {
            float* guess = s.sample.data() + rank;
            std::nth_element(s.sample.data(), guess, s.sample.data() + sample_size, std::greater<>());
            threshold = *guess;
        }
        found = gather(x, threshold, s.keys.data());
        if (found >= want || rank >= sample_size) break;
    }
    uint64_t *end = s.keys.data() + found, *wanted = s.keys.data() + std::min(want, found);
    if (wanted != end) std::nth_element(s.keys.data(), wanted, end, std::greater<>());
    std::sort(s.keys.data(), wanted, std::greater<>());
    return wanted - s.keys.data();
}

// Keys of all values not below the threshold (NaN counts as one). Runs of low values are passed over 16 at a time.
int64_t Sampler::gather(const float* x, float threshold, uint64_t* keys) const {
    constexpr int64_t kRun = 16;
    int64_t found = 0;
    for (int64_t begin = 0; begin < vocab_; begin += kRun) {
        const int64_t end = std::min(begin + kRun, vocab_);
        if (end - begin == kRun) {
            int hits = 0;
            for (int64_t i = 0; i < kRun; ++i) hits += !(x[begin + i] < threshold);
            if (hits == 0) continue;
        }
        for (int64_t i = begin; i < end; ++i)
            if (!(x[i] < threshold)) keys[found++] = key_of(x[i], i);
    }
    return found;
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
    const int64_t found = select(logits, num_top, s);
    for (int64_t i = 0; i < found; ++i) {
        const uint64_t key = s.keys[static_cast<size_t>(i)];
        top_ids[i] = id_of(key);
        top_logprobs[i] = value_of(key) - log_sum;
    }
}

}  // namespace headrace
