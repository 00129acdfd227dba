#include "ops.h"

#include <algorithm>
#include <limits>

namespace headrace {
namespace {

float* floats(uint64_t address) { return reinterpret_cast<float*>(address); }
const float* const_floats(uint64_t address) { return reinterpret_cast<const float*>(address); }
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

// Tokens over the team; body(token).
template <class Body>
bool each_token(const StepContext& x, Team& team, Body&& body) {
    const int64_t n = x.step->num_tokens;
    if (n == 0) return false;
    team.share(n, team.chunk_of(n, 4), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) body(static_cast<size_t>(t));
    });
    return true;
}

bool run_embed(StepContext& x, const Call& c, Team& team) {
    const int64_t hidden = c.dim[1];
    return each_token(x, team, [&](size_t t) {
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

bool run_linear(StepContext& x, const Call& c, Team& team) {
    const bool gathers = c.flags & LINEAR_LOGITS_ROWS;
    const int64_t num_rows = gathers ? x.step->num_logits_rows : x.step->num_tokens;
    if (num_rows == 0) return false;
    const auto format = static_cast<Format>(c.dim[2]);
    const int64_t k = c.dim[1], stride = activation_stride(*x.kernels, c);
    ThreadScratch& own = x.threads[static_cast<size_t>(team.index)];
    const bool prepares_all = (num_rows == 1 || num_rows * k <= OWN_PREPARE_VALUES) && (team.size == 1 || !overlaps(c, num_rows));
    auto* act = static_cast<uint8_t*>((prepares_all ? own.activations : x.activations).data());
    const auto prepare = [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            const int64_t from = gathers ? x.step->logits_token[static_cast<size_t>(r)] : r;
            x.kernels->prepare_row(format, const_floats(c.ptr[0]) + from * c.dim[3], const_floats(c.ptr[3]),
                                   static_cast<float>(c.scalar[0]), k, act + r * stride);
        }
    };
    if (prepares_all) {
        prepare(0, num_rows);
    } else {
        team.share(num_rows, team.chunk_of(num_rows, 4), prepare);
        team.barrier();
    }
    for (int64_t r = 0; r < num_rows; ++r) own.out_rows[static_cast<size_t>(r)] = floats(c.ptr[1]) + r * c.dim[4];
    const LinearArgs args{format, c.dim[0], k, static_cast<int>(c.dim[5]), reinterpret_cast<const uint8_t*>(c.ptr[2]),
                          const_floats(c.ptr[4]), c.flags & (LINEAR_RESIDUAL | LINEAR_SILU_MUL), act, stride,
                          own.out_rows.data(), num_rows};
    const int64_t num_blocks = num_output_blocks(c);
    team.share(num_blocks, team.chunk_of(num_blocks, 6),
               [&](int64_t begin, int64_t end) { x.kernels->linear(args, begin, end); });
    return true;
}

bool run_rms_norm(StepContext& x, const Call& c, Team& team) {
    return each_token(x, team, [&](size_t t) {
        const float* in = const_floats(c.ptr[0]) + static_cast<int64_t>(t) * c.dim[2];
        float* out = floats(c.ptr[1]) + static_cast<int64_t>(t) * c.dim[3];
        for (int64_t v = 0; v < c.dim[1]; ++v)
            x.kernels->rms_norm(in + v * c.dim[0], const_floats(c.ptr[2]), static_cast<float>(c.scalar[0]), c.dim[0],
                                out + v * c.dim[0]);
    });
}

bool run_rope(StepContext& x, const Call& c, Team& team) {
    return each_token(x, team, [&](size_t t) {
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

bool run_kv_store(StepContext& x, const Call& c, Team& team) {
    return each_token(x, team, [&](size_t t) {
        store_token(x, t, c.dim[0], c.dim[1], c.dim[2], c.dim[3], const_floats(c.ptr[0]) + static_cast<int64_t>(t) * c.dim[4],
                    const_floats(c.ptr[1]) + static_cast<int64_t>(t) * c.dim[5]);
    });
}

bool run_qkv_prepare(StepContext& x, const Call& c, Team& team) {
    const int64_t num_heads = c.dim[2], num_kv_heads = c.dim[3], head_dim = c.dim[4], rotary_dim = c.dim[5];
    const auto eps = static_cast<float>(c.scalar[0]);
    return each_token(x, team, [&](size_t t) {
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

bool run_attention(StepContext& x, const Call& c, Team& team) {
    const int64_t num_tokens = x.step->num_tokens;
    if (num_tokens == 0) return false;
    const int64_t group = c.dim[0], num_kv_heads = c.dim[3], head_dim = c.dim[4];
    const int64_t group_heads = c.dim[2] / num_kv_heads, units = num_tokens * num_kv_heads;
    auto* scratch = static_cast<float*>(x.threads[static_cast<size_t>(team.index)].attention.data());
    // Head by head, so that the tokens of a prompt share the keys in cache; last token first, as it has the most keys.
    team.share(units, std::min<int64_t>(team.chunk_of(units, 8), 16), [&](int64_t begin, int64_t end) {
        for (int64_t u = begin; u < end; ++u) {
            const int64_t kv_head = u / num_tokens, t = num_tokens - 1 - u % num_tokens;
            const int64_t row = x.step->token_row[static_cast<size_t>(t)];
            float* out = floats(c.ptr[1]) + t * c.dim[6] + kv_head * group_heads * head_dim;
            if (row < 0) {
                std::fill_n(out, group_heads * head_dim, 0.0f);
                continue;
            }
            x.kernels->attention({const_floats(c.ptr[0]) + t * c.dim[5] + kv_head * group_heads * head_dim, out, group_heads,
                                  head_dim, x.step->token_position[static_cast<size_t>(t)], x.rows->table_of(group, row),
                                  &x.groups[static_cast<size_t>(group)], c.dim[1], kv_head, static_cast<float>(c.scalar[0]),
                                  scratch});
        }
    });
    return true;
}

bool run_silu_mul(StepContext& x, const Call& c, Team& team) {
    return each_token(x, team, [&](size_t token) {
        const auto t = static_cast<int64_t>(token);
        x.kernels->silu_mul(const_floats(c.ptr[0]) + t * c.dim[1], const_floats(c.ptr[1]) + t * c.dim[2],
                            floats(c.ptr[2]) + t * c.dim[3], c.dim[0]);
    });
}

bool run_add(StepContext& x, const Call& c, Team& team) {
    return each_token(x, team, [&](size_t token) {
        const auto t = static_cast<int64_t>(token);
        x.kernels->add(const_floats(c.ptr[0]) + t * c.dim[1], const_floats(c.ptr[1]) + t * c.dim[2],
                       floats(c.ptr[2]) + t * c.dim[3], c.dim[0]);
    });
}

bool run_tap(StepContext& x, const Call& c, Team& team) {
    const int64_t width = c.dim[0];
    team.share(x.step->num_entries, 1, [&](int64_t begin, int64_t end) {
        for (int64_t e = begin; e < end; ++e) {
            const auto entry = static_cast<size_t>(e);
            if (x.step->entry_row[entry] < 0) continue;
            std::copy_n(const_floats(c.ptr[0]) + x.step->entry_last_token[entry] * c.dim[1], width,
                        floats(c.ptr[1]) + x.step->entry_row[entry] * width);
        }
    });
    return x.step->num_entries > 0;
}

bool run_gate(StepContext& x, const Call& c, Team& team) {
    const int64_t gate = c.dim[0];
    bool waits = false;
    int64_t target = 0;
    if (x.header.flags & FLAG_WAIT_GATES) {
        const int32_t* r = x.header.gate_targets.words;
        for (int32_t i = 0; i < x.header.gate_targets.count; ++i, r += GATE_WORDS) {
            if (r[0] != gate) continue;
            waits = true;
            target = join_words(r[1], r[2]);
        }
    }
    if (team.index == 0) {
        x.gates->publish(x.header.step_id, gate);
        if (waits && !x.gates->wait(gate, target, x.gate_timeout)) x.timed_out_gate = gate;
    }
    return waits;
}

// The position that the token sampled from a logits row will take.
int32_t sampled_position(const StepTokens& step, size_t r) {
    return step.token_position[static_cast<size_t>(step.logits_token[r])] + 1;
}

int32_t row_of(const StepTokens& step, size_t r) { return step.token_row[static_cast<size_t>(step.logits_token[r])]; }

void finish_row(StepContext& x, const Sampler& sampler, const float* logits, size_t r, int64_t max_slices, SamplerScratch& s) {
    StepTokens& step = *x.step;
    Outputs& out = *x.outputs;
    const int64_t row = row_of(step, r), position = sampled_position(step, r);
    const RowParams& params = x.rows->params[static_cast<size_t>(row)];
    const bool samples = step.logits_kind[r] == LOGITS_SAMPLE;
    int32_t token;
    if (samples) {
        Candidate best;
        const Candidate* slices = x.slice_best.data() + static_cast<int64_t>(r) * max_slices;
        for (int64_t i = 0; i < sampler.num_slices(params); ++i) best.offer(slices[i].value, slices[i].id);
        token = best.id;
        if (position < x.rows->sizes.max_model_len) {
            x.rows->tokens_of(row)[position] = token;
            x.rows->num_known[static_cast<size_t>(row)] = position + 1;
        }
    } else {
        token = x.rows->tokens_of(row)[position];
    }
    out.token_ids[r] = token;
    out.ranks[r] = 0;
    out.logprobs[r] = std::numeric_limits<float>::quiet_NaN();
    int32_t* top_ids = out.top_ids.data() + static_cast<int64_t>(r) * out.max_top;
    float* top_logprobs = out.top_logprobs.data() + static_cast<int64_t>(r) * out.max_top;
    std::fill_n(top_ids, out.max_top, -1);
    std::fill_n(top_logprobs, out.max_top, std::numeric_limits<float>::quiet_NaN());
    const int32_t wanted = samples ? params.num_logprobs : params.num_prompt_logprobs;
    if (wanted >= 0) sampler.report(logits, token, wanted, &out.logprobs[r], &out.ranks[r], top_ids, top_logprobs, s);
}

bool run_sample(StepContext& x, const Call& c, Team& team) {
    const int64_t num_rows = x.step->num_logits_rows, vocab = c.dim[0];
    if (num_rows == 0) return false;
    const Sampler sampler(*x.kernels, vocab);
    const int64_t max_slices = (vocab + SAMPLE_SLICE - 1) / SAMPLE_SLICE;
    SamplerScratch& scratch = x.threads[static_cast<size_t>(team.index)].sampler;
    team.share(num_rows * max_slices, 1, [&](int64_t begin, int64_t end) {
        for (int64_t u = begin; u < end; ++u) {
            const auto r = static_cast<size_t>(u / max_slices);
            const int64_t slice = u % max_slices;
            const RowParams& params = x.rows->params[static_cast<size_t>(row_of(*x.step, r))];
            if (x.step->logits_kind[r] != LOGITS_SAMPLE || slice >= sampler.num_slices(params)) continue;
            const float* logits = const_floats(c.ptr[0]) + static_cast<int64_t>(r) * vocab;
            const auto position = static_cast<uint32_t>(sampled_position(*x.step, r));
            x.slice_best[static_cast<size_t>(u)] = sampler.needs_candidates(params)
                                                       ? sampler.draw_candidates(logits, params, position, scratch)
                                                       : sampler.draw_slice(logits, params, slice, position, scratch);
        }
    });
    team.barrier();
    team.share(num_rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            finish_row(x, sampler, const_floats(c.ptr[0]) + r * vocab, static_cast<size_t>(r), max_slices, scratch);
    });
    return true;
}

}  // namespace

bool run_call(StepContext& x, const Call& c, Team& team) {
    switch (static_cast<Op>(c.op)) {
        case Op::embed: return run_embed(x, c, team);
        case Op::linear: return run_linear(x, c, team);
        case Op::rms_norm: return run_rms_norm(x, c, team);
        case Op::rope: return run_rope(x, c, team);
        case Op::kv_store: return run_kv_store(x, c, team);
        case Op::attention: return run_attention(x, c, team);
        case Op::silu_mul: return run_silu_mul(x, c, team);
        case Op::add: return run_add(x, c, team);
        case Op::qkv_prepare: return run_qkv_prepare(x, c, team);
        case Op::tap: return run_tap(x, c, team);
        case Op::gate: return run_gate(x, c, team);
        case Op::sample: return run_sample(x, c, team);
    }
    return false;
}

}  // namespace headrace
