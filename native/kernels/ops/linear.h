// Matrix products over packed weights (formats in plan.h). Lane = output column; a row's arithmetic is the same whatever the
// number of rows, the block range and the tile it falls in (NUMERICS.md "Linear"):
//   q4, q8           per group, ascending: acc = fma(float(dot) * w_scale, a_scale, acc); q4 then acc = fma(w_min, a_scale * sum, acc)
//   f16, bf16, f32   acc = fma(a[k], w[k], acc), ascending
// One chain per K segment, each from zero; segments merge in a balanced tree. Then bias, then silu(gate) * up or the residual.
#pragma once
#include "wide.h"

namespace headrace {
namespace {

constexpr int64_t PREFETCH_BYTES = 2560;

// Weight bytes `ahead` of the reader in each of `streams` neighbouring blocks; past a block's end they belong to the next blocks.
HR_INLINE void prefetch_weights(const uint8_t* at, int64_t used, int64_t block_bytes, int streams, int64_t bytes) {
    const int64_t skip = used + PREFETCH_BYTES >= block_bytes ? (streams - 1) * block_bytes : 0;
    const uintptr_t target = uintptr_t(at) + uintptr_t(PREFETCH_BYTES + skip);
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(reinterpret_cast<const void*>(target + uintptr_t(line)));
}

struct Q4 {
    static constexpr int64_t STEP = GROUP, STEP_BYTES = 320;

    template <int MR>
    static HR_INLINE void accumulate(const uint8_t* w, const uint8_t* const (&act)[MR], int64_t k, int64_t g, V16 (&acc)[MR]) {
        DotQ4 dot[MR];
        HR_UNROLL for (int r = 0; r < MR; ++r) dot[r] = start_q4();
        HR_UNROLL for (int j = 0; j < 4; ++j) {
            const B64 bytes = load_bytes(w + 64 * j);
            const B64 low = low_nibbles(bytes), high = high_nibbles(bytes);
            HR_UNROLL for (int r = 0; r < MR; ++r) {
                const int8_t* a = reinterpret_cast<const int8_t*>(act[r]) + g * GROUP + 8 * j;
                dot[r] = dot_q4(dot_q4(dot[r], low, a), high, a + 4);
            }
        }
        const DotScale scale = dot_scale(load_f16(w + 256));
        const V16 minimum = load_f16(w + 288);
        HR_UNROLL for (int r = 0; r < MR; ++r) {
            const uint8_t* meta = act[r] + k + 4 * g;
            acc[r] = fma(scaled_q4(dot[r], scale), set1(load_as<float>(meta)), acc[r]);
            acc[r] = fma(minimum, set1(load_as<float>(meta + k / 8)), acc[r]);
        }
    }
};

struct Q8 {
    static constexpr int64_t STEP = GROUP, STEP_BYTES = 544;

    template <int MR>
    static HR_INLINE void accumulate(const uint8_t* w, const uint8_t* const (&act)[MR], int64_t k, int64_t g, V16 (&acc)[MR]) {
        DotQ8 dot[MR];
        HR_UNROLL for (int r = 0; r < MR; ++r) dot[r] = start_q8(load_as<int32_t>(act[r] + k + k / 8 + 4 * g));
        HR_UNROLL for (int j = 0; j < 8; ++j) {
            const B64 bytes = load_bytes(w + 64 * j);
            HR_UNROLL for (int r = 0; r < MR; ++r)
                dot[r] = dot_q8(dot[r], bytes, reinterpret_cast<const int8_t*>(act[r]) + g * GROUP + 4 * j);
        }
        const DotScale scale = dot_scale(load_f16(w + 512));
        HR_UNROLL for (int r = 0; r < MR; ++r) {
            acc[r] = fma(scaled_q8(dot[r], scale), set1(load_as<float>(act[r] + k + 4 * g)), acc[r]);
        }
    }
};

template <int64_t BYTES, V16 (*LOAD)(const uint8_t*)>
struct Elements {
    static constexpr int64_t STEP = 1, STEP_BYTES = BYTES;

    template <int MR>
    static HR_INLINE void accumulate(const uint8_t* w, const uint8_t* const (&act)[MR], int64_t, int64_t i, V16 (&acc)[MR]) {
        const V16 weight = LOAD(w);
        HR_UNROLL for (int r = 0; r < MR; ++r) acc[r] = fma(set1(load_as<float>(act[r] + 4 * i)), weight, acc[r]);
    }
};

HR_INLINE V16 load_f32(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
using F16 = Elements<32, load_f16>;
using BF16 = Elements<32, load_bf16>;
using F32 = Elements<64, load_f32>;

// Steps [begin, end) of NB neighbouring packed blocks for MR rows, from zero.
template <class F, int MR, int NB>
HR_INLINE void segment(const uint8_t* weight, int64_t k, const uint8_t* const (&act)[MR], int64_t begin, int64_t end,
                       V16 (&out)[NB][MR]) {
    const int64_t block_bytes = k / F::STEP * F::STEP_BYTES;
    V16 acc[NB][MR];
    HR_UNROLL for (int b = 0; b < NB; ++b) HR_UNROLL for (int r = 0; r < MR; ++r) acc[b][r] = zero();
    for (int64_t i = begin; i < end; ++i) {
        const uint8_t* w = weight + i * F::STEP_BYTES;
        HR_UNROLL for (int b = 0; b < NB; ++b) {
            if (MR <= 2) prefetch_weights(w + b * block_bytes, i * F::STEP_BYTES, block_bytes, NB, F::STEP_BYTES);
            F::template accumulate<MR>(w + b * block_bytes, act, k, i, acc[b]);
        }
    }
    HR_UNROLL for (int b = 0; b < NB; ++b) HR_UNROLL for (int r = 0; r < MR; ++r) out[b][r] = acc[b][r];
}

// All K of the tile. num_segments is a power of two, at most 8; the binary counter builds the balanced tree.
template <class F, int MR, int NB>
HR_INLINE void product(const LinearArgs& args, const uint8_t* weight, const uint8_t* const (&act)[MR], V16 (&out)[NB][MR]) {
    const int64_t steps = args.k / F::STEP;
    V16 pending[3][NB][MR];
    for (int s = 0; s < args.k_segments; ++s) {
        segment<F, MR, NB>(weight, args.k, act, steps * s / args.k_segments, steps * (s + 1) / args.k_segments, out);
        int level = 0;
        for (; (s >> level) & 1; ++level)
            for (int b = 0; b < NB; ++b)
                for (int r = 0; r < MR; ++r) out[b][r] = add(pending[level][b][r], out[b][r]);
        if (s + 1 == args.k_segments) break;
        for (int b = 0; b < NB; ++b)
            for (int r = 0; r < MR; ++r) pending[level][b][r] = out[b][r];
    }
}

// Finishes packed block `block` (of gate and up pairs: pair `block`) for one row.
HR_INLINE void finish(const LinearArgs& args, int64_t block, float* out, V16 y) {
    const int64_t column = block * 16, count = args.n - column;
    if (args.bias != nullptr) y = add(y, load_upto(args.bias + column, count));
    if (args.flags & LINEAR_RESIDUAL) y = add(load_upto(out + column, count), y);
    store_upto(out + column, y, count);
}

HR_INLINE void finish_pair(const LinearArgs& args, int64_t block, float* out, V16 gate, V16 up) {
    const int64_t column = block * 16, width = args.n / 2, count = width - column;
    if (args.bias != nullptr) {
        gate = add(gate, load_upto(args.bias + column, count));
        up = add(up, load_upto(args.bias + width + column, count));
    }
    V16 y = mul(silu(gate), up);
    if (args.flags & LINEAR_RESIDUAL) y = add(load_upto(out + column, count), y);
    store_upto(out + column, y, count);
}

template <class F, int MR, int NB>
__attribute__((noinline)) void tile(const LinearArgs& args, int64_t block, int64_t row) {
    const uint8_t* weight = args.weight + block * (args.k / F::STEP * F::STEP_BYTES);
    const uint8_t* act[MR];
    HR_UNROLL for (int r = 0; r < MR; ++r) act[r] = args.act + (row + r) * args.act_stride;
    V16 y[NB][MR];
    product<F, MR, NB>(args, weight, act, y);
    for (int r = 0; r < MR; ++r) {
        if (args.flags & LINEAR_SILU_MUL) {
            for (int b = 0; b + 1 < NB; b += 2) finish_pair(args, (block + b) / 2, args.out[row + r], y[b][r], y[b + 1][r]);
        } else {
            for (int b = 0; b < NB; ++b) finish(args, block + b, args.out[row + r], y[b][r]);
        }
    }
}

// All rows of NB packed blocks: the weights come from memory once, later row tiles find them in the cache.
template <class F, int NB>
HR_INLINE void all_rows(const LinearArgs& args, int64_t block) {
    int64_t row = 0;
    if constexpr (ROW_BLOCK >= 8)
        for (; row + 8 <= args.m; row += 8) tile<F, 8, NB>(args, block, row);
    if constexpr (ROW_BLOCK >= 4)
        for (; row + 4 <= args.m; row += 4) tile<F, 4, NB>(args, block, row);
    for (; row + 2 <= args.m; row += 2) tile<F, 2, NB>(args, block, row);
    for (; row < args.m; ++row) tile<F, 1, NB>(args, block, row);
}

template <class F>
struct WideOf { static constexpr bool exists = false; };
template <>
struct WideOf<Q4> { static constexpr bool exists = true; using Type = WideQ4; };
template <>
struct WideOf<Q8> { static constexpr bool exists = true; using Type = WideQ8; };

template <class F, int NB>
HR_INLINE void many_rows(const LinearArgs& args, int64_t block) {
    wide_blocks<F, NB>(args, block, [&](int64_t row, const V16 (&y)[NB]) {
        for (int b = 0; b < NB; ++b) finish(args, block + b, args.out[row], y[b]);
    });
}

template <class F>
HR_INLINE void many_rows_pair(const LinearArgs& args, int64_t block) {
    wide_blocks<F, 2>(args, block, [&](int64_t row, const V16 (&y)[2]) { finish_pair(args, block / 2, args.out[row], y[0], y[1]); });
}

template <class F>
void linear_format(const LinearArgs& args, int64_t begin, int64_t end) {
    int64_t block = begin;
    if constexpr (WideOf<F>::exists) {
        if (args.m >= WIDE_MINIMUM) {
            using Wide = typename WideOf<F>::Type;
            if (args.flags & LINEAR_SILU_MUL) {
                for (; block < end; block += 2) many_rows_pair<Wide>(args, block);
            } else {
                for (; block + WIDE_BLOCKS <= end; block += WIDE_BLOCKS) many_rows<Wide, WIDE_BLOCKS>(args, block);
                for (; block < end; ++block) many_rows<Wide, 1>(args, block);
            }
            return;
        }
    }
    // A single row of elements has one short chain per block: more blocks in flight hide its latency.
    if (F::STEP == 1 && args.m == 1)
        for (; block + 4 <= end; block += 4) tile<F, 1, 4>(args, block, 0);
    for (; block + 2 <= end; block += 2) all_rows<F, 2>(args, block);
    for (; block < end; ++block) all_rows<F, 1>(args, block);
}

void linear(const LinearArgs& args, int64_t block_begin, int64_t block_end) {
    const int64_t per_block = args.flags & LINEAR_SILU_MUL ? 2 : 1;
    const int64_t begin = block_begin * per_block, end = block_end * per_block;
    switch (args.format) {
        case Format::q4: linear_format<Q4>(args, begin, end); break;
        case Format::q8: linear_format<Q8>(args, begin, end); break;
        case Format::f16: linear_format<F16>(args, begin, end); break;
        case Format::bf16: linear_format<BF16>(args, begin, end); break;
        case Format::f32: linear_format<F32>(args, begin, end); break;
    }
}

// Row `token` of a packed matrix. scale * nibble is exact in f32 (15 bits), so one rounding remains: the bits of ggml's dequantiser.
void embed_row(Format format, const uint8_t* weight, int64_t, int64_t hidden, int64_t token, float* out) {
    const int64_t block = token / 16, lane = token % 16;
    switch (format) {
        case Format::q4:
            for (int64_t g = 0; g < hidden / GROUP; ++g) {
                const uint8_t* w = weight + (block * (hidden / GROUP) + g) * Q4::STEP_BYTES;
                const float scale = float_from_f16(load_as<uint16_t>(w + 256 + 2 * lane));
                const float minimum = float_from_f16(load_as<uint16_t>(w + 288 + 2 * lane));
                for (int64_t j = 0; j < 4; ++j)
                    for (int64_t i = 0; i < 4; ++i) {
                        const uint8_t byte = w[j * 64 + lane * 4 + i];
                        out[g * GROUP + 8 * j + i] = scale * float(byte & 15) + minimum;
                        out[g * GROUP + 8 * j + 4 + i] = scale * float(byte >> 4) + minimum;
                    }
            }
            break;
        case Format::q8:
            for (int64_t g = 0; g < hidden / GROUP; ++g) {
                const uint8_t* w = weight + (block * (hidden / GROUP) + g) * Q8::STEP_BYTES;
                const float scale = float_from_f16(load_as<uint16_t>(w + 512 + 2 * lane));
                for (int64_t j = 0; j < 8; ++j)
                    for (int64_t i = 0; i < 4; ++i) out[g * GROUP + 4 * j + i] = scale * float(int(w[j * 64 + lane * 4 + i]) - 128);
            }
            break;
        case Format::f16:
            for (int64_t i = 0; i < hidden; ++i) out[i] = float_from_f16(load_as<uint16_t>(weight + 2 * ((block * hidden + i) * 16 + lane)));
            break;
        case Format::bf16:
            for (int64_t i = 0; i < hidden; ++i) out[i] = float_from_bf16(load_as<uint16_t>(weight + 2 * ((block * hidden + i) * 16 + lane)));
            break;
        case Format::f32:
            for (int64_t i = 0; i < hidden; ++i) out[i] = load_as<float>(weight + 4 * ((block * hidden + i) * 16 + lane));
            break;
    }
}

}  // namespace
}  // namespace headrace
