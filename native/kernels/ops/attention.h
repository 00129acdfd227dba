// Attention of consecutive query tokens, for all query heads of a KV head: online softmax (Milakov, Gimelshein 2018) in tiles of
// 64 keys and splits of 256 keys, both at absolute positions, so a token's result does not know how its prompt was chunked
// (NUMERICS.md "Attention"). A split starts from a fresh state; splits merge in ascending order (Flash-Decoding).
// Per row (token, head) and tile: s = (q . k, fma over ascending d) * scale; m' = max(m, max s); p = exp(s - m');
//           c = exp(m - m'); l = l * c + sum p; o = o * c, then fma(p, v) over ascending keys.
// Rows share the loads of a tile and nothing else: a row's arithmetic is the same in company and alone.
// Keys after a row's position never enter it: their lanes are replaced before the max, their V rows are not read.
#pragma once
#include "kv.h"

namespace headrace {
namespace {

constexpr float NEGATIVE_INFINITY = -__builtin_huge_valf();
constexpr float LARGEST_FLOAT = 3.40282347e38f;

HR_INLINE float exp_scalar(float x) {
    float lanes[16];
    store(lanes, vexp(set1(x)));
    return lanes[0];
}

// -inf - -inf is no number: a state that has seen nothing must weigh nothing.
HR_INLINE float weight_of(float maximum, float new_maximum) {
    return maximum == NEGATIVE_INFINITY ? 0.0f : exp_scalar(maximum - new_maximum);
}

HR_INLINE int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// Rows of a split before they are divided by their sums: [rows, padded(head_dim)], then maxima and sums. Both lists are read
// 16 lanes at a time from any row on.
struct Partial {
    float* out;
    float* maxima;
    float* sums;

    Partial(float* at, int64_t rows, int64_t head_dim)
        : out(at), maxima(at + rows * padded(head_dim)), sums(maxima + padded(rows) + 16) {}
};

int64_t attention_partial(int64_t rows, int64_t head_dim) { return rows * padded(head_dim) + 2 * (padded(rows) + 16); }

// Packed queries, weights of a block of rows, a widened tile, two partials.
int64_t attention_scratch(int64_t rows, int64_t head_dim) {
    return padded(rows * head_dim) + ATTENTION_ROWS * TILE_TOKENS + 2 * TILE_TOKENS * head_dim + 2 * attention_partial(rows, head_dim);
}

// Blocks of at most ATTENTION_ROWS rows, of even sizes: body(first row, rows).
template <class Body>
HR_INLINE void each_block(int64_t rows, Body&& body) {
    const int64_t num_blocks = (rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    const int64_t size = rows / num_blocks, larger = rows % num_blocks;
    for (int64_t block = 0, row = 0; block < num_blocks; ++block) {
        const int64_t count = size + (block < larger ? 1 : 0);
        body(row, count);
        row += count;
    }
}

// q of each block as [head_dim][rows of the block], so that a step over d reads one short run.
HR_INLINE void pack_queries(const AttentionArgs& args, float* packed) {
    each_block(args.num_tokens * args.group_heads, [&](int64_t first, int64_t count) {
        for (int64_t r = 0; r < count; ++r) {
            const int64_t row = first + r;
            const float* q = args.q + row / args.group_heads * args.q_stride + row % args.group_heads * args.head_dim;
            float* to = packed + first * args.head_dim + r;
            for (int64_t d = 0; d < args.head_dim; ++d) to[d * count] = q[d];
        }
    });
}

// Scores of TB runs of 16 keys from run t0 on: scores[h][16 * t + lane].
template <int HB, int TB, class E>
HR_INLINE void score_runs(const KeyTile<E>& tile, const float* q, int64_t head_dim, float scale, int t0, float* scores) {
    V16 acc[HB][TB];
    HR_UNROLL for (int h = 0; h < HB; ++h) HR_UNROLL for (int t = 0; t < TB; ++t) acc[h][t] = zero();
    for (int64_t d = 0; d < head_dim; ++d, q += HB) {
        V16 keys[TB];
        HR_UNROLL for (int t = 0; t < TB; ++t) keys[t] = load(tile.keys[t0 + t] + d * 16);
        HR_UNROLL for (int h = 0; h < HB; ++h) {
            const V16 query = set1(q[h]);
            HR_UNROLL for (int t = 0; t < TB; ++t) acc[h][t] = fma(query, keys[t], acc[h][t]);
        }
    }
    HR_UNROLL for (int h = 0; h < HB; ++h)
        HR_UNROLL for (int t = 0; t < TB; ++t) store(scores + h * TILE_TOKENS + (t0 + t) * 16, mul(acc[h][t], set1(scale)));
}

// out[h][d..] += p * v over keys [begin, end), ascending, for DB vectors of 16 dims (the last of `width` dims when DB is 1);
// with a factor per row, out is multiplied by it first.
template <int HB, int DB, class E>
HR_INLINE void weigh_values(const KeyTile<E>& tile, int64_t begin, int64_t end, const float* p, const float* factor, int64_t head_dim,
                            int64_t d, int64_t width, float* out) {
    const int64_t stride = padded(head_dim);
    V16 acc[HB][DB];
    HR_UNROLL for (int h = 0; h < HB; ++h) HR_UNROLL for (int i = 0; i < DB; ++i) acc[h][i] = load(out + h * stride + d + 16 * i);
    if (factor != nullptr) {
        HR_UNROLL for (int h = 0; h < HB; ++h) {
            const V16 scale = set1(factor[h]);
            HR_UNROLL for (int i = 0; i < DB; ++i) acc[h][i] = mul(acc[h][i], scale);
        }
    }
    for (int64_t j = begin; j < end;) {
        const E* values = tile.values[j / 16] + j % 16 * head_dim + d;
        const int64_t run_end = j / 16 * 16 + 16 < end ? j / 16 * 16 + 16 : end;
        for (; j < run_end; ++j, values += head_dim) {
            V16 v[DB];
            HR_UNROLL for (int i = 0; i < DB; ++i) v[i] = DB > 1 || width >= 16 ? load(values + 16 * i) : load_n(values, width);
            HR_UNROLL for (int h = 0; h < HB; ++h) {
                const V16 weight = set1(p[h * TILE_TOKENS + j]);
                HR_UNROLL for (int i = 0; i < DB; ++i) acc[h][i] = fma(weight, v[i], acc[h][i]);
            }
        }
    }
    HR_UNROLL for (int h = 0; h < HB; ++h) HR_UNROLL for (int i = 0; i < DB; ++i) store(out + h * stride + d + 16 * i, acc[h][i]);
}

template <int HB, class E>
HR_INLINE void weigh_rows(const KeyTile<E>& tile, int64_t begin, int64_t end, const float* p, const float* factor, int64_t head_dim,
                          float* out) {
    int64_t d = 0;
    for (; d + 16 * ATTENTION_VECTORS <= head_dim; d += 16 * ATTENTION_VECTORS)
        weigh_values<HB, ATTENTION_VECTORS>(tile, begin, end, p, factor, head_dim, d, 16, out);
    for (; d < head_dim; d += 16) weigh_values<HB, 1>(tile, begin, end, p, factor, head_dim, d, head_dim - d, out);
}

// One tile for rows [row, row + HB).
template <int HB, class E>
__attribute__((noinline)) void attend_block(const AttentionArgs& args, const KeyTile<E>& tile, const float* q, int64_t row, float* p,
                                            const Partial& state) {
    for (int t = 0; t < 4; t += ATTENTION_VECTORS)
        score_runs<HB, ATTENTION_VECTORS>(tile, q, args.head_dim, args.scale, t, p);
    int64_t counts[HB], fewest = TILE_TOKENS;
    for (int h = 0; h < HB; ++h) {
        const int64_t count = tile.first_count + (tile.count == tile.first_count ? 0 : (row + h) / args.group_heads);
        counts[h] = count < TILE_TOKENS ? count : TILE_TOKENS;
        if (counts[h] < fewest) fewest = counts[h];
    }
    float maxima[16] = {}, sums[16] = {}, factor[16];
    for (int h = 0; h < HB; ++h) {
        V16 s[4];
        HR_UNROLL for (int t = 0; t < 4; ++t) {
            s[t] = load(p + h * TILE_TOKENS + 16 * t);
            if (counts[h] < 16 * (t + 1))
                s[t] = select_lt(lane_numbers(), set1(float(counts[h] - 16 * t)), s[t], set1(NEGATIVE_INFINITY));
        }
        const float maximum = hmax(max(set1(state.maxima[row + h]), max(max(s[0], s[1]), max(s[2], s[3]))));
        const V16 shift = set1(maximum == NEGATIVE_INFINITY ? 0.0f : maximum);
        HR_UNROLL for (int t = 0; t < 4; ++t) {
            s[t] = vexp(sub(s[t], shift));
            store(p + h * TILE_TOKENS + 16 * t, s[t]);
        }
        maxima[h] = maximum;
        sums[h] = hsum(add(add(s[0], s[1]), add(s[2], s[3])));
    }
    // weight_of() for all rows at once.
    const V16 before = load(state.maxima + row), now = load(maxima);
    const V16 c = select_lt(before, set1(-LARGEST_FLOAT), zero(), vexp(sub(before, now)));
    store(factor, c);
    store_n(state.sums + row, add(mul(load(state.sums + row), c), load(sums)), HB);
    store_n(state.maxima + row, now, HB);
    float* out = state.out + row * padded(args.head_dim);
    weigh_rows<HB>(tile, 0, fewest, p, factor, args.head_dim, out);
    for (int h = 0; h < HB; ++h)
        if (counts[h] > fewest)
            weigh_rows<1>(tile, fewest, counts[h], p + h * TILE_TOKENS, nullptr, args.head_dim, out + h * padded(args.head_dim));
}

template <int HB, class E>
HR_INLINE void attend_rows(const AttentionArgs& args, const KeyTile<E>& tile, int64_t count, const float* q, int64_t row, float* p,
                           const Partial& state) {
    if constexpr (HB > 1) {
        if (count < HB) return attend_rows<HB - 1>(args, tile, count, q, row, p, state);
    }
    attend_block<HB>(args, tile, q, row, p, state);
}

template <class E>
HR_INLINE void attend_tile(const AttentionArgs& args, const KeyTile<E>& tile, const float* packed, float* p, const Partial& state) {
    each_block(args.num_tokens * args.group_heads, [&](int64_t row, int64_t count) {
        attend_rows<ATTENTION_ROWS>(args, tile, count, packed + row * args.head_dim, row, p, state);
    });
}

template <class E>
void attend_split(const AttentionArgs& args, int64_t split, float* partial) {
    const int64_t rows = args.num_tokens * args.group_heads, last = args.position + args.num_tokens - 1;
    const Partial state(partial, rows, args.head_dim);
    for (int64_t i = 0; i < rows * padded(args.head_dim); i += 16) store(state.out + i, zero());
    for (int64_t r = 0; r < rows + 16; r += 16) {
        store(state.maxima + r, set1(NEGATIVE_INFINITY));
        store(state.sums + r, zero());
    }
    const float* packed = args.scratch;
    float* p = args.scratch + padded(rows * args.head_dim);
    float* wide = p + ATTENTION_ROWS * TILE_TOKENS;
    const int64_t begin = split * SPLIT_TOKENS, end = begin + SPLIT_TOKENS;
    for (int64_t start = begin; start < end && start <= last; start += TILE_TOKENS) {
        const KeyTile<E> tile = find_tile<E>(*args.kv, args.table, args.layer, args.kv_head, args.head_dim, start, args.position, last);
        if constexpr (sizeof(E) < sizeof(float)) {
            if (rows > ATTENTION_ROWS) {
                attend_tile(args, widen_tile(tile, args.head_dim, wide), packed, p, state);
                continue;
            }
        }
        attend_tile(args, tile, packed, p, state);
    }
}

HR_INLINE void attend_split_any(const AttentionArgs& args, int64_t split, float* partial) {
    if (args.kv->dtype == KvDtype::bf16)
        attend_split<Bf16>(args, split, partial);
    else
        attend_split<float>(args, split, partial);
}

void merge_partial(const Partial& total, const Partial& part, int64_t rows, int64_t head_dim) {
    const int64_t stride = padded(head_dim);
    for (int64_t r = 0; r < rows; ++r) {
        const float maximum = total.maxima[r] > part.maxima[r] ? total.maxima[r] : part.maxima[r];
        const float a = weight_of(total.maxima[r], maximum), b = weight_of(part.maxima[r], maximum);
        total.sums[r] = total.sums[r] * a + part.sums[r] * b;
        total.maxima[r] = maximum;
        for (int64_t d = 0; d < stride; d += 16) {
            const V16 scaled = mul(load(part.out + r * stride + d), set1(b));
            store(total.out + r * stride + d, fma(load(total.out + r * stride + d), set1(a), scaled));
        }
    }
}

void write_rows(const AttentionArgs& args, const Partial& total, float* out, int64_t out_stride) {
    const int64_t stride = padded(args.head_dim);
    for (int64_t row = 0; row < args.num_tokens * args.group_heads; ++row) {
        const V16 inverse = set1(1.0f / total.sums[row]);
        float* to = out + row / args.group_heads * out_stride + row % args.group_heads * args.head_dim;
        for (int64_t d = 0; d < args.head_dim; d += 16)
            store_upto(to + d, mul(load(total.out + row * stride + d), inverse), args.head_dim - d);
    }
}

void attention_split(const AttentionArgs& args, int64_t split, float* partial) {
    pack_queries(args, args.scratch);
    attend_split_any(args, split, partial);
}

void attention_merge(const AttentionArgs& args, float* partials, int64_t partial_stride, float* out, int64_t out_stride) {
    const int64_t rows = args.num_tokens * args.group_heads;
    const Partial total(partials, rows, args.head_dim);
    for (int64_t split = 1; split <= args.position / SPLIT_TOKENS; ++split)
        merge_partial(total, Partial(partials + split * partial_stride, rows, args.head_dim), rows, args.head_dim);
    write_rows(args, total, out, out_stride);
}

void attention(const AttentionArgs& args, float* out, int64_t out_stride) {
    const int64_t rows = args.num_tokens * args.group_heads, size = attention_partial(rows, args.head_dim);
    float* first = args.scratch + attention_scratch(rows, args.head_dim) - 2 * size;
    const Partial total(first, rows, args.head_dim), part(first + size, rows, args.head_dim);
    pack_queries(args, args.scratch);
    attend_split_any(args, 0, total.out);
    for (int64_t split = 1; split <= args.position / SPLIT_TOKENS; ++split) {
        attend_split_any(args, split, part.out);
        merge_partial(total, part, rows, args.head_dim);
    }
    write_rows(args, total, out, out_stride);
}

}  // namespace
}  // namespace headrace
