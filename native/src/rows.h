// Row state: what a request's row remembers between steps, so that headers carry only what is new.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan.h"

namespace headrace {

struct Bias {
    int32_t id;
    float value;
};

struct RowParams {
    float temperature = 0.0f;
    float top_p = 1.0f;
    int32_t top_k = 0;
    uint32_t sample_index = 0;
    uint64_t seed = 0;
    int32_t num_logprobs = -1;         // of sampled tokens: -1 none, 0 the token's own, k also the k likeliest
    int32_t num_prompt_logprobs = -1;  // of scored tokens
    std::vector<Bias> bias;            // ids ascending
};

struct RowSizes {
    int64_t max_num_seqs = 0;
    int64_t max_model_len = 0;
    int64_t max_tokens = 0;       // of one step
    int64_t max_logits_rows = 0;  // of one step
    int64_t max_top_logprobs = 0;
    std::vector<int64_t> max_blocks_per_row;  // per layer group
};

struct Rows {
    explicit Rows(const RowSizes& sizes);
    void clear();
    int64_t num_bytes() const;

    int64_t num_groups() const { return static_cast<int64_t>(sizes.max_blocks_per_row.size()); }
    int32_t* tokens_of(int64_t row) { return tokens.data() + row * sizes.max_model_len; }
    const int32_t* tokens_of(int64_t row) const { return tokens.data() + row * sizes.max_model_len; }
    int32_t* table_of(int64_t group, int64_t row) {
        return tables[static_cast<size_t>(group)].data() + row * sizes.max_blocks_per_row[static_cast<size_t>(group)];
    }
    const int32_t* table_of(int64_t group, int64_t row) const { return const_cast<Rows*>(this)->table_of(group, row); }
    int64_t length_index(int64_t group, int64_t row) const { return group * sizes.max_num_seqs + row; }

    const RowSizes sizes;
    std::vector<int32_t> tokens;               // [max_num_seqs, max_model_len]
    std::vector<int64_t> num_known;            // [max_num_seqs] tokens 0..num_known-1 are known
    std::vector<std::vector<int32_t>> tables;  // per group [max_num_seqs, max_blocks_per_row]
    std::vector<int64_t> table_lengths;        // [num_groups, max_num_seqs]
    std::vector<RowParams> params;             // [max_num_seqs]
};

// What the executor gives back, per logits row of the last step.
struct Outputs {
    Outputs(int64_t max_rows, int64_t max_top);
    int64_t num_bytes() const { return max_rows * (3 + 2 * max_top) * 4; }

    const int64_t max_rows, max_top;
    std::vector<int32_t> token_ids, ranks, top_ids;
    std::vector<float> logprobs, top_logprobs;
};

// The step as the calls read it: one line per token, one per logits row.
struct StepTokens {
    explicit StepTokens(const RowSizes& sizes);

    int64_t num_tokens = 0, num_logits_rows = 0, num_entries = 0;
    std::vector<int32_t> token_row;       // -1: padding, computes nothing that lasts
    std::vector<int32_t> token_position;
    std::vector<int32_t> token_overlay;   // row of the overlay that replaces the embedding, or -1
    std::vector<int32_t> entry_row;       // [num_entries]
    std::vector<int32_t> entry_last_token;
    std::vector<int32_t> logits_token;    // [num_logits_rows] index of the token
    std::vector<int32_t> logits_kind;     // LogitsKind
    // Consecutive tokens of one entry within one run of 16 positions: what an attention call takes.
    struct Tile { int32_t first_token, num_tokens; };
    int64_t num_tiles = 0;
    std::vector<Tile> tiles;
};

}  // namespace headrace
