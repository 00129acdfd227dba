// fma of 4 x 4 lanes on x86-64 processors without the instruction, bit for bit; libm's is thirty times slower there.
//
// A product of two floats is exact in double, so s = a * b + c has one rounding, and float(s) a second. The second goes wrong only
// where s lies halfway between two floats: rounding to double is monotonic and every such midpoint is a double, so the exact sum is
// on the same side of each midpoint as s, or was rounded onto it. Lanes in doubt are those with the bit pattern of a midpoint, or
// with 0 < |s| < 2^-126, where midpoints have other patterns. They are done again with s rounded to odd, from which rounding to
// float is correct because 53 >= 24 + 2 (Boldo, Melquiond 2008: Emulation of FMA and correctly rounded sums). s neither overflows
// nor underflows: 2^-298 <= |a * b| < 2^256.
#pragma once
#include <emmintrin.h>
#include "common.h"

namespace headrace {
namespace {

// TwoSum gives the error of s exactly. Infinity and NaN have no error to speak of and stay.
inline float fma_by_odd(float a, float b, float c) {
    const double product = double(a) * double(b), addend = double(c), sum = product + addend, back = sum - product;
    const double error = (product - (sum - back)) + (addend - back);
    uint64_t bits, error_bits;
    __builtin_memcpy(&bits, &sum, 8);
    __builtin_memcpy(&error_bits, &error, 8);
    if ((error < 0.0 || error > 0.0) && (bits & 1) == 0) bits += (bits ^ error_bits) >> 63 ? ~uint64_t{0} : 1;
    double odd;
    __builtin_memcpy(&odd, &bits, 8);
    return float(odd);
}

__attribute__((noinline, cold)) void fma_in_doubt(const float* a, const float* b, float* c) {
    for (int i = 0; i < 16; ++i) c[i] = fma_by_odd(a[i], b[i], c[i]);
}

// c = a * b + c of four lanes; lanes in doubt set bits in `doubt`.
HR_INLINE __m128 fma_quarter(__m128 a, __m128 b, __m128 c, __m128i& doubt) {
    const __m128d low = _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), _mm_cvtps_pd(c));
    const __m128d high = _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(_mm_movehl_ps(a, a)), _mm_cvtps_pd(_mm_movehl_ps(b, b))),
                                    _mm_cvtps_pd(_mm_movehl_ps(c, c)));
    const __m128i ends = _mm_castps_si128(_mm_shuffle_ps(_mm_castpd_ps(low), _mm_castpd_ps(high), 0x88));
    const __m128i tops = _mm_castps_si128(_mm_shuffle_ps(_mm_castpd_ps(low), _mm_castpd_ps(high), 0xDD));
    const __m128i midpoint = _mm_cmpeq_epi32(_mm_slli_epi32(ends, 3), _mm_set1_epi32(INT32_MIN));
    // 0 < 2 * top < 2 * 0x38100000 without the sign bit, as unsigned numbers.
    const __m128i shifted = _mm_add_epi32(_mm_add_epi32(tops, tops), _mm_set1_epi32(INT32_MAX));
    const __m128i small = _mm_cmpgt_epi32(_mm_set1_epi32(0x70200000 - 1 + INT32_MIN), shifted);
    doubt = _mm_or_si128(doubt, _mm_or_si128(midpoint, small));
    return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}

}  // namespace
}  // namespace headrace
