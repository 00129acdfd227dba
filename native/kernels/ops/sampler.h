// Sampler pieces over a row of logits, in tiles of 1024 entries.
#pragma once
#include "attention.h"

namespace headrace {
namespace {

constexpr int64_t SAMPLER_TILE = 1024;

HR_INLINE V16 load_or_lowest(const float* p, int64_t n) {
    if (n >= 16) return load(p);
    return select_lt(lane_numbers(), set1(float(n)), load_n(p, n), set1(NEGATIVE_INFINITY));
}

// max(a, b) gives b when either is NaN: with the accumulator as b, NaNs never enter it.
HR_INLINE float greatest(const float* x, int64_t n) {
    V16 best[4];
    HR_UNROLL for (int j = 0; j < 4; ++j) best[j] = set1(NEGATIVE_INFINITY);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) HR_UNROLL for (int j = 0; j < 4; ++j) best[j] = max(load(x + i + 16 * j), best[j]);
    for (; i < n; i += 16) best[0] = max(load_or_lowest(x + i, n - i), best[0]);
    return hmax(max(max(best[0], best[1]), max(best[2], best[3])));
}

int64_t argmax(const float* x, int64_t n) {
    const V16 target = set1(greatest(x, n));
    for (int64_t i = 0; i < n; i += 16) {
        uint32_t found = equal_mask(load_upto(x + i, n - i), target);
        if (n - i < 16) found &= (1u << (n - i)) - 1u;
        if (found != 0) return i + __builtin_ctz(found);
    }
    return 0;  // nothing but NaN
}

float log_sum_exp(const float* x, int64_t n) {
    const float maximum = greatest(x, n);
    const V16 shift = set1(maximum == NEGATIVE_INFINITY ? 0.0f : maximum);
    float total = 0.0f;
    for (int64_t first = 0; first < n; first += SAMPLER_TILE) {
        const int64_t end = n - first < SAMPLER_TILE ? n : first + SAMPLER_TILE;
        V16 sum = zero();
        for (int64_t i = first; i < end; i += 16) sum = add(sum, vexp(sub(load_or_lowest(x + i, end - i), shift)));
        total = total + hsum(sum);
    }
    if (total == 0.0f || total - total != 0.0f) return total == 0.0f ? NEGATIVE_INFINITY : total;
    float lanes[16];
    store(lanes, vlog(set1(total)));
    return maximum + lanes[0];
}

}  // namespace
}  // namespace headrace
