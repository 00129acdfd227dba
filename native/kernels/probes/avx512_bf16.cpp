#include "probes.h"

#ifdef __AVX512BF16__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstring>

namespace headrace {
namespace {

constexpr int CHAINS = 12;

void bf16(int64_t rounds, float* sink) {
    __m512 acc[CHAINS] = {};
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    __m512bh x, y;
    std::memcpy(&x, &ones, sizeof x);
    std::memcpy(&y, &ones, sizeof y);
    for (int c = 0; c < CHAINS; ++c) __asm__ volatile("" : "+v"(acc[c]));  // else equal chains become one
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], x, y);
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int c = 0; c < CHAINS; ++c) *sink += _mm512_cvtss_f32(acc[c]);
}

constexpr ProbeLoop LOOPS[] = {{"bf16", 2 * 32 * CHAINS, bf16}};
constexpr ProbeLevel LEVEL = {"avx512_bf16", LOOPS, 1, nullptr};

}  // namespace

const ProbeLevel* probes_avx512_bf16() { return &LEVEL; }

}  // namespace headrace
#else
namespace headrace {
const ProbeLevel* probes_avx512_bf16() { return nullptr; }
}  // namespace headrace
#endif
