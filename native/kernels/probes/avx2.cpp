#include "probes.h"

#ifdef __AVX2__
#include <immintrin.h>

#include <cstring>

namespace headrace {
namespace {

constexpr int CHAINS = 10;

void f32(int64_t rounds, float* sink) {
    __m256 acc[CHAINS] = {}, x = _mm256_set1_ps(1e-9f), y = x;
    for (int c = 0; c < CHAINS; ++c) __asm__ volatile("" : "+x"(acc[c]));  // else equal chains become one
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; ++c) acc[c] = _mm256_fmadd_ps(x, y, acc[c]);
        __asm__ volatile("" : "+x"(x), "+x"(y));
    }
    for (int c = 0; c < CHAINS; ++c) *sink += _mm256_cvtss_f32(acc[c]);
}

// The dot product of AVX2 without VNNI, for values that may not saturate: multiply, widen, add.
void int8(int64_t rounds, float* sink) {
    __m256i acc[CHAINS] = {}, x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(5);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int c = 0; c < CHAINS; ++c) __asm__ volatile("" : "+x"(acc[c]));  // else equal chains become one
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; ++c) {
            __m256i pairs = _mm256_maddubs_epi16(x, y);
            __asm__ volatile("" : "+x"(pairs));
            acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(pairs, ones));
        }
        __asm__ volatile("" : "+x"(x), "+x"(y));
    }
    for (int c = 0; c < CHAINS; ++c) *sink += float(_mm256_extract_epi32(acc[c], 0));
}

constexpr int GROUPS = 8;

// Weights are nibbles, so that eight products fit 16 bits: one widening a group.
template <int ROWS, int BLOCKS>
void q4(int64_t rounds, float* sink) {
    alignas(64) uint8_t weight[GROUPS][BLOCKS][8][32];
    alignas(64) float scale[GROUPS][BLOCKS][2][8];
    alignas(64) int8_t act[ROWS][GROUPS][32];
    float act_scale[ROWS][GROUPS][2];
    std::memset(weight, 3, sizeof weight);
    std::memset(act, 5, sizeof act);
    std::memset(scale, 0, sizeof scale);
    std::memset(act_scale, 0, sizeof act_scale);
    __m256 acc[BLOCKS][ROWS] = {};
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t i = 0; i < rounds; ++i) {
        __asm__ volatile("" ::"r"(weight), "r"(scale), "r"(act), "r"(act_scale) : "memory");
        for (int g = 0; g < GROUPS; ++g) {
            __m256i dot[BLOCKS][ROWS] = {};
#pragma GCC unroll 2
            for (int j = 0; j < 8; ++j)
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    int32_t four;
                    std::memcpy(&four, &act[r][g][4 * j], 4);
                    const __m256i a = _mm256_set1_epi32(four);
#pragma GCC unroll 4
                    for (int b = 0; b < BLOCKS; ++b) {
                        const auto* w = reinterpret_cast<const __m256i*>(weight[g][b][j]);
                        const __m256i product = _mm256_maddubs_epi16(_mm256_load_si256(w), a);
                        dot[b][r] = _mm256_add_epi16(dot[b][r], product);
                    }
                }
#pragma GCC unroll 4
            for (int b = 0; b < BLOCKS; ++b)
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    const __m256 sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[b][r], ones));
                    const __m256 scaled = _mm256_mul_ps(sum, _mm256_load_ps(scale[g][b][0]));
                    acc[b][r] = _mm256_fmadd_ps(scaled, _mm256_broadcast_ss(&act_scale[r][g][0]), acc[b][r]);
                    acc[b][r] =
                        _mm256_fmadd_ps(_mm256_load_ps(scale[g][b][1]), _mm256_broadcast_ss(&act_scale[r][g][1]), acc[b][r]);
                }
        }
    }
    for (int b = 0; b < BLOCKS; ++b)
        for (int r = 0; r < ROWS; ++r) *sink += _mm256_cvtss_f32(acc[b][r]);
}

void read(const uint8_t* data, size_t size, int64_t rounds, float* sink) {
    __m256i sum[8] = {};
    for (int64_t r = 0; r < rounds; ++r)
        for (size_t at = 0; at < size; at += 256)
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; ++i)
                sum[i] = _mm256_add_epi64(sum[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
    for (int i = 0; i < 8; ++i) *sink += float(_mm256_extract_epi32(sum[i], 0));
}

template <int ROWS, int BLOCKS>
constexpr ProbeLoop q4_loop() {
    return {"q4", int64_t{2} * 8 * 32 * GROUPS * ROWS * BLOCKS, q4<ROWS, BLOCKS>};
}

constexpr ProbeLoop LOOPS[] = {
    {"f32", 2 * 8 * CHAINS, f32}, {"int8", 2 * 32 * CHAINS, int8}, q4_loop<4, 1>(), q4_loop<2, 2>(), q4_loop<3, 2>(),
};
constexpr ProbeLevel LEVEL = {"avx2", LOOPS, sizeof LOOPS / sizeof *LOOPS, read};

}  // namespace

const ProbeLevel* probes_avx2() { return &LEVEL; }

}  // namespace headrace
#else
namespace headrace {
const ProbeLevel* probes_avx2() { return nullptr; }
}  // namespace headrace
#endif
