// rope, silu * up, add.
#pragma once
#include "prepare.h"

namespace headrace {
namespace {

HR_INLINE void rotate(float* first, float* second, V16 cosine, V16 sine, int64_t n) {
    const V16 a = load_upto(first, n), b = load_upto(second, n);
    store_upto(first, fma(a, cosine, sub(zero(), mul(b, sine))), n);
    store_upto(second, fma(b, cosine, mul(a, sine)), n);
}

void rope(float* x, const float* table_row, int64_t, int64_t rotary_dim) {
    const int64_t half = rotary_dim / 2;
    V16 cosine, sine;
    int64_t i = 0;
    for (; i + 16 <= half; i += 16) {
        load_pairs(table_row + 2 * i, cosine, sine);
        rotate(x + i, x + half + i, cosine, sine, 16);
    }
    if (i == half) return;
    float pairs[32] = {};
    for (int64_t j = 0; j < 2 * (half - i); ++j) pairs[j] = table_row[2 * i + j];
    load_pairs(pairs, cosine, sine);
    rotate(x + i, x + half + i, cosine, sine, half - i);
}

void silu_mul(const float* gate, const float* up, float* out, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) store_upto(out + i, mul(silu(load_upto(gate + i, n - i)), load_upto(up + i, n - i)), n - i);
}

void add_rows(const float* a, const float* b, float* out, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) store_upto(out + i, add(load_upto(a + i, n - i), load_upto(b + i, n - i)), n - i);
}

}  // namespace
}  // namespace headrace
