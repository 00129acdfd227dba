// Unaligned scalar access, shared by the vector headers. Everything under vec/ and ops/ lives in an anonymous namespace
// and uses no std:: template: each isa_*.cpp must own every instruction it emits, or the linker could keep the AVX-512 copy of
// an inline function and hand it to a CPU that lacks AVX-512.
//
// A level may bring, beside the vector types of portable.h: HR_WIDE_ROWS and HR_WIDE_BLOCKS, the tile of ops/wide.h for its
// registers; HR_SCALED_DOTS with DotScale, dot_scale, scaled_q4 and scaled_q8 (float(dot) * scale, rounded once) in place of
// result_q4 and the conversion. ops/wide.h has the defaults.
#pragma once
#include <cstdint>

#ifndef HR_INLINE
#define HR_INLINE inline __attribute__((always_inline))
#endif

namespace headrace {
namespace {

template <class T>
HR_INLINE T load_as(const void* p) {
    T value;
    __builtin_memcpy(&value, p, sizeof(T));
    return value;
}

HR_INLINE float float_from_bits(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
}

HR_INLINE uint32_t bits_from_float(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    return bits;
}

// Exact; NaNs come out quiet, as from the hardware conversion.
HR_INLINE float float_from_f16(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u, fraction = h & 0x3FFu;
    if (exponent == 31) return float_from_bits(sign | 0x7F800000u | (fraction << 13) | (fraction ? 0x400000u : 0u));
    if (exponent != 0) return float_from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float magnitude = float(fraction) * 0x1p-24f;  // subnormal or zero
    return float_from_bits(sign | bits_from_float(magnitude));
}

HR_INLINE float float_from_bf16(uint16_t h) { return float_from_bits(uint32_t(h) << 16); }

}  // namespace
}  // namespace headrace
