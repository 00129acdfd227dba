// One table of kernels per ISA level. The executor sees nothing else of native/kernels/.
// Every function works on the rows or blocks it is given; splitting work over threads is the executor's.
// None allocates; none throws. Results depend on the row alone (NUMERICS.md).
#pragma once
#include <cstddef>
#include <cstdint>
#include "plan.h"

namespace headrace {

struct LinearArgs {
    Format format;
    int64_t n, k;
    int k_segments;           // 1, 2, 4 or 8 partial sums over K (segment s: steps [s*G/S, (s+1)*G/S) of G), merged in a balanced tree
    const uint8_t* weight;    // packed
    const float* bias;        // [n] or null; with SILU_MUL the gate's n/2, then the up's
    uint32_t flags;           // LINEAR_RESIDUAL, LINEAR_SILU_MUL
    const uint8_t* act;       // prepared activation rows, `act_stride` bytes apart
    int64_t act_stride;
    float* const* out;        // [m] pointers to output rows
    int64_t m;
};

constexpr int64_t TILE_TOKENS = 64, SPLIT_TOKENS = 256;  // of attention, at absolute positions

struct AttentionArgs {        // consecutive query tokens of one sequence within one run of 16 positions, all query heads of one KV head
    const float* q;           // token i: [group_heads, head_dim] at q + i * q_stride, heads contiguous
    int64_t q_stride;
    int64_t num_tokens, group_heads, head_dim;
    int64_t position;         // of the first token; token i attends keys 0..position + i
    const int32_t* table;     // block ids
    const KvGroup* kv;
    int64_t layer, kv_head;
    float scale;
    float* scratch;           // attention_scratch(num_tokens * group_heads, head_dim) floats
};

struct Kernels {
    const char* isa;
    // Bytes of one prepared activation row; what prepare_row writes and linear reads.
    int64_t (*act_bytes)(Format, int64_t k);
    // Optional RMS norm (norm_weight null: none), then quantisation (q4, q8) or a copy (float formats).
    void (*prepare_row)(Format, const float* x, const float* norm_weight, float eps, int64_t k, uint8_t* act);
    // Output blocks [block_begin, block_end) of 16 columns (with SILU_MUL: of 16 gate + 16 up columns) for all m rows.
    void (*linear)(const LinearArgs&, int64_t block_begin, int64_t block_end);
    void (*embed_row)(Format, const uint8_t* weight, int64_t vocab, int64_t hidden, int64_t token, float* out);
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
    // NeoX halves: (x[i], x[i + rotary/2]) rotated by cos, sin pairs table[i]; dims past rotary stay.
    void (*rope)(float* x, const float* table_row, int64_t head_dim, int64_t rotary_dim);
    void (*kv_store)(const KvGroup&, int64_t layer, int64_t kv_head, int64_t head_dim, int64_t block, int64_t offset,
                     const float* k, const float* v);
    int64_t (*attention_scratch)(int64_t rows, int64_t head_dim);
    // All splits of the history; token i of out lies out_stride on.
    void (*attention)(const AttentionArgs&, float* out, int64_t out_stride);
    // The same in pieces: each split into a partial of attention_partial(num_tokens * group_heads, head_dim) floats, then the
    // partials of splits 0.. (partial_stride apart; overwritten) into out.
    int64_t (*attention_partial)(int64_t rows, int64_t head_dim);
    void (*attention_split)(const AttentionArgs&, int64_t split, float* partial);
    void (*attention_merge)(const AttentionArgs&, float* partials, int64_t partial_stride, float* out, int64_t out_stride);
    void (*silu_mul)(const float* gate, const float* up, float* out, int64_t n);
    void (*add)(const float* a, const float* b, float* out, int64_t n);
    // Sampler pieces, over fixed tiles of 1024 entries merged ascending.
    int64_t (*argmax)(const float* x, int64_t n);                  // ties: lowest index; NaN never wins
    float (*log_sum_exp)(const float* x, int64_t n);
    // noise[i] = -log(-log(u)), u from 32 bits of a hash of (seed, sample_index, position, ids[i] or i when ids is null)
    void (*gumbel)(uint64_t seed, uint32_t sample_index, uint32_t position, const int32_t* ids, int64_t n, float* noise);
};

// One per isa_*.cpp; a build for one architecture has only its own (select.cpp).
const Kernels& kernels_portable();
const Kernels& kernels_avx2();          // AVX2 + FMA + F16C
const Kernels& kernels_avx_vnni();      // AVX2 + FMA + F16C + AVX-VNNI
const Kernels& kernels_avx512_vnni();   // AVX-512 F/BW/VL/DQ + VNNI
const Kernels& kernels_neon();          // Armv8-A
const Kernels& kernels_neon_dotprod();  // Armv8.2-A + DotProd
const Kernels& kernels_neon_i8mm();     // Armv8.2-A + DotProd + I8MM

// The table for `name` ("" or null: the best this CPU runs). Null when the name is unknown or the CPU lacks it.
const Kernels* select_kernels(const char* name);
// Names of all levels this CPU can run, best first, null-terminated.
const char* const* available_isas();

// Packing from ggml blocks or plain elements (native/kernels/pack.cpp; portable). `row_order` (null: identity) gives for each
// packed output row the source row. Rows [row_begin, row_end) of the packed matrix start at a multiple of 16.
enum class Source : int32_t { q4_0 = 0, q4_1 = 1, q8_0 = 2, f16 = 3, bf16 = 4, f32 = 5 };
Format packed_format(Source);                                    // the lossless one
int64_t packed_bytes(Format, int64_t n, int64_t k);
int64_t source_row_bytes(Source, int64_t k);                     // -1 when k does not fit the format's group
// Whether pack_rows knows the way: without loss, floats to q8, q4 or bf16, q8_0 to q4.
bool can_pack(Source, Format target);
// Writes column blocks for packed rows block*16.. ; `first_block` and `block_step` place them (gate/up interleave: step 2).
// Returns false when a value cannot be represented: without loss a Q4_0 scale whose minimum overflows f16, else what is no
// number or beyond the format's range.
bool pack_rows(Source, Format target, const uint8_t* source, const int64_t* row_order, int64_t num_rows, int64_t k,
               uint8_t* packed, int64_t first_block, int64_t block_step);

// cos, sin of position * inv_freq[i] for positions [0, max_len), in fixed double arithmetic: the same bits on every machine.
void rope_table(const double* inv_freq, int64_t half, int64_t max_len, double attention_factor, float* out);

}  // namespace headrace
