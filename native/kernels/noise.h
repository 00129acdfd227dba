// The sampler's Gumbel noise: a pure function of (seed, sample index, position, token id).
//
//   mix64(x)     x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9; x = (x ^ x >> 27) * 0x94D049BB133111EB; x ^ x >> 31
//   triple32(x)  x = (x ^ x >> 17) * 0xED5AD4BB; x = (x ^ x >> 11) * 0xAC4C1B51; x = (x ^ x >> 15) * 0x31848BAB; x ^ x >> 14
//   key          mix64(mix64(seed + 0x9E3779B97F4A7C15) ^ (sample_index << 32 | position)), 64 bits
//   h(id)        triple32(triple32(id ^ low half of key) ^ high half of key), 32 bits
//   u            (h + 1/2) / 2^32, never 0 or 1
//   noise        -log(-log(u))
//
// All integers wrap. mix64 is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), triple32 C. Wellons' three-round hash.
// headrace.sampling.rng holds the same definition in NumPy; a change here changes every sampled token.
#pragma once
#include "ops/math.h"

namespace headrace {
namespace {

HR_INLINE uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

HR_INLINE uint64_t noise_key(uint64_t seed, uint32_t sample_index, uint32_t position) {
    return mix64(mix64(seed + 0x9E3779B97F4A7C15ull) ^ (uint64_t(sample_index) << 32 | position));
}

HR_INLINE I16 triple32(I16 x) {
    x = imul(ixor(x, ishr<17>(x)), iset1(0xED5AD4BBu));
    x = imul(ixor(x, ishr<11>(x)), iset1(0xAC4C1B51u));
    x = imul(ixor(x, ishr<15>(x)), iset1(0x31848BABu));
    return ixor(x, ishr<14>(x));
}

// (unsigned lane + 1/2) / 2^32, correctly rounded but for the half.
HR_INLINE V16 unit_interval(I16 h) {
    const V16 high = to_float(ishr<16>(h)), low = to_float(iand(h, iset1(0xFFFFu)));
    return mul(add(fma(high, set1(65536.0f), low), set1(0.5f)), set1(0x1p-32f));
}

HR_INLINE V16 gumbel_lanes(I16 ids, uint64_t key) {
    const I16 h = triple32(ixor(triple32(ixor(ids, iset1(uint32_t(key)))), iset1(uint32_t(key >> 32))));
    // u close to 1 carries the large noise, and a float has no room for it there: log(u) is then log1p(-(1 - u)), where 1 - u
    // comes exactly from the complement of h.
    const V16 rest = unit_interval(ixor(h, iset1(0xFFFFFFFFu)));
    V16 exponent, f;
    log_parts(unit_interval(h), exponent, f);
    const V16 quarter = set1(0.25f);
    exponent = select_lt(rest, quarter, zero(), exponent);
    f = select_lt(rest, quarter, sub(zero(), rest), f);
    const V16 exponential = sub(zero(), log_of_parts(exponent, f));
    return sub(zero(), vlog(exponential));
}

void gumbel(uint64_t seed, uint32_t sample_index, uint32_t position, const int32_t* ids, int64_t n, float* noise) {
    const uint64_t key = noise_key(seed, sample_index, position);
    int32_t buffer[16];
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t count = n - i < 16 ? n - i : 16;
        I16 lanes;
        if (ids == nullptr) {
            lanes = iadd(ilane_numbers(), iset1(uint32_t(i)));
        } else if (count == 16) {
            lanes = iload(ids + i);
        } else {
            for (int64_t j = 0; j < 16; ++j) buffer[j] = j < count ? ids[i + j] : 0;
            lanes = iload(buffer);
        }
        const V16 y = gumbel_lanes(lanes, key);
        if (count == 16) store(noise + i, y);
        else store_n(noise + i, y, count);
    }
}

}  // namespace
}  // namespace headrace
