// Attention of one query token, for all query heads of a KV head: online softmax (Milakov, Gimelshein 2018) in tiles of 64 keys
// and splits of 256 keys, both at absolute positions, so a token's result does not know how its prompt was chunked
// (NUMERICS.md "Attention"). A split starts from a fresh state; splits merge in ascending order (Flash-Decoding).
// Per tile: s = (q . k, fma over ascending d) * scale; m' = max(m, max s); p = exp(s - m'); c = exp(m - m');
//           l = l * c + sum p; o = o * c, then fma(p, v) over ascending keys.
// Keys after `position` never enter: their lanes are replaced before the max, their V rows are not read.
#pragma once
#include "prepare.h"

namespace headrace {
namespace {

constexpr int64_t TILE_TOKENS = 64, SPLIT_TOKENS = 256;
constexpr float NEGATIVE_INFINITY = -__builtin_huge_valf();

HR_INLINE float exp_scalar(float x) {
    float lanes[16];
    store(lanes, vexp(set1(x)));
    return lanes[0];
}

// -inf - -inf is no number: a state that has seen nothing must weigh nothing.
HR_INLINE float weight_of(float maximum, float new_maximum) {
    return maximum == NEGATIVE_INFINITY ? 0.0f : exp_scalar(maximum - new_maximum);
}

void kv_store(const KvGroup& kv, int64_t layer, int64_t kv_head, int64_t head_dim, int64_t block, int64_t offset, const float* k,
              const float* v) {
    float* base = kv.base + block * kv.block_stride + layer * kv.layer_stride + kv_head * kv.head_stride;
    float* keys = base + offset / 16 * 16 * head_dim + offset % 16;
    for (int64_t d = 0; d < head_dim; ++d) keys[d * 16] = k[d];
    float* values = base + kv.v_offset + offset * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) values[d] = v[d];
}

HR_INLINE int64_t padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

int64_t attention_scratch(int64_t group_heads, int64_t head_dim) {
    const int64_t heads = group_heads < ATTENTION_HEADS ? group_heads : ATTENTION_HEADS;
    return heads * (TILE_TOKENS + 2 * padded(head_dim));
}

template <int HB>
struct SoftmaxState { float maximum[HB], sum[HB]; };

// Up to 64 keys: where the four runs of 16 tokens lie, and how many keys count.
struct KeyTile { const float* keys[4]; const float* values[4]; int64_t count; };

HR_INLINE KeyTile find_tile(const AttentionArgs& args, int64_t start) {
    KeyTile tile;
    const int64_t left = args.position + 1 - start;
    tile.count = left < TILE_TOKENS ? left : TILE_TOKENS;
    const KvGroup& kv = *args.kv;
    const int64_t inside = args.layer * kv.layer_stride + args.kv_head * kv.head_stride;
    for (int64_t t = 0; t < 4; ++t) {
        if (t * 16 >= tile.count) {  // stands in for keys that are masked
            tile.keys[t] = tile.keys[0];
            tile.values[t] = tile.values[0];
            continue;
        }
        const int64_t token = start + t * 16;
        const float* base = kv.base + int64_t(args.table[token / kv.block_size]) * kv.block_stride + inside;
        const int64_t offset = token % kv.block_size * args.head_dim;
        tile.keys[t] = base + offset;
        tile.values[t] = base + kv.v_offset + offset;
    }
    return tile;
}

// Scores of TB runs of 16 keys from run t0 on: scores[h][16 * t + lane].
template <int HB, int TB>
HR_INLINE void score_runs(const AttentionArgs& args, const float* q, const KeyTile& tile, int t0, float* scores) {
    V16 acc[HB][TB];
    HR_UNROLL for (int h = 0; h < HB; ++h) HR_UNROLL for (int t = 0; t < TB; ++t) acc[h][t] = zero();
    for (int64_t d = 0; d < args.head_dim; ++d) {
        V16 keys[TB];
        HR_UNROLL for (int t = 0; t < TB; ++t) keys[t] = load(tile.keys[t0 + t] + d * 16);
        HR_UNROLL for (int h = 0; h < HB; ++h) {
            const V16 query = set1(q[h * args.head_dim + d]);
            HR_UNROLL for (int t = 0; t < TB; ++t) acc[h][t] = fma(query, keys[t], acc[h][t]);
        }
    }
    HR_UNROLL for (int h = 0; h < HB; ++h)
        HR_UNROLL for (int t = 0; t < TB; ++t)
            store(scores + h * TILE_TOKENS + (t0 + t) * 16, mul(acc[h][t], set1(args.scale)));
}

// out[h][d..] = out * factor[h] + sum over keys of p * v, for DB vectors of 16 dims (the last of `width` dims when DB is 1).
template <int HB, int DB>
HR_INLINE void weigh_values(const KeyTile& tile, const float* p, const float (&factor)[HB], int64_t head_dim, int64_t d, int64_t width,
                            float* out) {
    const int64_t stride = padded(head_dim);
    V16 acc[HB][DB];
    HR_UNROLL for (int h = 0; h < HB; ++h)
        HR_UNROLL for (int i = 0; i < DB; ++i) acc[h][i] = mul(load(out + h * stride + d + 16 * i), set1(factor[h]));
    for (int64_t first = 0; first < tile.count; first += 16) {
        const float* values = tile.values[first / 16] + d;
        const int64_t end = tile.count - first < 16 ? tile.count : first + 16;
        for (int64_t j = first; j < end; ++j, values += head_dim) {
            V16 v[DB];
            HR_UNROLL for (int i = 0; i < DB; ++i) v[i] = DB > 1 || width >= 16 ? load(values + 16 * i) : load_n(values, width);
            HR_UNROLL for (int h = 0; h < HB; ++h) {
                const V16 weight = set1(p[h * TILE_TOKENS + j]);
                HR_UNROLL for (int i = 0; i < DB; ++i) acc[h][i] = fma(weight, v[i], acc[h][i]);
            }
        }
    }
    HR_UNROLL for (int h = 0; h < HB; ++h)
        HR_UNROLL for (int i = 0; i < DB; ++i) store(out + h * stride + d + 16 * i, acc[h][i]);
}

template <int HB>
HR_INLINE void attend_tile(const AttentionArgs& args, const float* q, int64_t start, float* p, float* out, SoftmaxState<HB>& state) {
    const KeyTile tile = find_tile(args, start);
    for (int t = 0; t < 4; t += ATTENTION_VECTORS) score_runs<HB, ATTENTION_VECTORS>(args, q, tile, t, p);
    float factor[HB];
    for (int h = 0; h < HB; ++h) {
        V16 s[4];
        HR_UNROLL for (int t = 0; t < 4; ++t) {
            s[t] = load(p + h * TILE_TOKENS + 16 * t);
            if (tile.count < 16 * (t + 1))
                s[t] = select_lt(lane_numbers(), set1(float(tile.count - 16 * t)), s[t], set1(NEGATIVE_INFINITY));
        }
        const float maximum = hmax(max(set1(state.maximum[h]), max(max(s[0], s[1]), max(s[2], s[3]))));
        const V16 shift = set1(maximum == NEGATIVE_INFINITY ? 0.0f : maximum);
        HR_UNROLL for (int t = 0; t < 4; ++t) {
            s[t] = vexp(sub(s[t], shift));
            store(p + h * TILE_TOKENS + 16 * t, s[t]);
        }
        factor[h] = weight_of(state.maximum[h], maximum);
        state.sum[h] = state.sum[h] * factor[h] + hsum(add(add(s[0], s[1]), add(s[2], s[3])));
        state.maximum[h] = maximum;
    }
    int64_t d = 0;
    for (; d + 16 * ATTENTION_VECTORS <= args.head_dim; d += 16 * ATTENTION_VECTORS)
        weigh_values<HB, ATTENTION_VECTORS>(tile, p, factor, args.head_dim, d, 16, out);
    for (; d < args.head_dim; d += 16) weigh_values<HB, 1>(tile, p, factor, args.head_dim, d, args.head_dim - d, out);
}

template <int HB>
__attribute__((noinline)) void attend_heads(const AttentionArgs& args, int64_t head) {
    const int64_t stride = padded(args.head_dim);
    const float* q = args.q + head * args.head_dim;
    float* p = args.scratch;
    float* part = p + HB * TILE_TOKENS;
    float* total = part + HB * stride;
    SoftmaxState<HB> whole = {};
    for (int64_t split = 0; split <= args.position; split += SPLIT_TOKENS) {
        float* out = split == 0 ? total : part;
        for (int64_t i = 0; i < HB * stride; i += 16) store(out + i, zero());
        SoftmaxState<HB> state;
        for (int h = 0; h < HB; ++h) {
            state.maximum[h] = NEGATIVE_INFINITY;
            state.sum[h] = 0.0f;
        }
        const int64_t end = split + SPLIT_TOKENS;
        for (int64_t start = split; start < end && start <= args.position; start += TILE_TOKENS)
            attend_tile<HB>(args, q, start, p, out, state);
        if (split == 0) {
            whole = state;
            continue;
        }
        for (int h = 0; h < HB; ++h) {
            const float maximum = whole.maximum[h] > state.maximum[h] ? whole.maximum[h] : state.maximum[h];
            const float a = weight_of(whole.maximum[h], maximum), b = weight_of(state.maximum[h], maximum);
            whole.sum[h] = whole.sum[h] * a + state.sum[h] * b;
            whole.maximum[h] = maximum;
            for (int64_t d = 0; d < stride; d += 16) {
                const V16 scaled = mul(load(part + h * stride + d), set1(b));
                store(total + h * stride + d, fma(load(total + h * stride + d), set1(a), scaled));
            }
        }
    }
    for (int h = 0; h < HB; ++h) {
        const V16 inverse = set1(1.0f / whole.sum[h]);
        float* out = args.out + (head + h) * args.head_dim;
        for (int64_t d = 0; d < args.head_dim; d += 16)
            store_upto(out + d, mul(load(total + h * stride + d), inverse), args.head_dim - d);
    }
}

void attention(const AttentionArgs& args) {
    int64_t head = 0;
    while (head < args.group_heads) {
        const int64_t left = args.group_heads - head;
        if (ATTENTION_HEADS >= 4 && left >= 4) {
            attend_heads<ATTENTION_HEADS >= 4 ? 4 : 1>(args, head);
            head += 4;
        } else if (ATTENTION_HEADS >= 4 && left == 3) {
            attend_heads<ATTENTION_HEADS >= 4 ? 3 : 1>(args, head);
            head += 3;
        } else if (left >= 2) {
            attend_heads<2>(args, head);
            head += 2;
        } else {
            attend_heads<1>(args, head);
            head += 1;
        }
    }
}

}  // namespace
}  // namespace headrace
