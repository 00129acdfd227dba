// Four unsigned weight bytes of each of four lanes times four activation bytes, in SSE2: what the compiler does not find in the
// loops of portable.h. Products and pair sums are exact in pmaddwd's 32 bits.
#pragma once
#include <emmintrin.h>
#include "common.h"

namespace headrace {
namespace {

// Four int8 as words, twice.
HR_INLINE __m128i four_words(const int8_t* a) {
    const __m128i bytes = _mm_set1_epi32(load_as<int32_t>(a));
    return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
}

HR_INLINE __m128i dot_quarter(__m128i acc, __m128i weights, __m128i words) {
    const __m128i none = _mm_setzero_si128();
    const __m128 low = _mm_castsi128_ps(_mm_madd_epi16(_mm_unpacklo_epi8(weights, none), words));
    const __m128 high = _mm_castsi128_ps(_mm_madd_epi16(_mm_unpackhi_epi8(weights, none), words));
    const __m128i first = _mm_castps_si128(_mm_shuffle_ps(low, high, 0x88)), second = _mm_castps_si128(_mm_shuffle_ps(low, high, 0xDD));
    return _mm_add_epi32(acc, _mm_add_epi32(first, second));
}

}  // namespace
}  // namespace headrace
