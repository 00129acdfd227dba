// exp, log and silu of 16 lanes: Cephes polynomials (S. Moshier, single precision expf and logf) in fma, the one source for every
// kernel. Errors stay below 2 ulp. exp(0) is exactly 1.
#pragma once

namespace headrace {
namespace {

constexpr float ROUNDING_MAGIC = 12582912.0f;  // 1.5 * 2^23: adding it rounds |x| < 2^22 to the nearest integer, ties to even

// The rounded integer of each lane. No conversion instruction, so NaN and huge values are garbage, never undefined.
HR_INLINE I16 round_to_int(V16 x) { return isub(to_bits(add(x, set1(ROUNDING_MAGIC))), iset1(0x4B400000u)); }

// Zero below -86.5 (results under 2^-124 would be subnormal, which is slow), infinity above 88.72; NaN stays NaN.
HR_INLINE V16 vexp(V16 x) {
    const V16 low = set1(-86.5f);
    const V16 clamped = max(low, min(set1(89.0f), x));
    const V16 shifted = fma(clamped, set1(1.44269504088896341f), set1(ROUNDING_MAGIC));
    const V16 n = sub(shifted, set1(ROUNDING_MAGIC));
    V16 r = fma(n, set1(-0.693359375f), clamped);
    r = fma(n, set1(2.12194440e-4f), r);
    V16 y = set1(1.9875691500e-4f);
    y = fma(y, r, set1(1.3981999507e-3f));
    y = fma(y, r, set1(8.3334519073e-3f));
    y = fma(y, r, set1(4.1665795894e-2f));
    y = fma(y, r, set1(1.6666665459e-1f));
    y = fma(y, r, set1(5.0000001201e-1f));
    y = add(fma(y, mul(r, r), r), set1(1.0f));
    // 2^n in two factors: 2^128 has no float.
    const I16 half_exponent = iadd(isub(to_bits(shifted), iset1(0x4B400000u)), iset1(126));
    y = mul(mul(y, from_bits(ishl<23>(half_exponent))), set1(2.0f));
    return select_lt(x, low, zero(), y);
}

// exponent * ln 2 + log(1 + f), for f in [sqrt(1/2) - 1, sqrt(2) - 1].
HR_INLINE V16 log_of_parts(V16 exponent, V16 f) {
    const V16 f2 = mul(f, f);
    V16 y = set1(7.0376836292e-2f);
    y = fma(y, f, set1(-1.1514610310e-1f));
    y = fma(y, f, set1(1.1676998740e-1f));
    y = fma(y, f, set1(-1.2420140846e-1f));
    y = fma(y, f, set1(1.4249322787e-1f));
    y = fma(y, f, set1(-1.6668057665e-1f));
    y = fma(y, f, set1(2.0000714765e-1f));
    y = fma(y, f, set1(-2.4999993993e-1f));
    y = fma(y, f, set1(3.3333331174e-1f));
    y = mul(mul(y, f), f2);
    y = fma(exponent, set1(-2.12194440e-4f), y);
    y = fma(f2, set1(-0.5f), y);
    return fma(exponent, set1(0.693359375f), add(f, y));
}

HR_INLINE void log_parts(V16 x, V16& exponent, V16& f) {
    const I16 bits = to_bits(x);
    const I16 e = isar<23>(isub(bits, iset1(0x3F3504F3u)));  // sqrt(1/2): the mantissa lands in [sqrt(1/2), sqrt(2))
    exponent = to_float(e);
    f = sub(from_bits(isub(bits, ishl<23>(e))), set1(1.0f));
}

// For positive normal lanes.
HR_INLINE V16 vlog(V16 x) {
    V16 exponent, f;
    log_parts(x, exponent, f);
    return log_of_parts(exponent, f);
}

HR_INLINE V16 silu(V16 x) { return div(x, add(set1(1.0f), vexp(sub(zero(), x)))); }

}  // namespace
}  // namespace headrace
