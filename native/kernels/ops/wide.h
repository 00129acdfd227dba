// Integer products of many rows. What one row pays for a weight block is shared by all of them: the block's nibbles and scales
// are unpacked once, into a piece of memory that stays in the nearest caches, and a tile of WIDE_ROWS rows by WIDE_BLOCKS blocks
// keeps its dot products in registers, its sums in memory. The arithmetic of a row is that of linear.h, operation for operation.
#pragma once
#include "prepare.h"

namespace headrace {
namespace {

// Defaults for levels that bring none: a tile for 16 registers of 8 lanes, and a product with the scale in two operations.
#ifndef HR_WIDE_ROWS
#define HR_WIDE_ROWS 4
#define HR_WIDE_BLOCKS 1
#endif
#ifndef HR_SCALED_DOTS
using DotScale = V16;
HR_INLINE DotScale dot_scale(V16 scale) { return scale; }
HR_INLINE V16 scaled_q4(DotQ4 dot, DotScale scale) { return mul(to_float(result_q4(dot)), scale); }
HR_INLINE V16 scaled_q8(DotQ8 dot, DotScale scale) { return mul(to_float(dot), scale); }
#endif

constexpr int WIDE_ROWS = HR_WIDE_ROWS, WIDE_BLOCKS = HR_WIDE_BLOCKS;
constexpr int64_t WIDE_MINIMUM = 24;           // rows from which the preparation is worth its time
constexpr int64_t WIDE_PANEL = 8 * WIDE_ROWS;  // rows whose sums are carried from one piece of K to the next
constexpr int64_t WIDE_STEPS = 64;             // groups unpacked at a time

HR_INLINE void store_bytes(uint8_t* p, B64 a) { __builtin_memcpy(p, &a, 64); }

// Loads stay on their side: moved up, those of the sums would push dot products out of their registers.
HR_INLINE void keep_order() { asm volatile("" ::: "memory"); }

// 4-bit weights as bytes: 8 slices of 4 inputs for 16 lanes in ascending order, then f32 scales and minima.
struct WideQ4 {
    static constexpr bool UNPACKS = true;
    static constexpr int64_t PACKED_BYTES = 320, STEP_BYTES = 640;

    static HR_INLINE void unpack(const uint8_t* w, uint8_t* out) {
        HR_UNROLL for (int j = 0; j < 4; ++j) {
            const B64 bytes = load_bytes(w + 64 * j);
            store_bytes(out + 128 * j, low_nibbles(bytes));
            store_bytes(out + 128 * j + 64, high_nibbles(bytes));
        }
        store(reinterpret_cast<float*>(out + 512), load_f16(w + 256));
        store(reinterpret_cast<float*>(out + 576), load_f16(w + 288));
    }

    template <int MR, int NB>
    static HR_INLINE void accumulate(const uint8_t* w, int64_t block_bytes, const uint8_t* const (&act)[MR], int64_t k, int64_t g,
                                     float* sums) {
        DotQ4 dot[NB][MR];
        HR_UNROLL for (int b = 0; b < NB; ++b) HR_UNROLL for (int r = 0; r < MR; ++r) dot[b][r] = start_q4();
        HR_UNROLL for (int j = 0; j < 8; ++j) {
            B64 bytes[NB];
            HR_UNROLL for (int b = 0; b < NB; ++b) bytes[b] = load_bytes(w + b * block_bytes + 64 * j);
            HR_UNROLL for (int r = 0; r < MR; ++r) {
                const int8_t* a = reinterpret_cast<const int8_t*>(act[r]) + g * GROUP + 4 * j;
                HR_UNROLL for (int b = 0; b < NB; ++b) dot[b][r] = dot_q4(dot[b][r], bytes[b], a);
            }
        }
        keep_order();
        HR_UNROLL for (int b = 0; b < NB; ++b) {
            const float* rest = reinterpret_cast<const float*>(w + b * block_bytes + 512);
            const DotScale scale = dot_scale(load(rest));
            const V16 minimum = load(rest + 16);
            HR_UNROLL for (int r = 0; r < MR; ++r) {
                const uint8_t* meta = act[r] + k + 4 * g;
                float* sum = sums + (r * NB + b) * 16;
                const V16 product = fma(scaled_q4(dot[b][r], scale), set1(load_as<float>(meta)), load(sum));
                store(sum, fma(minimum, set1(load_as<float>(meta + k / 8)), product));
            }
        }
    }
};

struct WideQ8 {
    static constexpr bool UNPACKS = false;  // as packed
    static constexpr int64_t PACKED_BYTES = 544, STEP_BYTES = 544;

    static HR_INLINE void unpack(const uint8_t*, uint8_t*) {}

    template <int MR, int NB>
    static HR_INLINE void accumulate(const uint8_t* w, int64_t block_bytes, const uint8_t* const (&act)[MR], int64_t k, int64_t g,
                                     float* sums) {
        DotQ8 dot[NB][MR];
        HR_UNROLL for (int b = 0; b < NB; ++b)
            HR_UNROLL for (int r = 0; r < MR; ++r) dot[b][r] = start_q8(load_as<int32_t>(act[r] + k + k / 8 + 4 * g));
        HR_UNROLL for (int j = 0; j < 8; ++j) {
            B64 bytes[NB];
            HR_UNROLL for (int b = 0; b < NB; ++b) bytes[b] = load_bytes(w + b * block_bytes + 64 * j);
            HR_UNROLL for (int r = 0; r < MR; ++r) {
                const int8_t* a = reinterpret_cast<const int8_t*>(act[r]) + g * GROUP + 4 * j;
                HR_UNROLL for (int b = 0; b < NB; ++b) dot[b][r] = dot_q8(dot[b][r], bytes[b], a);
            }
        }
        keep_order();
        DotScale scale[NB];
        HR_UNROLL for (int b = 0; b < NB; ++b) scale[b] = dot_scale(load_f16(w + b * block_bytes + 512));
        HR_UNROLL for (int r = 0; r < MR; ++r) {
            const V16 a_scale = set1(load_as<float>(act[r] + k + 4 * g));
            HR_UNROLL for (int b = 0; b < NB; ++b) {
                float* sum = sums + (r * NB + b) * 16;
                store(sum, fma(scaled_q8(dot[b][r], scale[b]), a_scale, load(sum)));
            }
        }
    }
};

// Groups [begin, end) of MR rows with NB blocks, `block_bytes` apart, whose group `first` is at `w`, onto `sums` [MR][NB][16].
template <class F, int MR, int NB>
__attribute__((noinline)) void wide_tile(const LinearArgs& args, const uint8_t* w, int64_t block_bytes, int64_t first,
                                         int64_t begin, int64_t end, int64_t row, float* sums) {
    const uint8_t* act[MR];
    HR_UNROLL for (int r = 0; r < MR; ++r) act[r] = args.act + (row + r) * args.act_stride;
    for (int64_t g = begin; g < end; ++g)
        F::template accumulate<MR, NB>(w + (g - first) * F::STEP_BYTES, block_bytes, act, args.k, g, sums);
}

template <class F, int NB>
HR_INLINE void wide_rows(const LinearArgs& args, const uint8_t* w, int64_t block_bytes, int64_t first, int64_t begin, int64_t end,
                         int64_t row, int64_t count, float* sums) {
    int64_t r = 0;
    const auto rows = [&](int64_t done) { r += done; return sums + r * NB * 16; };
    float* at = sums;
    for (; r + WIDE_ROWS <= count; at = rows(WIDE_ROWS)) wide_tile<F, WIDE_ROWS, NB>(args, w, block_bytes, first, begin, end, row + r, at);
    if constexpr (WIDE_ROWS > 8)
        for (; r + 8 <= count; at = rows(8)) wide_tile<F, 8, NB>(args, w, block_bytes, first, begin, end, row + r, at);
    if constexpr (WIDE_ROWS > 4)
        for (; r + 4 <= count; at = rows(4)) wide_tile<F, 4, NB>(args, w, block_bytes, first, begin, end, row + r, at);
    for (; r + 2 <= count; at = rows(2)) wide_tile<F, 2, NB>(args, w, block_bytes, first, begin, end, row + r, at);
    for (; r < count; at = rows(1)) wide_tile<F, 1, NB>(args, w, block_bytes, first, begin, end, row + r, at);
}

// All rows of NB packed blocks from `block`; finish(row, y[NB]) takes each row's result.
template <class F, int NB, class Finish>
void wide_blocks(const LinearArgs& args, int64_t block, Finish&& finish) {
    constexpr int64_t UNPACKED_BYTES = WIDE_STEPS * F::STEP_BYTES;
    alignas(64) uint8_t unpacked[F::UNPACKS ? NB * UNPACKED_BYTES : 64];
    alignas(64) float sums[4][WIDE_PANEL * NB * 16];  // three levels of the segments' tree, then the running sums
    const int64_t groups = args.k / GROUP, packed_bytes = groups * F::PACKED_BYTES;
    const uint8_t* packed = args.weight + block * packed_bytes;
    const auto unpack = [&](int64_t begin, int64_t end) {
        for (int64_t b = 0; b < NB; ++b)
            for (int64_t g = begin; g < end; ++g)
                F::unpack(packed + b * packed_bytes + g * F::PACKED_BYTES, unpacked + b * UNPACKED_BYTES + (g - begin) * F::STEP_BYTES);
    };
    const bool fits = !F::UNPACKS || groups <= WIDE_STEPS;
    if (F::UNPACKS && fits) unpack(0, groups);
    const uint8_t* w = F::UNPACKS ? unpacked : packed;
    const int64_t block_bytes = F::UNPACKS ? UNPACKED_BYTES : packed_bytes;
    for (int64_t row = 0; row < args.m; row += WIDE_PANEL) {
        const int64_t count = args.m - row < WIDE_PANEL ? args.m - row : WIDE_PANEL, values = count * NB * 16;
        float* running = sums[3];
        for (int s = 0; s < args.k_segments; ++s) {
            for (int64_t i = 0; i < values; i += 16) store(running + i, zero());
            const int64_t end = groups * (s + 1) / args.k_segments;
            for (int64_t g = groups * s / args.k_segments; g < end;) {
                const int64_t piece_end = fits || end - g < WIDE_STEPS ? end : g + WIDE_STEPS;
                if (!fits) unpack(g, piece_end);
                wide_rows<F, NB>(args, w, block_bytes, fits ? 0 : g, g, piece_end, row, count, running);
                g = piece_end;
            }
            int level = 0;  // as product() of linear.h
            for (; (s >> level) & 1; ++level)
                for (int64_t i = 0; i < values; i += 16) store(running + i, add(load(sums[level] + i), load(running + i)));
            if (s + 1 == args.k_segments) break;
            for (int64_t i = 0; i < values; i += 16) store(sums[level] + i, load(running + i));
        }
        for (int64_t r = 0; r < count; ++r) {
            V16 y[NB];
            for (int b = 0; b < NB; ++b) y[b] = load(running + (r * NB + b) * 16);
            finish(row + r, y);
        }
    }
}

}  // namespace
}  // namespace headrace
