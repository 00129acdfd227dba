// The vector types of portable.h on Armv8 Advanced SIMD, bit for bit: 16 lanes are four registers. The dot products are those of
// the unit's compile flags: usdot (I8MM), sdot (DotProd), or widening multiplies.
#pragma once
#include <arm_neon.h>
#include "common.h"

#define HR_UNROLL _Pragma("GCC unroll 16")  // accumulator arrays must become registers

namespace headrace {
namespace {

constexpr int64_t ROW_BLOCK = 4;        // rows that share one pass over a weight block
constexpr int64_t ATTENTION_ROWS = 3;   // query rows, and vectors of keys or dims, that one attention block holds in registers
constexpr int ATTENTION_VECTORS = 2;

struct V16 { float32x4_t v[4]; };
struct I16 { int32x4_t v[4]; };
struct B64 { uint8x16_t v[4]; };

#define HR_QUARTERS(type, expression) \
    type r; \
    HR_UNROLL for (int i = 0; i < 4; ++i) r.v[i] = expression; \
    return r

HR_INLINE V16 set1(float x) { HR_QUARTERS(V16, vdupq_n_f32(x)); }
HR_INLINE V16 zero() { return set1(0.0f); }
HR_INLINE V16 load(const float* p) { HR_QUARTERS(V16, vld1q_f32(p + 4 * i)); }
HR_INLINE void store(float* p, V16 a) { HR_UNROLL for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]); }
HR_INLINE V16 load_n(const float* p, int64_t n) {
    float lanes[16] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
}
HR_INLINE void store_n(float* p, V16 a, int64_t n) {
    float lanes[16];
    store(lanes, a);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

HR_INLINE V16 add(V16 a, V16 b) { HR_QUARTERS(V16, vaddq_f32(a.v[i], b.v[i])); }
HR_INLINE V16 sub(V16 a, V16 b) { HR_QUARTERS(V16, vsubq_f32(a.v[i], b.v[i])); }
HR_INLINE V16 mul(V16 a, V16 b) { HR_QUARTERS(V16, vmulq_f32(a.v[i], b.v[i])); }
HR_INLINE V16 div(V16 a, V16 b) { HR_QUARTERS(V16, vdivq_f32(a.v[i], b.v[i])); }
HR_INLINE V16 fma(V16 a, V16 b, V16 c) { HR_QUARTERS(V16, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// fmin and fmax treat NaN otherwise: b must win.
HR_INLINE V16 min(V16 a, V16 b) { HR_QUARTERS(V16, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
HR_INLINE V16 max(V16 a, V16 b) { HR_QUARTERS(V16, vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
HR_INLINE V16 select_lt(V16 a, V16 b, V16 yes, V16 no) {
    HR_QUARTERS(V16, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]));
}
HR_INLINE uint32_t equal_mask(V16 a, V16 b) {
    const uint32x4_t weights = {1, 2, 4, 8};
    uint32_t mask = 0;
    HR_UNROLL for (int i = 0; i < 4; ++i) mask |= vaddvq_u32(vandq_u32(vceqq_f32(a.v[i], b.v[i]), weights)) << (4 * i);
    return mask;
}
HR_INLINE float square_root(float x) { return __builtin_sqrtf(x); }

HR_INLINE float hsum(V16 a) {
    const float32x4_t c = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
HR_INLINE float32x4_t greater(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
HR_INLINE float hmax(V16 a) {
    const float32x4_t c = greater(greater(a.v[0], a.v[2]), greater(a.v[1], a.v[3]));
    const float32x4_t d = greater(c, vextq_f32(c, c, 2));
    const float first = vgetq_lane_f32(d, 0), second = vgetq_lane_f32(d, 1);
    return first > second ? first : second;
}

HR_INLINE V16 load_f16(const uint8_t* p) { HR_QUARTERS(V16, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * i)))); }
HR_INLINE V16 load_bf16(const uint8_t* p) {
    HR_QUARTERS(V16, vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p + 8 * i)), 16)));
}
HR_INLINE void load_pairs(const float* p, V16& even, V16& odd) {
    HR_UNROLL for (int i = 0; i < 4; ++i) {
        const float32x4x2_t pair = vld2q_f32(p + 8 * i);
        even.v[i] = pair.val[0];
        odd.v[i] = pair.val[1];
    }
}

HR_INLINE I16 iset1(uint32_t x) { HR_QUARTERS(I16, vdupq_n_s32(int32_t(x))); }
HR_INLINE I16 iload(const int32_t* p) { HR_QUARTERS(I16, vld1q_s32(p + 4 * i)); }
HR_INLINE I16 ilane_numbers() {
    const int32x4_t first = {0, 1, 2, 3};
    HR_QUARTERS(I16, vaddq_s32(first, vdupq_n_s32(4 * i)));
}
HR_INLINE I16 iadd(I16 a, I16 b) { HR_QUARTERS(I16, vaddq_s32(a.v[i], b.v[i])); }
HR_INLINE I16 isub(I16 a, I16 b) { HR_QUARTERS(I16, vsubq_s32(a.v[i], b.v[i])); }
HR_INLINE I16 imul(I16 a, I16 b) { HR_QUARTERS(I16, vmulq_s32(a.v[i], b.v[i])); }
HR_INLINE I16 ixor(I16 a, I16 b) { HR_QUARTERS(I16, veorq_s32(a.v[i], b.v[i])); }
HR_INLINE I16 iand(I16 a, I16 b) { HR_QUARTERS(I16, vandq_s32(a.v[i], b.v[i])); }
template <int S> HR_INLINE I16 ishl(I16 a) { HR_QUARTERS(I16, vshlq_n_s32(a.v[i], S)); }
template <int S> HR_INLINE I16 ishr(I16 a) {
    HR_QUARTERS(I16, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), S)));
}
template <int S> HR_INLINE I16 isar(I16 a) { HR_QUARTERS(I16, vshrq_n_s32(a.v[i], S)); }
HR_INLINE V16 to_float(I16 a) { HR_QUARTERS(V16, vcvtq_f32_s32(a.v[i])); }
HR_INLINE V16 from_bits(I16 a) { HR_QUARTERS(V16, vreinterpretq_f32_s32(a.v[i])); }
HR_INLINE I16 to_bits(V16 a) { HR_QUARTERS(I16, vreinterpretq_s32_f32(a.v[i])); }
HR_INLINE V16 lane_numbers() { return to_float(ilane_numbers()); }
HR_INLINE int32_t ihsum(I16 a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
HR_INLINE void store_i8(int8_t* p, I16 a) {
    const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1])), high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

HR_INLINE B64 load_bytes(const uint8_t* p) { HR_QUARTERS(B64, vld1q_u8(p + 16 * i)); }
HR_INLINE B64 low_nibbles(B64 a) { HR_QUARTERS(B64, vandq_u8(a.v[i], vdupq_n_u8(15))); }
HR_INLINE B64 high_nibbles(B64 a) { HR_QUARTERS(B64, vshrq_n_u8(a.v[i], 4)); }

// Sums of four signed products per lane. Without sdot a pair is at most 2 * 128 * 127 = 32512 (activations are never -128): exact.
HR_INLINE int32x4_t dot_signed(int32x4_t acc, int8x16_t w, int8x16_t x) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(acc, w, x);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
#endif
}
HR_INLINE int8x16_t four_bytes(const int8_t* a) { return vreinterpretq_s8_s32(vdupq_n_s32(load_as<int32_t>(a))); }

using DotQ4 = I16;  // a nibble is a signed byte too
HR_INLINE DotQ4 start_q4() { return iset1(0); }
HR_INLINE DotQ4 dot_q4(DotQ4 acc, B64 w, const int8_t* a) {
    const int8x16_t x = four_bytes(a);
    HR_QUARTERS(I16, dot_signed(acc.v[i], vreinterpretq_s8_u8(w.v[i]), x));
}
HR_INLINE I16 result_q4(DotQ4 acc) { return acc; }

using DotQ8 = I16;
#ifdef __ARM_FEATURE_MATMUL_INT8
HR_INLINE DotQ8 start_q8(int32_t correction) { return iset1(uint32_t(correction)); }
HR_INLINE DotQ8 dot_q8(DotQ8 acc, B64 w, const int8_t* a) {
    const int8x16_t x = four_bytes(a);
    HR_QUARTERS(I16, vusdotq_s32(acc.v[i], w.v[i], x));
}
#else
HR_INLINE DotQ8 start_q8(int32_t) { return iset1(0); }
HR_INLINE DotQ8 dot_q8(DotQ8 acc, B64 w, const int8_t* a) {
    const int8x16_t x = four_bytes(a);
    HR_QUARTERS(I16, dot_signed(acc.v[i], vreinterpretq_s8_u8(veorq_u8(w.v[i], vdupq_n_u8(128))), x));
}
#endif

#undef HR_QUARTERS

}  // namespace
}  // namespace headrace
