// Keys and values as the cache stores them: float32 or bfloat16, widened exactly on every read. A value is rounded once, at
// write, to nearest even, and attention reads what was stored, the step's own tokens included (NUMERICS.md "Attention").
#pragma once
#include "prepare.h"

namespace headrace {
namespace {

struct Bf16 { uint16_t bits; };

HR_INLINE V16 load(const Bf16* p) { return load_bf16(reinterpret_cast<const uint8_t*>(p)); }
HR_INLINE V16 load_n(const Bf16* p, int64_t n) {
    float lanes[16] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = float_from_bf16(p[i].bits);
    return load(lanes);
}

HR_INLINE void convert(float x, float& out) { out = x; }
HR_INLINE void convert(float x, Bf16& out) {
    const uint32_t bits = bits_from_float(x);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    out.bits = uint16_t((bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : rounded);  // a NaN stays one
}

// The K tile [block_size / 16][head_dim][16] of one block, layer and head; its V tile [block_size][head_dim] is v_offset on.
template <class E>
HR_INLINE E* kv_tile(const KvGroup& kv, int64_t block, int64_t layer, int64_t kv_head) {
    return static_cast<E*>(kv.base) + block * kv.block_stride + layer * kv.layer_stride + kv_head * kv.head_stride;
}

template <class E>
void store_kv(E* tile, const KvGroup& kv, int64_t head_dim, int64_t offset, const float* k, const float* v) {
    E* keys = tile + offset / 16 * 16 * head_dim + offset % 16;
    for (int64_t d = 0; d < head_dim; ++d) convert(k[d], keys[d * 16]);
    E* values = tile + kv.v_offset + offset * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) convert(v[d], values[d]);
}

void kv_store(const KvGroup& kv, int64_t layer, int64_t kv_head, int64_t head_dim, int64_t block, int64_t offset, const float* k,
              const float* v) {
    if (kv.dtype == KvDtype::bf16)
        store_kv(kv_tile<Bf16>(kv, block, layer, kv_head), kv, head_dim, offset, k, v);
    else
        store_kv(kv_tile<float>(kv, block, layer, kv_head), kv, head_dim, offset, k, v);
}

// 64 keys: where the four runs of 16 tokens lie, and how many keys the first and the last query token attend.
template <class E>
struct KeyTile { const E* keys[4]; const E* values[4]; int64_t first_count, count; };

// `first_position` and `last_position` of the query tokens; the tile starts at key `start`, at most last_position.
template <class E>
HR_INLINE KeyTile<E> find_tile(const KvGroup& kv, const int32_t* table, int64_t layer, int64_t kv_head, int64_t head_dim,
                               int64_t start, int64_t first_position, int64_t last_position) {
    KeyTile<E> tile;
    tile.first_count = first_position + 1 - start;
    tile.count = last_position + 1 - start;
    if (tile.first_count > TILE_TOKENS) tile.first_count = TILE_TOKENS;
    if (tile.count > TILE_TOKENS) tile.count = TILE_TOKENS;
    for (int64_t t = 0; t < 4; ++t) {
        if (t * 16 >= tile.count) {  // stands in for keys that are masked
            tile.keys[t] = tile.keys[0];
            tile.values[t] = tile.values[0];
            continue;
        }
        const int64_t token = start + t * 16, offset = token % kv.block_size * head_dim;
        const E* base = kv_tile<E>(kv, table[token / kv.block_size], layer, kv_head) + offset;
        tile.keys[t] = base;
        tile.values[t] = base + kv.v_offset;
    }
    return tile;
}

// The tile as floats in `target` (2 * 64 * head_dim): worth it when several blocks of rows read it.
template <class E>
HR_INLINE KeyTile<float> widen_tile(const KeyTile<E>& tile, int64_t head_dim, float* target) {
    KeyTile<float> wide;
    wide.first_count = tile.first_count;
    wide.count = tile.count;
    const int64_t run = 16 * head_dim;
    for (int64_t t = 0; t < 4; ++t) {
        const bool there = t * 16 < tile.count;
        float* keys = target + (there ? t * run : 0);
        float* values = keys + 4 * run;
        wide.keys[t] = keys;
        wide.values[t] = values;
        if (!there) continue;
        for (int64_t i = 0; i < run; i += 16) {
            store(keys + i, load(tile.keys[t] + i));
            store(values + i, load(tile.values[t] + i));
        }
    }
    return wide;
}

}  // namespace
}  // namespace headrace
