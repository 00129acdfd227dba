// avx2.h with the dot products of AVX-VNNI: vpdpbusd on 256-bit registers, VEX encoded, for processors without AVX-512.
#pragma once
#define HR_OWN_DOTS
#include "avx2.h"

namespace headrace {
namespace {

// vpdpbusd does not saturate: u8 x s8 products and their sum are exact in 32 bits.
HR_INLINE I16 dot_bytes(I16 acc, B64 w, const int8_t* a) {
    const __m256i x = _mm256_set1_epi32(load_as<int32_t>(a));
    return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, x), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, x)};
}

using DotQ4 = I16;
HR_INLINE DotQ4 start_q4() { return iset1(0); }
HR_INLINE DotQ4 dot_q4(DotQ4 acc, B64 w, const int8_t* a) { return dot_bytes(acc, w, a); }
HR_INLINE I16 result_q4(DotQ4 acc) { return acc; }

using DotQ8 = I16;
HR_INLINE DotQ8 start_q8(int32_t correction) { return iset1(uint32_t(correction)); }
HR_INLINE DotQ8 dot_q8(DotQ8 acc, B64 w, const int8_t* a) { return dot_bytes(acc, w, a); }

}  // namespace
}  // namespace headrace
