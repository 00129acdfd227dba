// The record of one call in a plan, and the numbers of the ops: the border between Python's lowering
// (headrace.kernels.cpu) and the native executor. A change here is a change of PLAN_VERSION.
#pragma once
#include <cstdint>

namespace headrace {

constexpr uint32_t PLAN_VERSION = 1;
constexpr int32_t QUERY_TOKENS = 16;  // most query tokens of one attention call; they lie in one run of as many positions

// Packed weight formats (NUMERICS.md "Linear"). Lane = output column, 16 lanes to a block.
//   q4    groups of 32 inputs: 16 outputs x 32 inputs in 320 bytes:
//         256 bytes of nibbles: byte j*64 + lane*4 + i holds input 8j+i (low) and 8j+4+i (high), j=0..3, i=0..3
//         then 16 f16 scales, then 16 f16 minima; weight = scale * nibble + minimum
//   q8    groups of 32 inputs: 16 outputs x 32 inputs in 544 bytes:
//         512 bytes: byte j*64 + lane*4 + i holds input 4j+i as value + 128, j=0..7; then 16 f16 scales
//   f16, bf16, f32   [N/16][K][16] elements; arithmetic is f32 fma over ascending K
// A matrix is [ceil(N/16)] column blocks, each block its groups (or K rows) in ascending order; padding lanes are zero.
enum class Format : int32_t { q4 = 0, q8 = 1, f16 = 2, bf16 = 3, f32 = 4 };

// Activations and logits are f32; calls run in order, each complete before the next begins. T = tokens of the step, R = its logits rows. Strides count elements.
enum class Op : uint32_t {
    embed = 1,        // ptr0 packed weight, ptr1 out [T, hidden], ptr2 overlay f32 [*, hidden] or 0 | dim: vocab, hidden, format,
                      // overlay rows (0: none)
    linear = 2,       // ptr0 in, ptr1 out, ptr2 packed weight, ptr3 norm weight f32 [K] or 0, ptr4 bias f32 [N] or 0
                      // dim: N, K, format, in_stride, out_stride, k_segments | scalar0 = eps of the norm | flags below
    rms_norm = 3,     // ptr0 in, ptr1 out, ptr2 weight f32 [width] | dim: width, num_vectors per row, in_stride, out_stride | scalar0 eps
    rope = 4,         // ptr0 x (in place), ptr1 table f32 [max_len, rotary/2, 2] (cos, sin) | dim: num_heads, head_dim, rotary_dim, stride
    kv_store = 5,     // ptr0 k, ptr1 v | dim: group, layer in group, num_kv_heads, head_dim, k_stride, v_stride
    attention = 6,    // ptr0 q, ptr1 out | dim: group, layer in group, num_heads, num_kv_heads, head_dim, q_stride, out_stride | scalar0 scale
    silu_mul = 7,     // ptr0 gate, ptr1 up, ptr2 out | dim: width, gate_stride, up_stride, out_stride
    add = 8,          // ptr0 a, ptr1 b, ptr2 out | dim: width, a_stride, b_stride, out_stride
    qkv_prepare = 9,  // fused head norms, rope and kv_store on one qkv buffer, q in place:
                      // ptr0 qkv [T, (H + 2 KVH) * D] (q, then k, then v), ptr1 rope table, ptr2 q norm f32 [D] or 0, ptr3 k norm or 0
                      // dim: group, layer in group, num_heads, num_kv_heads, head_dim, rotary_dim, stride | scalar0 eps
    tap = 10,         // ptr0 in [T, width], ptr1 out [max_num_seqs, width]: each entry's last token to its row | dim: width, in_stride
    gate = 11,        // dim0 gate index: publish (step, index); if the header asks, wait until the gate counter >= header's target
    sample = 12,      // ptr0 logits [R, vocab] | dim: vocab
};

// Flags of Op::linear
constexpr uint32_t LINEAR_RESIDUAL = 1;     // out += in @ W (out holds the residual)
constexpr uint32_t LINEAR_SILU_MUL = 2;     // W holds gate and up in alternating blocks of 16 outputs; out [*, N/2] = silu(gate) * up
constexpr uint32_t LINEAR_LOGITS_ROWS = 4;  // rows are the step's logits rows: row r reads token header.logits_rows[r], writes out row r

struct Call {           // 232 bytes, little-endian, no padding; headrace.kernels.cpu.CALL_DTYPE mirrors it
    uint32_t op;
    uint32_t flags;
    uint64_t ptr[12];   // addresses; 0 = absent
    int64_t dim[12];
    double scalar[4];
};
static_assert(sizeof(Call) == 232);

// A layer group's KV memory (headrace.cache.LayerGroupSpec): element strides, so any layout can be told.
//   K of (block, layer, head): base + block*block_stride + layer*layer_stride + head*head_stride, tile [block_size/16][head_dim][16 tokens]
//   V of the same: + v_offset, tile [block_size][head_dim]
enum class KvDtype : int32_t { f32 = 0, bf16 = 1 };

struct KvGroup {
    void* base;
    int64_t num_blocks, block_size, block_stride, layer_stride, head_stride, v_offset;
    KvDtype dtype;
};

constexpr int64_t element_bytes(KvDtype dtype) { return dtype == KvDtype::bf16 ? 2 : 4; }

}  // namespace headrace
