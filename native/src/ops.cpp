#include "ops.h"

#include <algorithm>
#include <limits>

namespace headrace {
namespace {

int64_t num_output_blocks(const Call& c) {
    const int64_t columns = c.flags & LINEAR_SILU_MUL ? c.dim[0] / 2 : c.dim[0];
    return (columns + 15) / 16;
}

// In place, a thread that is late would prepare rows that another has overwritten.
bool overlaps(const Call& c, int64_t num_rows) {
    const uint64_t in_end = c.ptr[0] + static_cast<uint64_t>(num_rows * c.dim[3]) * sizeof(float);
    const uint64_t out_end = c.ptr[1] + static_cast<uint64_t>(num_rows * c.dim[4]) * sizeof(float);
    return c.ptr[0] < out_end && c.ptr[1] < in_end;
}

// Units that are tokens; a claim is worth about a thousand values.
Phase tokens_phase(const StepContext& x, int phase, int64_t values_per_token) {
    if (phase != 0) return {};
    return {x.step->num_tokens, std::max<int64_t>(1, 1024 / values_per_token)};
}

template <class Body>
void each_token(const Share& share, Body&& body) {
    for (int64_t t = share.begin; t < share.end; ++t) body(static_cast<size_t>(t));
}

void run_embed(const StepContext& x, const Call& c, const Share& share) {
    const int64_t hidden = c.dim[1];
    each_token(share, [&](size_t t) {
        float* out = floats(c.ptr[1]) + static_cast<int64_t>(t) * hidden;
        const int64_t row = x.step->token_row[t];
        if (x.step->token_overlay[t] >= 0) {
            std::copy_n(const_floats(c.ptr[2]) + x.step->token_overlay[t] * hidden, hidden, out);
        } else {
            const int64_t token = row < 0 ? 0 : x.rows->tokens_of(row)[x.step->token_position[t]];
            x.kernels->embed_row(static_cast<Format>(c.dim[2]), reinterpret_cast<const uint8_t*>(c.ptr[0]), c.dim[0], hidden,
                                 token, out);
        }
    });
}

int64_t num_linear_rows(const StepContext& x, const Call& c) {
    return c.flags & LINEAR_LOGITS_ROWS ? x.step->num_logits_rows : x.step->num_tokens;
}

// Whether each thread prepares all rows for itself, which spares a phase.
bool prepares_all(const StepContext& x, const Call& c, int64_t num_rows) {
    return (num_rows == 1 || num_rows * c.dim[1] <= OWN_PREPARE_VALUES) && (x.threads.size() == 1 || !overlaps(c, num_rows));
}

Phase linear_phase(const StepContext& x, const Call& c, int phase) {
    const int64_t num_rows = num_linear_rows(x, c), k = c.dim[1];
    if (num_rows == 0) return {};
    if (phase == 0) {
        if (prepares_all(x, c, num_rows)) return {};
        return {num_rows, std::max<int64_t>(1, 2048 / k)};
    }
    // Kernels take blocks in pairs; gate and up are one.
    const int64_t block = c.flags & LINEAR_SILU_MUL ? 32 * k * num_rows : 16 * k * num_rows;
    return {num_output_blocks(c), block < LINEAR_CLAIM_MACS ? 2 : 1};
}

void run_linear(StepContext& x, const Call& c, int phase, const Share& share) {
    const int64_t num_rows = num_linear_rows(x, c);
    const auto format = static_cast<Format>(c.dim[2]);
    const int64_t k = c.dim[1], stride = activation_stride(*x.kernels, c);
    ThreadScratch& own = x.threads[static_cast<size_t>(share.thread)];
    const bool prepares_own = phase == 1 && prepares_all(x, c, num_rows);
    auto* act = static_cast<uint8_t*>((prepares_own ? own.activations : x.activations).data());
    const auto prepare = [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            const int64_t from = c.flags & LINEAR_LOGITS_ROWS ? x.step->logits_token[static_cast<size_t>(r)] : r;
            x.kernels->prepare_row(format, const_floats(c.ptr[0]) + from * c.dim[3], const_floats(c.ptr[3]),
                                   static_cast<float>(c.scalar[0]), k, act + r * stride);
        }
    };
    if (phase == 0) {
        prepare(share.begin, share.end);
        return;
    }
    if (share.is_first) {
        if (prepares_own) prepare(0, num_rows);
        for (int64_t r = 0; r < num_rows; ++r) own.out_rows[static_cast<size_t>(r)] = floats(c.ptr[1]) + r * c.dim[4];
    }
    const LinearArgs args{format, c.dim[0], k, static_cast<int>(c.dim[5]), reinterpret_cast<const uint8_t*>(c.ptr[2]),
                          const_floats(c.ptr[4]), c.flags & (LINEAR_RESIDUAL | LINEAR_SILU_MUL), act, stride,
                          own.out_rows.data(), num_rows};
    x.kernels->linear(args, share.begin, share.end);
}

void run_rms_norm(const StepContext& x, const Call& c, const Share& share) {
    each_token(share, [&](size_t t) {
        const float* in = const_floats(c.ptr[0]) + static_cast<int64_t>(t) * c.dim[2];
        float* out = floats(c.ptr[1]) + static_cast<int64_t>(t) * c.dim[3];
        for (int64_t v = 0; v < c.dim[1]; ++v)
            x.kernels->rms_norm(in + v * c.dim[0], const_floats(c.ptr[2]), static_cast<float>(c.scalar[0]), c.dim[0],
                                out + v * c.dim[0]);
    });
}

void run_rope(const StepContext& x, const Call& c, const Share& share) {
    each_token(share, [&](size_t t) {
        const float* table_row = const_floats(c.ptr[1]) + int64_t{x.step->token_position[t]} * c.dim[2];
        float* heads = floats(c.ptr[0]) + static_cast<int64_t>(t) * c.dim[3];
        for (int64_t h = 0; h < c.dim[0]; ++h) x.kernels->rope(heads + h * c.dim[1], table_row, c.dim[1], c.dim[2]);
    });
}

// Stores one token's K and V, [num_kv_heads, head_dim] each. Null row and null block take nothing.
void store_token(const StepContext& x, size_t t, int64_t group, int64_t layer, int64_t num_kv_heads, int64_t head_dim,
                 const float* k, const float* v) {
    const int64_t row = x.step->token_row[t], position = x.step->token_position[t];
    if (row < 0) return;
    const KvGroup& kv = x.groups[static_cast<size_t>(group)];
    const int64_t block = x.rows->table_of(group, row)[position / kv.block_size];
    if (block == 0) return;
    for (int64_t h = 0; h < num_kv_heads; ++h)
        x.kernels->kv_store(kv, layer, h, head_dim, block, position % kv.block_size, k + h * head_dim, v + h * head_dim);
}

void run_kv_store(const StepContext& x, const Call& c, const Share& share) {
    each_token(share, [&](size_t t) {
        store_token(x, t, c.dim[0], c.dim[1], c.dim[2], c.dim[3], const_floats(c.ptr[0]) + static_cast<int64_t>(t) * c.dim[4],
                    const_floats(c.ptr[1]) + static_cast<int64_t>(t) * c.dim[5]);
    });
}

void run_qkv_prepare(const StepContext& x, const Call& c, const Share& share) {
    const int64_t num_heads = c.dim[2], num_kv_heads = c.dim[3], head_dim = c.dim[4], rotary_dim = c.dim[5];
    const auto eps = static_cast<float>(c.scalar[0]);
    each_token(share, [&](size_t t) {
        float* q = floats(c.ptr[0]) + static_cast<int64_t>(t) * c.dim[6];
        const float* table_row = const_floats(c.ptr[1]) + int64_t{x.step->token_position[t]} * rotary_dim;
        for (int64_t h = 0; h < num_heads + num_kv_heads; ++h) {
            float* head = q + h * head_dim;
            const float* norm = const_floats(h < num_heads ? c.ptr[2] : c.ptr[3]);
            if (norm != nullptr) x.kernels->rms_norm(head, norm, eps, head_dim, head);
            x.kernels->rope(head, table_row, head_dim, rotary_dim);
        }
        const float* k = q + num_heads * head_dim;
        store_token(x, t, c.dim[0], c.dim[1], num_kv_heads, head_dim, k, k + num_kv_heads * head_dim);
    });
}

void run_silu_mul(const StepContext& x, const Call& c, const Share& share) {
    each_token(share, [&](size_t token) {
        const auto t = static_cast<int64_t>(token);
        x.kernels->silu_mul(const_floats(c.ptr[0]) + t * c.dim[1], const_floats(c.ptr[1]) + t * c.dim[2],
                            floats(c.ptr[2]) + t * c.dim[3], c.dim[0]);
    });
}

void run_add(const StepContext& x, const Call& c, const Share& share) {
    each_token(share, [&](size_t token) {
        const auto t = static_cast<int64_t>(token);
        x.kernels->add(const_floats(c.ptr[0]) + t * c.dim[1], const_floats(c.ptr[1]) + t * c.dim[2],
                       floats(c.ptr[2]) + t * c.dim[3], c.dim[0]);
    });
}

void run_tap(const StepContext& x, const Call& c, const Share& share) {
    const int64_t width = c.dim[0];
    for (int64_t e = share.begin; e < share.end; ++e) {
        const auto entry = static_cast<size_t>(e);
        if (x.step->entry_row[entry] < 0) continue;
        std::copy_n(const_floats(c.ptr[0]) + x.step->entry_last_token[entry] * c.dim[1], width,
                    floats(c.ptr[1]) + x.step->entry_row[entry] * width);
    }
}

// Has no units: whoever comes by publishes, and waits where the header asks for it.
void pass_gate(StepContext& x, const Call& c) {
    const int64_t gate = c.dim[0];
    x.gates->publish(x.header.step_id, gate);
    if (!(x.header.flags & FLAG_WAIT_GATES)) return;
    const int32_t* r = x.header.gate_targets.words;
    for (int32_t i = 0; i < x.header.gate_targets.count; ++i, r += GATE_WORDS) {
        if (r[0] != gate) continue;
        if (!x.gates->wait(gate, join_words(r[1], r[2]), x.gate_timeout)) x.timed_out_gate = gate;
    }
}

}  // namespace

Phase phase_of(StepContext& x, const Call& c, int phase) {
    switch (static_cast<Op>(c.op)) {
        case Op::linear: return linear_phase(x, c, phase);
        case Op::attention: return attention_phase(x, c, phase);
        case Op::sample: return sample_phase(x, c, phase);
        case Op::embed: return tokens_phase(x, phase, c.dim[1]);
        case Op::rms_norm: return tokens_phase(x, phase, c.dim[0] * c.dim[1]);
        case Op::rope: return tokens_phase(x, phase, c.dim[0] * c.dim[1]);
        case Op::kv_store: return tokens_phase(x, phase, c.dim[2] * c.dim[3]);
        case Op::silu_mul:
        case Op::add: return tokens_phase(x, phase, c.dim[0]);
        case Op::qkv_prepare: return tokens_phase(x, phase, (c.dim[2] + 2 * c.dim[3]) * c.dim[4]);
        case Op::tap: return phase == 0 ? Phase{x.step->num_entries, 1} : Phase{};
        case Op::gate:
            if (phase == 0) pass_gate(x, c);
            return {};
    }
    return {};
}

void run_units(StepContext& x, const Call& c, int phase, const Share& share) {
    switch (static_cast<Op>(c.op)) {
        case Op::embed: return run_embed(x, c, share);
        case Op::linear: return run_linear(x, c, phase, share);
        case Op::rms_norm: return run_rms_norm(x, c, share);
        case Op::rope: return run_rope(x, c, share);
        case Op::kv_store: return run_kv_store(x, c, share);
        case Op::attention: return run_attention(x, c, share);
        case Op::silu_mul: return run_silu_mul(x, c, share);
        case Op::add: return run_add(x, c, share);
        case Op::qkv_prepare: return run_qkv_prepare(x, c, share);
        case Op::tap: return run_tap(x, c, share);
        case Op::sample: return run_sample(x, c, phase, share);
        case Op::gate: return;
    }
}

}  // namespace headrace
