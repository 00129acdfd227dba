// The vector types as plain arrays: what the other headers must equal bit for bit. Semantics worth knowing:
//   fma is fused; min(a, b) = a < b ? a : b and max(a, b) = a > b ? a : b (b when either is NaN);
//   hsum adds lane i and i+8, then i+4, i+2, i+1; load_n and store_n touch n < 16 lanes only, missing lanes read as zero.
#pragma once
// Plain loops, left to the compiler: forced inlining and unrolling of scalar lanes would take minutes under the sanitizers.
#define HR_INLINE inline
#define HR_UNROLL
#include "common.h"
#if defined(__x86_64__) && !defined(__FP_FAST_FMAF)
#define HR_FMA_SSE2
#include "fma_sse2.h"
#endif
#if defined(__x86_64__)
#include "dot_sse2.h"
#endif

namespace headrace {
namespace {

constexpr int64_t ROW_BLOCK = 2;        // rows that share one pass over a weight block
constexpr int64_t ATTENTION_ROWS = 2;   // query rows, and vectors of keys or dims, that one attention block holds in registers
constexpr int ATTENTION_VECTORS = 2;

struct V16 { float v[16]; };
struct I16 { uint32_t v[16]; };  // unsigned, so that wrapping is defined
struct B64 { uint8_t v[64]; };

#define HR_LANES for (int i = 0; i < 16; ++i)

HR_INLINE V16 set1(float x) { V16 r; HR_LANES r.v[i] = x; return r; }
HR_INLINE V16 zero() { return set1(0.0f); }
HR_INLINE V16 load(const float* p) { V16 r; __builtin_memcpy(r.v, p, sizeof(r.v)); return r; }
HR_INLINE void store(float* p, V16 a) { __builtin_memcpy(p, a.v, sizeof(a.v)); }
HR_INLINE V16 load_n(const float* p, int64_t n) { V16 r; HR_LANES r.v[i] = i < n ? p[i] : 0.0f; return r; }
HR_INLINE void store_n(float* p, V16 a, int64_t n) { for (int64_t i = 0; i < n; ++i) p[i] = a.v[i]; }

HR_INLINE V16 add(V16 a, V16 b) { HR_LANES a.v[i] = a.v[i] + b.v[i]; return a; }
HR_INLINE V16 sub(V16 a, V16 b) { HR_LANES a.v[i] = a.v[i] - b.v[i]; return a; }
HR_INLINE V16 mul(V16 a, V16 b) { HR_LANES a.v[i] = a.v[i] * b.v[i]; return a; }
HR_INLINE V16 div(V16 a, V16 b) { HR_LANES a.v[i] = a.v[i] / b.v[i]; return a; }
#ifdef HR_FMA_SSE2
HR_INLINE V16 fma(V16 a, V16 b, V16 c) {
    V16 r;
    __m128i doubt = _mm_setzero_si128();
    for (int i = 0; i < 16; i += 4)
        _mm_storeu_ps(r.v + i, fma_quarter(_mm_loadu_ps(a.v + i), _mm_loadu_ps(b.v + i), _mm_loadu_ps(c.v + i), doubt));
    if (__builtin_expect(_mm_movemask_epi8(doubt) == 0, 1)) return r;
    fma_in_doubt(a.v, b.v, c.v);
    return c;
}
#else
HR_INLINE V16 fma(V16 a, V16 b, V16 c) { HR_LANES c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return c; }
#endif
HR_INLINE V16 min(V16 a, V16 b) { HR_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
HR_INLINE V16 max(V16 a, V16 b) { HR_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
HR_INLINE V16 select_lt(V16 a, V16 b, V16 yes, V16 no) { HR_LANES no.v[i] = a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; return no; }
HR_INLINE uint32_t equal_mask(V16 a, V16 b) { uint32_t m = 0; HR_LANES m |= uint32_t(a.v[i] == b.v[i]) << i; return m; }
HR_INLINE V16 lane_numbers() { V16 r; HR_LANES r.v[i] = float(i); return r; }
HR_INLINE float square_root(float x) { return __builtin_sqrtf(x); }

HR_INLINE float hsum(V16 a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
    return a.v[0];
}
HR_INLINE float hmax(V16 a) {
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}

// float_from_f16 without branches, for the compiler to vectorise: subnormals get an exponent and lose what it added (F. Giesen).
HR_INLINE V16 load_f16(const uint8_t* p) {
    V16 r;
    uint16_t halves[16];
    __builtin_memcpy(halves, p, sizeof(halves));
    HR_LANES {
        const int32_t h = halves[i], magnitude = (h & 0x7FFF) << 13;
        const bool subnormal = magnitude < 0x00800000, special = magnitude >= 0x0F800000;
        const int32_t exponent = (special ? 224 : subnormal ? 113 : 112) << 23;
        const float value = float_from_bits(uint32_t(magnitude + exponent)) - (subnormal ? 0x1p-14f : 0.0f);
        const uint32_t quiet = magnitude > 0x0F800000 ? 0x400000u : 0u;
        r.v[i] = float_from_bits(bits_from_float(value) | quiet | uint32_t(h & 0x8000) << 16);
    }
    return r;
}
HR_INLINE V16 load_bf16(const uint8_t* p) { V16 r; HR_LANES r.v[i] = float_from_bf16(load_as<uint16_t>(p + 2 * i)); return r; }
HR_INLINE void load_pairs(const float* p, V16& even, V16& odd) { HR_LANES { even.v[i] = p[2 * i]; odd.v[i] = p[2 * i + 1]; } }

HR_INLINE I16 iset1(uint32_t x) { I16 r; HR_LANES r.v[i] = x; return r; }
HR_INLINE I16 iload(const int32_t* p) { I16 r; __builtin_memcpy(r.v, p, sizeof(r.v)); return r; }
HR_INLINE I16 ilane_numbers() { I16 r; HR_LANES r.v[i] = uint32_t(i); return r; }
HR_INLINE I16 iadd(I16 a, I16 b) { HR_LANES a.v[i] += b.v[i]; return a; }
HR_INLINE I16 isub(I16 a, I16 b) { HR_LANES a.v[i] -= b.v[i]; return a; }
HR_INLINE I16 imul(I16 a, I16 b) { HR_LANES a.v[i] *= b.v[i]; return a; }
HR_INLINE I16 ixor(I16 a, I16 b) { HR_LANES a.v[i] ^= b.v[i]; return a; }
HR_INLINE I16 iand(I16 a, I16 b) { HR_LANES a.v[i] &= b.v[i]; return a; }
template <int S> HR_INLINE I16 ishl(I16 a) { HR_LANES a.v[i] <<= S; return a; }
template <int S> HR_INLINE I16 ishr(I16 a) { HR_LANES a.v[i] >>= S; return a; }                              // logical
template <int S> HR_INLINE I16 isar(I16 a) { HR_LANES a.v[i] = uint32_t(int32_t(a.v[i]) >> S); return a; }   // arithmetic
HR_INLINE V16 to_float(I16 a) { V16 r; HR_LANES r.v[i] = float(int32_t(a.v[i])); return r; }
HR_INLINE V16 from_bits(I16 a) { V16 r; __builtin_memcpy(r.v, a.v, sizeof(r.v)); return r; }
HR_INLINE I16 to_bits(V16 a) { I16 r; __builtin_memcpy(r.v, a.v, sizeof(r.v)); return r; }
HR_INLINE int32_t ihsum(I16 a) { uint32_t s = 0; HR_LANES s += a.v[i]; return int32_t(s); }
HR_INLINE void store_i8(int8_t* p, I16 a) { HR_LANES p[i] = int8_t(uint8_t(a.v[i])); }  // lanes within int8

// Dot products of 16 lanes x 4 bytes of weights with 4 activation bytes, added to the lanes of an accumulator.
HR_INLINE B64 load_bytes(const uint8_t* p) { B64 r; __builtin_memcpy(r.v, p, 64); return r; }
HR_INLINE B64 low_nibbles(B64 a) { for (int i = 0; i < 64; ++i) a.v[i] &= 15; return a; }
HR_INLINE B64 high_nibbles(B64 a) { for (int i = 0; i < 64; ++i) a.v[i] >>= 4; return a; }

#ifdef __x86_64__
HR_INLINE I16 dot_bytes(I16 acc, B64 w, const int8_t* a) {
    const __m128i words = four_words(a);
    for (int i = 0; i < 4; ++i) {
        __m128i* lanes = reinterpret_cast<__m128i*>(acc.v + 4 * i);
        _mm_storeu_si128(lanes, dot_quarter(_mm_loadu_si128(lanes), _mm_loadu_si128(reinterpret_cast<__m128i*>(w.v + 16 * i)), words));
    }
    return acc;
}

using DotQ4 = I16;
HR_INLINE DotQ4 start_q4() { return iset1(0); }
HR_INLINE DotQ4 dot_q4(DotQ4 acc, B64 w, const int8_t* a) { return dot_bytes(acc, w, a); }
HR_INLINE I16 result_q4(DotQ4 acc) { return acc; }

using DotQ8 = I16;
HR_INLINE DotQ8 start_q8(int32_t correction) { return iset1(uint32_t(correction)); }
HR_INLINE DotQ8 dot_q8(DotQ8 acc, B64 w, const int8_t* a) { return dot_bytes(acc, w, a); }
#else
using DotQ4 = I16;  // weights 0..15, at most 8 dots before dot_result
HR_INLINE DotQ4 start_q4() { return iset1(0); }
HR_INLINE DotQ4 dot_q4(DotQ4 acc, B64 w, const int8_t* a) {
    HR_LANES {
        int32_t s = 0;
        for (int j = 0; j < 4; ++j) s += int32_t(w.v[4 * i + j]) * int32_t(a[j]);
        acc.v[i] += uint32_t(s);
    }
    return acc;
}
HR_INLINE I16 result_q4(DotQ4 acc) { return acc; }

using DotQ8 = I16;  // weights stored as value + 128; `correction` is -128 * (sum of the activations)
HR_INLINE DotQ8 start_q8(int32_t) { return iset1(0); }
HR_INLINE DotQ8 dot_q8(DotQ8 acc, B64 w, const int8_t* a) {
    HR_LANES {
        int32_t s = 0;
        for (int j = 0; j < 4; ++j) s += (int32_t(w.v[4 * i + j]) - 128) * int32_t(a[j]);
        acc.v[i] += uint32_t(s);
    }
    return acc;
}
#endif

#undef HR_LANES

}  // namespace
}  // namespace headrace
