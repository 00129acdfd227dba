#include "probes.h"

#ifdef __AVX512VNNI__
// GCC 12 takes the undefined pass-through operand inside its own AVX-512 intrinsics for a use before initialisation.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstring>

namespace headrace {
namespace {

constexpr int CHAINS = 12;

void f32(int64_t rounds, float* sink) {
    __m512 acc[CHAINS] = {}, x = _mm512_set1_ps(1e-9f), y = x;
    for (int c = 0; c < CHAINS; ++c) __asm__ volatile("" : "+v"(acc[c]));  // else equal chains become one
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; ++c) acc[c] = _mm512_fmadd_ps(x, y, acc[c]);
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int c = 0; c < CHAINS; ++c) *sink += _mm512_cvtss_f32(acc[c]);
}

void int8(int64_t rounds, float* sink) {
    __m512i acc[CHAINS] = {}, x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
    for (int c = 0; c < CHAINS; ++c) __asm__ volatile("" : "+v"(acc[c]));  // else equal chains become one
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; ++c) acc[c] = _mm512_dpbusd_epi32(acc[c], x, y);
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int c = 0; c < CHAINS; ++c) *sink += float(_mm512_cvtsi512_si32(acc[c]));
}

constexpr int GROUPS = 8;

template <int ROWS, int BLOCKS>
void q4(int64_t rounds, float* sink) {
    alignas(64) uint8_t weight[GROUPS][BLOCKS][8][64];
    alignas(64) float scale[GROUPS][BLOCKS][2][16];
    alignas(64) int8_t act[ROWS][GROUPS][32];
    float act_scale[ROWS][GROUPS][2];
    std::memset(weight, 3, sizeof weight);
    std::memset(act, 5, sizeof act);
    std::memset(scale, 0, sizeof scale);
    std::memset(act_scale, 0, sizeof act_scale);
    __m512 acc[BLOCKS][ROWS] = {};
    for (int64_t i = 0; i < rounds; ++i) {
        __asm__ volatile("" ::"r"(weight), "r"(scale), "r"(act), "r"(act_scale) : "memory");
        for (int g = 0; g < GROUPS; ++g) {
            __m512i dot[BLOCKS][ROWS] = {};
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j)
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    int32_t four;
                    std::memcpy(&four, &act[r][g][4 * j], 4);
                    const __m512i a = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                    for (int b = 0; b < BLOCKS; ++b)
                        dot[b][r] = _mm512_dpbusd_epi32(dot[b][r], _mm512_load_si512(weight[g][b][j]), a);
                }
#pragma GCC unroll 4
            for (int b = 0; b < BLOCKS; ++b)
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[b][r]), _mm512_load_ps(scale[g][b][0]));
                    acc[b][r] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(act_scale[r][g][0]), acc[b][r]);
                    acc[b][r] = _mm512_fmadd_ps(_mm512_load_ps(scale[g][b][1]), _mm512_set1_ps(act_scale[r][g][1]), acc[b][r]);
                }
        }
    }
    for (int b = 0; b < BLOCKS; ++b)
        for (int r = 0; r < ROWS; ++r) *sink += _mm512_cvtss_f32(acc[b][r]);
}

void read(const uint8_t* data, size_t size, int64_t rounds, float* sink) {
    __m512i sum[4] = {};
    for (int64_t r = 0; r < rounds; ++r)
        for (size_t at = 0; at < size; at += 256)
#pragma GCC unroll 4
            for (size_t i = 0; i < 4; ++i) sum[i] = _mm512_add_epi64(sum[i], _mm512_load_si512(data + at + 64 * i));
    for (int i = 0; i < 4; ++i) *sink += float(_mm512_cvtsi512_si32(sum[i]));
}

template <int ROWS, int BLOCKS>
constexpr ProbeLoop q4_loop() {
    return {"q4", int64_t{2} * 16 * 32 * GROUPS * ROWS * BLOCKS, q4<ROWS, BLOCKS>};
}

constexpr ProbeLoop LOOPS[] = {
    {"f32", 2 * 16 * CHAINS, f32}, {"int8", 2 * 64 * CHAINS, int8}, q4_loop<8, 1>(), q4_loop<4, 2>(), q4_loop<6, 2>(), q4_loop<12, 1>(),
};
constexpr ProbeLevel LEVEL = {"avx512_vnni", LOOPS, sizeof LOOPS / sizeof *LOOPS, read};

}  // namespace

const ProbeLevel* probes_avx512_vnni() { return &LEVEL; }

}  // namespace headrace
#else
namespace headrace {
const ProbeLevel* probes_avx512_vnni() { return nullptr; }
}  // namespace headrace
#endif
