// Activation rows as the linear kernels read them, and the RMS norm that may come before.
//
// Integer formats (q4, q8), k a multiple of 32:  int8 value[k]; f32 scale[k / 32]; then per group
//   q4: f32 scale * float(sum of the group's values)   (multiplies the weights' minimum)
//   q8: int32 -128 * (sum of the group's values)       (weights are stored as value + 128)
// A group's scale is absmax / 127, its values round-to-nearest-even(x * (1 / scale)). A group whose absmax is under 2^-100 is a
// zero group (scale 0, values 0): 1 / scale must be finite. A NaN or infinity anywhere in a group makes its scale NaN.
// Float formats: f32 value[k].
#pragma once
#include "math.h"

namespace headrace {
namespace {

constexpr int64_t GROUP = 32;

HR_INLINE bool is_integer_format(Format format) { return format == Format::q4 || format == Format::q8; }

int64_t act_bytes(Format format, int64_t k) {
    const int64_t bytes = is_integer_format(format) ? k + 8 * (k / GROUP) : 4 * k;
    return (bytes + 63) / 64 * 64;
}

HR_INLINE V16 load_upto(const float* p, int64_t n) { return n >= 16 ? load(p) : load_n(p, n); }
HR_INLINE void store_upto(float* p, V16 a, int64_t n) {
    if (n >= 16) store(p, a);
    else store_n(p, a, n);
}

HR_INLINE float inverse_rms(const float* x, float eps, int64_t n) {
    V16 squares = zero();
    for (int64_t i = 0; i < n; i += 16) {
        const V16 v = load_upto(x + i, n - i);
        squares = fma(v, v, squares);
    }
    return 1.0f / square_root(hsum(squares) / float(n) + eps);
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
    const V16 inverse = set1(inverse_rms(x, eps, n));
    for (int64_t i = 0; i < n; i += 16)
        store_upto(out + i, mul(mul(load_upto(x + i, n - i), inverse), load_upto(weight + i, n - i)), n - i);
}

HR_INLINE V16 absolute(V16 x) { return from_bits(iand(to_bits(x), iset1(0x7FFFFFFFu))); }

HR_INLINE void quantise_group(V16 a, V16 b, bool has_minimum, int8_t* values, uint8_t* scale_out, uint8_t* second_out) {
    const float poison = hsum(fma(b, zero(), mul(a, zero())));  // 0, or NaN
    const float absmax = hmax(max(absolute(a), absolute(b))) + poison;
    float scale = 0.0f, inverse = 0.0f;
    if (!(absmax < 0x1p-100f)) {
        scale = absmax / 127.0f;
        inverse = 1.0f / scale;
    }
    const I16 qa = round_to_int(mul(a, set1(inverse))), qb = round_to_int(mul(b, set1(inverse)));
    store_i8(values, qa);
    store_i8(values + 16, qb);
    const int32_t sum = ihsum(iadd(qa, qb));
    __builtin_memcpy(scale_out, &scale, 4);
    if (has_minimum) {
        const float scaled_sum = scale * float(sum);
        __builtin_memcpy(second_out, &scaled_sum, 4);
    } else {
        const uint32_t correction = 0u - 128u * uint32_t(sum);
        __builtin_memcpy(second_out, &correction, 4);
    }
}

void prepare_row(Format format, const float* x, const float* norm_weight, float eps, int64_t k, uint8_t* act) {
    const bool normed = norm_weight != nullptr;
    const V16 inverse = set1(normed ? inverse_rms(x, eps, k) : 1.0f);
    if (!is_integer_format(format)) {
        float* out = reinterpret_cast<float*>(act);
        for (int64_t i = 0; i < k; i += 16) {
            V16 v = load_upto(x + i, k - i);
            if (normed) v = mul(mul(v, inverse), load_upto(norm_weight + i, k - i));
            store_upto(out + i, v, k - i);
        }
        return;
    }
    const int64_t num_groups = k / GROUP;
    uint8_t* scales = act + k;
    uint8_t* seconds = scales + 4 * num_groups;
    for (int64_t g = 0; g < num_groups; ++g) {
        V16 a = load(x + g * GROUP), b = load(x + g * GROUP + 16);
        if (normed) {
            a = mul(mul(a, inverse), load(norm_weight + g * GROUP));
            b = mul(mul(b, inverse), load(norm_weight + g * GROUP + 16));
        }
        quantise_group(a, b, format == Format::q4, reinterpret_cast<int8_t*>(act) + g * GROUP, scales + 4 * g, seconds + 4 * g);
    }
}

}  // namespace
}  // namespace headrace
