// The sampler as a call: which pieces of which rows, and what becomes of the winners.
#include <algorithm>
#include <limits>

#include "ops.h"

namespace headrace {
namespace {

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

int64_t max_slices_of(int64_t vocab) { return (vocab + SAMPLE_SLICE - 1) / SAMPLE_SLICE; }

// Rows that need candidates are long units; they come last, where claims are small.
Phase draw_phase(StepContext& x, int64_t vocab) {
    const Sampler sampler(*x.kernels, vocab);
    const int64_t num_rows = x.step->num_logits_rows, max_slices = max_slices_of(vocab);
    x.sample_units.clear();
    for (const bool whole_rows : {false, true}) {
        for (int64_t r = 0; r < num_rows; ++r) {
            if (x.step->logits_kind[static_cast<size_t>(r)] != LOGITS_SAMPLE) continue;
            const RowParams& params = x.rows->params[static_cast<size_t>(row_of(*x.step, static_cast<size_t>(r)))];
            if (sampler.needs_candidates(params) != whole_rows) continue;
            for (int64_t slice = 0; slice < sampler.num_slices(params); ++slice) x.sample_units.push_back(r * max_slices + slice);
        }
    }
    return {static_cast<int64_t>(x.sample_units.size()), 1};
}

bool is_reported(const StepContext& x, size_t r) {
    const RowParams& params = x.rows->params[static_cast<size_t>(row_of(*x.step, r))];
    return (x.step->logits_kind[r] == LOGITS_SAMPLE ? params.num_logprobs : params.num_prompt_logprobs) >= 0;
}

}  // namespace

Phase sample_phase(StepContext& x, const Call& c, int phase) {
    if (phase == 0) return draw_phase(x, c.dim[0]);
    const int64_t num_rows = x.step->num_logits_rows;
    bool reports = false;
    for (int64_t r = 0; r < num_rows; ++r) reports |= is_reported(x, static_cast<size_t>(r));
    return {num_rows, reports ? 1 : 64};
}

void run_sample(StepContext& x, const Call& c, int phase, const Share& share) {
    const int64_t vocab = c.dim[0], max_slices = max_slices_of(vocab);
    const Sampler sampler(*x.kernels, vocab);
    SamplerScratch& scratch = x.threads[static_cast<size_t>(share.thread)].sampler;
    const auto logits_of = [&](int64_t r) { return const_floats(c.ptr[0]) + r * vocab; };
    if (phase == 1) {
        for (int64_t r = share.begin; r < share.end; ++r)
            finish_row(x, sampler, logits_of(r), static_cast<size_t>(r), max_slices, scratch);
        return;
    }
    for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t unit = x.sample_units[static_cast<size_t>(i)];
        const auto r = static_cast<size_t>(unit / max_slices);
        const RowParams& params = x.rows->params[static_cast<size_t>(row_of(*x.step, r))];
        const auto position = static_cast<uint32_t>(sampled_position(*x.step, r));
        x.slice_best[static_cast<size_t>(unit)] =
            sampler.needs_candidates(params) ? sampler.draw_candidates(logits_of(unit / max_slices), params, position, scratch)
                                             : sampler.draw_slice(logits_of(unit / max_slices), params, unit % max_slices, position, scratch);
    }
}

}  // namespace headrace
