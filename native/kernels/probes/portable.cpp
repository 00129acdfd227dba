#include "probes.h"

#include <cstring>

namespace headrace {
namespace {

using Floats = float __attribute__((vector_size(16)));
using Words = uint64_t __attribute__((vector_size(16)));

#if defined(__x86_64__)
#define HR_IN_REGISTER "+x"
#elif defined(__aarch64__)
#define HR_IN_REGISTER "+w"
#else
#define HR_IN_REGISTER "+m"
#endif

constexpr int CHAINS = 10;

void f32(int64_t rounds, float* sink) {
    Floats acc[CHAINS] = {}, x = {1e-9f, 1e-9f, 1e-9f, 1e-9f}, y = x;
    for (int c = 0; c < CHAINS; ++c) __asm__ volatile("" : HR_IN_REGISTER(acc[c]));  // else equal chains become one
    for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; ++c) acc[c] = acc[c] + x * y;
        __asm__ volatile("" ::: "memory");
    }
    for (int c = 0; c < CHAINS; ++c) *sink += acc[c][0];
}

void read(const uint8_t* data, size_t size, int64_t rounds, float* sink) {
    Words sum[4] = {};
    for (int64_t r = 0; r < rounds; ++r)
        for (size_t at = 0; at < size; at += 64)
#pragma GCC unroll 4
            for (size_t i = 0; i < 4; ++i) {
                Words word;
                std::memcpy(&word, data + at + 16 * i, sizeof word);
                sum[i] += word;
            }
    *sink += float((sum[0] + sum[1] + sum[2] + sum[3])[0]);
}

constexpr ProbeLoop LOOPS[] = {{"f32", 2 * 4 * CHAINS, f32}};
constexpr ProbeLevel LEVEL = {"portable", LOOPS, 1, read};

}  // namespace

const ProbeLevel* probes_portable() { return &LEVEL; }

}  // namespace headrace
