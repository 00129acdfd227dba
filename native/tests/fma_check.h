// The fma of processors without the instruction against libm's.
#pragma once
#include "support.h"

#if defined(__x86_64__)
#include <cstring>

#include "../kernels/vec/fma_sse2.h"

namespace {

using headrace::fma_in_doubt;
using headrace::fma_quarter;

float from_word(uint32_t word) {
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// Operands where two roundings would show: few bits set, any exponent, addends near the product or near its last places.
float hard_number(Random& random, uint32_t kind) {
    constexpr uint32_t SPECIAL[] = {0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x3F800001};
    const uint32_t x = random.bits(), y = random.bits(), sign = x & 0x80000000u, fraction = x & 0x7FFFFFu & ~((1u << y % 24) - 1u);
    switch (kind) {
        case 0: return from_word(x);
        case 1: return from_word(sign | SPECIAL[y % 8]);
        case 2: return from_word(sign | (y >> 8) % 50 << 23 | fraction);
        case 3: return from_word(sign | (200 + (y >> 8) % 55) << 23 | fraction);
        default: return from_word(sign | (100 + (y >> 8) % 50) << 23 | fraction);
    }
}

void check_fma(Score& score) {
    Random random(12);
    int wrong = 0, num_in_doubt = 0;
    constexpr int ROUNDS = 20000;
    for (int round = 0; round < ROUNDS; ++round) {
        float a[16], b[16], c[16], quick[16];
        const uint32_t kinds = random.bits();
        for (int i = 0; i < 16; ++i) {
            a[i] = hard_number(random, kinds % 6);
            b[i] = hard_number(random, kinds / 6 % 6);
            c[i] = hard_number(random, kinds / 36 % 6);
            const uint32_t near = random.bits() % 8;
            if (near < 2) c[i] = -a[i] * b[i];
            if (near == 1) c[i] *= 1.0f + 0x1p-23f * float(random.bits() % 5);
            if (near == 2) c[i] = a[i] * b[i] * from_word((127u + 20u + random.bits() % 8) << 23);
        }
        __m128i doubt = _mm_setzero_si128();
        for (int i = 0; i < 16; i += 4)
            _mm_storeu_ps(quick + i, fma_quarter(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i), _mm_loadu_ps(c + i), doubt));
        const bool in_doubt = _mm_movemask_epi8(doubt) != 0;
        num_in_doubt += in_doubt;
        float slow[16];
        std::memcpy(slow, c, sizeof slow);
        fma_in_doubt(a, b, slow);
        for (int i = 0; i < 16; ++i) {
            const float wanted = __builtin_fmaf(a[i], b[i], c[i]);
            for (const float got : {slow[i], in_doubt ? slow[i] : quick[i]})
                wrong += !(std::memcmp(&got, &wanted, 4) == 0 || (got != got && wanted != wanted));
        }
    }
    const bool both_ways = num_in_doubt > ROUNDS / 10 && num_in_doubt < ROUNDS * 9 / 10;
    score.line("-", "fma without FMA", wrong == 0 && both_ways, std::to_string(num_in_doubt) + " of " + std::to_string(ROUNDS) + " in doubt");
}

}  // namespace
#else
inline void check_fma(Score&) {}
#endif
