// Quantisation while packing: groups of 32 inputs of 16 rows at a time into the q8 and q4 of plan.h, or elements into bf16.
// Lane arrays, so that the compiler may vectorise without reordering a sum: the same bits on every machine.
#include "quantise.h"

#include <cstring>

namespace headrace {
namespace {

constexpr int GROUP = 32, LANES = 16;
constexpr float F16_MAX = 65504.0f;
constexpr float STEPS[] = {12.5f, 13.5f, 14.25f, 15.0f, 15.75f};  // of the ranges tried
using Lanes = float[LANES];

// Nearest integer, ties to even, for |x| < 2^22.
inline float rounded(float x) { return (x + 12582912.0f) - 12582912.0f; }
inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
inline float magnitude(float x) { return x < 0.0f ? -x : x; }

// The f16 nearest to x, as a float. Veltkamp's split keeps 11 bits; below 2^-14 the spacing is 2^-24. |x| < 2^100.
inline float as_f16(float x) {
    const float c = x * 8193.0f, normal = c - (c - x), subnormal = (x + 0.75f) - 0.75f;
    return magnitude(x) < 0x1p-14f ? subnormal : normal;
}

// Bits of a value that as_f16 returned, at most F16_MAX.
uint16_t f16_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (magnitude(value) < 0x1p-14f) return uint16_t(sign | uint32_t(magnitude(value) * 0x1p24f));
    return uint16_t(sign | (((bits >> 23 & 255u) - 112u) << 10) | (bits >> 13 & 0x3FFu));
}

float float_of(uint16_t h) {
    const uint32_t exponent = h >> 10 & 31u, fraction = h & 0x3FFu, sign = uint32_t(h & 0x8000u) << 16;
    float value = float(fraction) * 0x1p-24f;
    if (exponent != 0) {
        const uint32_t bits = exponent == 31 ? 0x7F800000u | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
        std::memcpy(&value, &bits, 4);
    }
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
    std::memcpy(&value, &bits, 4);
    return value;
}

struct Q4Fit {
    Lanes scale, minimum, error;
};

// Least squares of scale and minimum for the nibbles that `inverse` and `origin` give, then both as f16.
void refit(const float (&x)[GROUP][LANES], const Lanes& inverse, const Lanes& origin, Q4Fit& fit) {
    Lanes sum_q{}, sum_qq{}, sum_x{}, sum_qx{};
    for (int i = 0; i < GROUP; ++i)
        for (int l = 0; l < LANES; ++l) {
            const float q = clamped(rounded((x[i][l] - origin[l]) * inverse[l]), 0.0f, 15.0f);
            sum_q[l] += q;
            sum_qq[l] += q * q;
            sum_x[l] += x[i][l];
            sum_qx[l] += q * x[i][l];
        }
    for (int l = 0; l < LANES; ++l) {
        const float spread = float(GROUP) * sum_qq[l] - sum_q[l] * sum_q[l];  // 0 when all nibbles are equal
        const float scale = spread > 0.0f ? (float(GROUP) * sum_qx[l] - sum_q[l] * sum_x[l]) / spread : 0.0f;
        fit.scale[l] = as_f16(scale);
        fit.minimum[l] = as_f16((sum_x[l] - fit.scale[l] * sum_q[l]) / float(GROUP));
    }
}

void inverse_of(const Lanes& scale, Lanes& inverse) {
    for (int l = 0; l < LANES; ++l) inverse[l] = scale[l] > 0.0f ? 1.0f / scale[l] : 0.0f;
}

float nibble(float x, float minimum, float inverse) { return clamped(rounded((x - minimum) * inverse), 0.0f, 15.0f); }

void measure(const float (&x)[GROUP][LANES], Q4Fit& fit) {
    Lanes inverse;
    inverse_of(fit.scale, inverse);
    std::memset(fit.error, 0, sizeof(fit.error));
    for (int i = 0; i < GROUP; ++i)
        for (int l = 0; l < LANES; ++l) {
            const float d = x[i][l] - (fit.scale[l] * nibble(x[i][l], fit.minimum[l], inverse[l]) + fit.minimum[l]);
            fit.error[l] += d * d;
        }
}

// Of the plain choice (the range over 15 steps) and least-squares fits that start from ranges a little shorter or longer,
// each lane keeps the one with the least squared error after its scale and minimum are f16.
Q4Fit best_fit(const float (&x)[GROUP][LANES]) {
    Lanes low, high;
    std::memcpy(low, x[0], sizeof(low));
    std::memcpy(high, x[0], sizeof(high));
    for (int i = 1; i < GROUP; ++i)
        for (int l = 0; l < LANES; ++l) {
            low[l] = x[i][l] < low[l] ? x[i][l] : low[l];
            high[l] = x[i][l] > high[l] ? x[i][l] : high[l];
        }
    Q4Fit best;
    for (int l = 0; l < LANES; ++l) {
        best.scale[l] = as_f16((high[l] - low[l]) / 15.0f);
        best.minimum[l] = as_f16(low[l]);
    }
    measure(x, best);
    for (const float steps : STEPS) {
        Lanes inverse, origin;
        for (int l = 0; l < LANES; ++l) {
            const float range = high[l] - low[l];
            inverse[l] = range > 0x1p-40f ? steps / range : 0.0f;
            origin[l] = 0.5f * (low[l] + high[l]) - range * (7.5f / steps);
        }
        for (int round = 0; round < 3; ++round) {
            Q4Fit fit;
            refit(x, inverse, origin, fit);
            measure(x, fit);
            for (int l = 0; l < LANES; ++l)
                if (fit.scale[l] >= 0.0f && fit.error[l] < best.error[l]) {
                    best.scale[l] = fit.scale[l];
                    best.minimum[l] = fit.minimum[l];
                    best.error[l] = fit.error[l];
                }
            inverse_of(fit.scale, inverse);
            std::memcpy(origin, fit.minimum, sizeof(origin));
        }
    }
    return best;
}

uint16_t read_u16(const uint8_t* p) {
    uint16_t value;
    std::memcpy(&value, p, 2);
    return value;
}
void write_u16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, 2); }

}  // namespace

bool quantise_q4(const float (&x)[32][16], int count, uint8_t* group) {
    for (int i = 0; i < GROUP; ++i)
        for (int l = 0; l < count; ++l)
            if (!(magnitude(x[i][l]) <= F16_MAX)) return false;  // NaN too
    const Q4Fit fit = best_fit(x);
    Lanes inverse;
    inverse_of(fit.scale, inverse);
    for (int l = 0; l < count; ++l) {
        for (int j = 0; j < 4; ++j)
            for (int i = 0; i < 4; ++i) {
                const float low = nibble(x[8 * j + i][l], fit.minimum[l], inverse[l]);
                const float high = nibble(x[8 * j + 4 + i][l], fit.minimum[l], inverse[l]);
                group[j * 64 + l * 4 + i] = uint8_t(uint32_t(low) | uint32_t(high) << 4);
            }
        write_u16(group + 256 + 2 * l, f16_bits(fit.scale[l]));
        write_u16(group + 288 + 2 * l, f16_bits(fit.minimum[l]));
    }
    return true;
}

bool quantise_q8(const float (&x)[32][16], int count, uint8_t* group) {
    for (int l = 0; l < count; ++l) {
        float largest = 0.0f;
        for (int i = 0; i < GROUP; ++i) {
            if (!(magnitude(x[i][l]) <= 0x1p96f)) return false;
            largest = magnitude(x[i][l]) > largest ? magnitude(x[i][l]) : largest;
        }
        const float scale = as_f16(largest / 127.0f), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        if (scale > F16_MAX) return false;
        for (int i = 0; i < GROUP; ++i)
            group[i / 4 * 64 + l * 4 + i % 4] = uint8_t(int(clamped(rounded(x[i][l] * inverse), -127.0f, 127.0f)) + 128);
        write_u16(group + 512 + 2 * l, f16_bits(scale));
    }
    return true;
}

uint16_t bf16_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return uint16_t(bits >> 16 | 0x40u);
    return uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

float element(Source source, const uint8_t* row, int64_t i) {
    float value;
    if (source == Source::f32) {
        std::memcpy(&value, row + 4 * i, 4);
        return value;
    }
    const uint16_t half = read_u16(row + 2 * i);
    if (source == Source::f16) return float_of(half);
    const uint32_t bits = uint32_t(half) << 16;
    std::memcpy(&value, &bits, 4);
    return value;
}

void dequantise_group(Source source, const uint8_t* row, int64_t group, float* out) {
    if (source == Source::q8_0) {
        const uint8_t* block = row + group * 34;
        for (int i = 0; i < GROUP; ++i) out[i] = float_of(read_u16(block)) * float(int8_t(block[2 + i]));
        return;
    }
    for (int i = 0; i < GROUP; ++i) out[i] = element(source, row, group * GROUP + i);
}

}  // namespace headrace
