// The vector types of portable.h on AVX2 + FMA + F16C, bit for bit: 16 lanes are two registers.
#pragma once
#include <immintrin.h>
#include "common.h"

#define HR_UNROLL _Pragma("GCC unroll 16")  // accumulator arrays must become registers

namespace headrace {
namespace {

constexpr int64_t ROW_BLOCK = 4;        // rows that share one pass over a weight block
constexpr int64_t ATTENTION_ROWS = 3;   // query rows, and vectors of keys or dims, that one attention block holds in registers
constexpr int ATTENTION_VECTORS = 2;

struct V16 { __m256 lo, hi; };
struct I16 { __m256i lo, hi; };
struct B64 { __m256i lo, hi; };

#define HR_BOTH(type, f, ...) type{f(a.lo, ##__VA_ARGS__), f(a.hi, ##__VA_ARGS__)}
#define HR_PAIR(type, f) type{f(a.lo, b.lo), f(a.hi, b.hi)}

HR_INLINE __m256i lanes_below(int64_t n) {  // n may be negative or past 8
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int32_t(n)), numbers);
}
HR_INLINE const __m256i* bytes_at(const void* p) { return static_cast<const __m256i*>(p); }

HR_INLINE V16 set1(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
HR_INLINE V16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
HR_INLINE V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HR_INLINE void store(float* p, V16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
HR_INLINE V16 load_n(const float* p, int64_t n) {
    const __m256 lo = _mm256_maskload_ps(p, lanes_below(n));
    return {lo, n > 8 ? _mm256_maskload_ps(p + 8, lanes_below(n - 8)) : _mm256_setzero_ps()};
}
HR_INLINE void store_n(float* p, V16 a, int64_t n) {
    _mm256_maskstore_ps(p, lanes_below(n), a.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, lanes_below(n - 8), a.hi);
}

HR_INLINE V16 add(V16 a, V16 b) { return HR_PAIR(V16, _mm256_add_ps); }
HR_INLINE V16 sub(V16 a, V16 b) { return HR_PAIR(V16, _mm256_sub_ps); }
HR_INLINE V16 mul(V16 a, V16 b) { return HR_PAIR(V16, _mm256_mul_ps); }
HR_INLINE V16 div(V16 a, V16 b) { return HR_PAIR(V16, _mm256_div_ps); }
HR_INLINE V16 fma(V16 a, V16 b, V16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
HR_INLINE V16 min(V16 a, V16 b) { return HR_PAIR(V16, _mm256_min_ps); }
HR_INLINE V16 max(V16 a, V16 b) { return HR_PAIR(V16, _mm256_max_ps); }
HR_INLINE V16 select_lt(V16 a, V16 b, V16 yes, V16 no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
HR_INLINE uint32_t equal_mask(V16 a, V16 b) {
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ))) |
           uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ))) << 8;
}
HR_INLINE V16 lane_numbers() {
    return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
}
HR_INLINE float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

HR_INLINE float hsum(V16 a) {
    const __m256 b = _mm256_add_ps(a.lo, a.hi);
    const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
HR_INLINE float hmax(V16 a) {
    const __m256 b = _mm256_max_ps(a.lo, a.hi);
    const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}

HR_INLINE V16 load_f16(const uint8_t* p) {
    const __m256i h = _mm256_loadu_si256(bytes_at(p));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
HR_INLINE V16 load_bf16(const uint8_t* p) {
    const __m256i h = _mm256_loadu_si256(bytes_at(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1)), 16))};
}
HR_INLINE void load_pairs8(const float* p, __m256& even, __m256& odd) {
    const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
    const __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    even = _mm256_shuffle_ps(low, high, 0x88);
    odd = _mm256_shuffle_ps(low, high, 0xDD);
}
HR_INLINE void load_pairs(const float* p, V16& even, V16& odd) {
    load_pairs8(p, even.lo, odd.lo);
    load_pairs8(p + 16, even.hi, odd.hi);
}

HR_INLINE I16 iset1(uint32_t x) { const __m256i v = _mm256_set1_epi32(int32_t(x)); return {v, v}; }
HR_INLINE I16 iload(const int32_t* p) { return {_mm256_loadu_si256(bytes_at(p)), _mm256_loadu_si256(bytes_at(p + 8))}; }
HR_INLINE I16 ilane_numbers() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
HR_INLINE I16 iadd(I16 a, I16 b) { return HR_PAIR(I16, _mm256_add_epi32); }
HR_INLINE I16 isub(I16 a, I16 b) { return HR_PAIR(I16, _mm256_sub_epi32); }
HR_INLINE I16 imul(I16 a, I16 b) { return HR_PAIR(I16, _mm256_mullo_epi32); }
HR_INLINE I16 ixor(I16 a, I16 b) { return HR_PAIR(I16, _mm256_xor_si256); }
HR_INLINE I16 iand(I16 a, I16 b) { return HR_PAIR(I16, _mm256_and_si256); }
template <int S> HR_INLINE I16 ishl(I16 a) { return HR_BOTH(I16, _mm256_slli_epi32, S); }
template <int S> HR_INLINE I16 ishr(I16 a) { return HR_BOTH(I16, _mm256_srli_epi32, S); }
template <int S> HR_INLINE I16 isar(I16 a) { return HR_BOTH(I16, _mm256_srai_epi32, S); }
HR_INLINE V16 to_float(I16 a) { return HR_BOTH(V16, _mm256_cvtepi32_ps); }
HR_INLINE V16 from_bits(I16 a) { return HR_BOTH(V16, _mm256_castsi256_ps); }
HR_INLINE I16 to_bits(V16 a) { return HR_BOTH(I16, _mm256_castps_si256); }
HR_INLINE int32_t ihsum(I16 a) {
    const __m256i b = _mm256_add_epi32(a.lo, a.hi);
    const __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    const __m128i d = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xB1)));
}
HR_INLINE void store_i8(int8_t* p, I16 a) {
    const __m256i low_byte = _mm256_set1_epi32(255);
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(a.lo, low_byte), _mm256_and_si256(a.hi, low_byte));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

HR_INLINE B64 load_bytes(const uint8_t* p) { return {_mm256_loadu_si256(bytes_at(p)), _mm256_loadu_si256(bytes_at(p + 32))}; }
HR_INLINE B64 low_nibbles(B64 a) { return HR_BOTH(B64, _mm256_and_si256, _mm256_set1_epi8(15)); }
HR_INLINE B64 high_nibbles(B64 a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), mask)};
}

#ifndef HR_OWN_DOTS  // a level with a better dot product brings its own
// A pair of 4-bit weights times int8 is at most 2 * 15 * 128 = 3840 in magnitude, and eight of them 30720: exact in int16.
struct DotQ4 { __m256i lo, hi; };
HR_INLINE DotQ4 start_q4() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
HR_INLINE DotQ4 dot_q4(DotQ4 acc, B64 w, const int8_t* a) {
    const __m256i x = _mm256_set1_epi32(load_as<int32_t>(a));
    return {_mm256_add_epi16(acc.lo, _mm256_maddubs_epi16(w.lo, x)), _mm256_add_epi16(acc.hi, _mm256_maddubs_epi16(w.hi, x))};
}
HR_INLINE I16 result_q4(DotQ4 a) { return HR_BOTH(I16, _mm256_madd_epi16, _mm256_set1_epi16(1)); }

// 8-bit weights would saturate maddubs as stored. |weight| <= 128 with the sign moved to the activation gives at most
// 2 * 128 * 127 = 32512 a pair: exact. The signed dot needs no correction.
using DotQ8 = I16;
HR_INLINE DotQ8 start_q8(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
HR_INLINE __m256i dot_q8_half(__m256i acc, __m256i stored, __m256i x) {
    const __m256i w = _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
HR_INLINE DotQ8 dot_q8(DotQ8 acc, B64 w, const int8_t* a) {
    const __m256i x = _mm256_set1_epi32(load_as<int32_t>(a));
    return {dot_q8_half(acc.lo, w.lo, x), dot_q8_half(acc.hi, w.hi, x)};
}
#endif

#undef HR_BOTH
#undef HR_PAIR

}  // namespace
}  // namespace headrace
