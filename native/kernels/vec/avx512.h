// The vector types of portable.h on AVX-512 F/BW/VL/DQ + VNNI, bit for bit.
#pragma once
// GCC 12 takes the undefined pass-through operand inside its own AVX-512 intrinsics for a use before initialisation.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#include "common.h"

#define HR_UNROLL _Pragma("GCC unroll 16")  // accumulator arrays must become registers

namespace headrace {
namespace {

constexpr int64_t ROW_BLOCK = 8;        // rows that share one pass over a weight block
#define HR_WIDE_ROWS 12    // the tile of ops/wide.h: its dot products fill 24 of 32 registers
#define HR_WIDE_BLOCKS 2
constexpr int64_t ATTENTION_ROWS = 6;   // query rows, and vectors of keys or dims, that one attention block holds in registers
constexpr int ATTENTION_VECTORS = 4;

struct V16 { __m512 v; };
struct I16 { __m512i v; };
struct B64 { __m512i v; };

HR_INLINE __mmask16 first_lanes(int64_t n) { return __mmask16((1u << n) - 1u); }

HR_INLINE V16 set1(float x) { return {_mm512_set1_ps(x)}; }
HR_INLINE V16 zero() { return {_mm512_setzero_ps()}; }
HR_INLINE V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
HR_INLINE void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
HR_INLINE V16 load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
HR_INLINE void store_n(float* p, V16 a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

HR_INLINE V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
HR_INLINE V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
HR_INLINE V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
HR_INLINE V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
HR_INLINE V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HR_INLINE V16 min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
HR_INLINE V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
HR_INLINE V16 select_lt(V16 a, V16 b, V16 yes, V16 no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
HR_INLINE uint32_t equal_mask(V16 a, V16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
HR_INLINE V16 lane_numbers() { return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
HR_INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

HR_INLINE float hsum(V16 a) {
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
HR_INLINE float hmax(V16 a) {
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

HR_INLINE V16 load_f16(const uint8_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
HR_INLINE V16 load_bf16(const uint8_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
HR_INLINE void load_pairs(const float* p, V16& even, V16& odd) {
    const __m512i pick = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
    even.v = _mm512_permutex2var_ps(a, pick, b);
    odd.v = _mm512_permutex2var_ps(a, _mm512_add_epi32(pick, _mm512_set1_epi32(1)), b);
}

HR_INLINE I16 iset1(uint32_t x) { return {_mm512_set1_epi32(int32_t(x))}; }
HR_INLINE I16 iload(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
HR_INLINE I16 ilane_numbers() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
HR_INLINE I16 iadd(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
HR_INLINE I16 isub(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
HR_INLINE I16 imul(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
HR_INLINE I16 ixor(I16 a, I16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
HR_INLINE I16 iand(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int S> HR_INLINE I16 ishl(I16 a) { return {_mm512_slli_epi32(a.v, S)}; }
template <int S> HR_INLINE I16 ishr(I16 a) { return {_mm512_srli_epi32(a.v, S)}; }
template <int S> HR_INLINE I16 isar(I16 a) { return {_mm512_srai_epi32(a.v, S)}; }
HR_INLINE V16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
HR_INLINE V16 from_bits(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
HR_INLINE I16 to_bits(V16 a) { return {_mm512_castps_si512(a.v)}; }
HR_INLINE int32_t ihsum(I16 a) {
    const __m256i b = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti32x8_epi32(a.v, 1));
    const __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    const __m128i d = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xB1)));
}
HR_INLINE void store_i8(int8_t* p, I16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

HR_INLINE B64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
HR_INLINE B64 low_nibbles(B64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
HR_INLINE B64 high_nibbles(B64 a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }

// vpdpbusd does not saturate: u8 x s8 products and their sum are exact in 32 bits. Dots start at the bits of 1.5 * 2^23, so that
// the lanes of a finished dot d (|d| < 2^22) are the float 1.5 * 2^23 + d, and fma(that, scale, -1.5 * 2^23 * scale) is d * scale
// rounded once: conversion and product in one operation. (13 bits of 1.5 * 2^23 * scale are exact in f32; only the sign of a zero
// product can differ, and no accumulator is ever -0.)
#define HR_SCALED_DOTS
constexpr uint32_t DOT_ORIGIN = 0x4B400000u;
struct DotScale { V16 scale, offset; };
HR_INLINE DotScale dot_scale(V16 scale) { return {scale, mul(scale, set1(-0x1.8p23f))}; }
HR_INLINE V16 scaled(I16 dot, DotScale s) { return fma(from_bits(dot), s.scale, s.offset); }

using DotQ4 = I16;
HR_INLINE DotQ4 start_q4() { return iset1(DOT_ORIGIN); }
HR_INLINE DotQ4 dot_q4(DotQ4 acc, B64 w, const int8_t* a) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(load_as<int32_t>(a)))};
}
HR_INLINE V16 scaled_q4(DotQ4 acc, DotScale s) { return scaled(acc, s); }

using DotQ8 = I16;
HR_INLINE DotQ8 start_q8(int32_t correction) { return iset1(DOT_ORIGIN + uint32_t(correction)); }
HR_INLINE DotQ8 dot_q8(DotQ8 acc, B64 w, const int8_t* a) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(load_as<int32_t>(a)))};
}
HR_INLINE V16 scaled_q8(DotQ8 acc, DotScale s) { return scaled(acc, s); }

}  // namespace
}  // namespace headrace
