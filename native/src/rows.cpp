#include "rows.h"

#include <algorithm>
#include <limits>

namespace headrace {

Rows::Rows(const RowSizes& s)
    : sizes(s),
      tokens(static_cast<size_t>(s.max_num_seqs * s.max_model_len)),
      num_known(static_cast<size_t>(s.max_num_seqs)),
      table_lengths(s.max_blocks_per_row.size() * static_cast<size_t>(s.max_num_seqs)),
      params(static_cast<size_t>(s.max_num_seqs)) {
    for (const int64_t blocks : s.max_blocks_per_row) tables.emplace_back(static_cast<size_t>(s.max_num_seqs * blocks));
}

void Rows::clear() {
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(num_known.begin(), num_known.end(), 0);
    std::fill(table_lengths.begin(), table_lengths.end(), 0);
    for (auto& table : tables) std::fill(table.begin(), table.end(), 0);
    std::fill(params.begin(), params.end(), RowParams{});
}

int64_t Rows::num_bytes() const {
    int64_t cells = sizes.max_num_seqs * sizes.max_model_len;
    for (const int64_t blocks : sizes.max_blocks_per_row) cells += sizes.max_num_seqs * blocks;
    return cells * static_cast<int64_t>(sizeof(int32_t)) + sizes.max_num_seqs * static_cast<int64_t>(sizeof(RowParams));
}

Outputs::Outputs(int64_t rows, int64_t top)
    : max_rows(rows),
      max_top(top),
      token_ids(static_cast<size_t>(rows), -1),
      ranks(static_cast<size_t>(rows), 0),
      top_ids(static_cast<size_t>(rows * top), -1),
      logprobs(static_cast<size_t>(rows), std::numeric_limits<float>::quiet_NaN()),
      top_logprobs(static_cast<size_t>(rows * top), std::numeric_limits<float>::quiet_NaN()) {}

StepTokens::StepTokens(const RowSizes& s)
    : token_row(static_cast<size_t>(s.max_tokens)),
      token_position(static_cast<size_t>(s.max_tokens)),
      token_overlay(static_cast<size_t>(s.max_tokens)),
      entry_row(static_cast<size_t>(s.max_tokens)),
      entry_last_token(static_cast<size_t>(s.max_tokens)),
      logits_token(static_cast<size_t>(s.max_logits_rows)),
      logits_kind(static_cast<size_t>(s.max_logits_rows)),
      tiles(static_cast<size_t>(s.max_tokens)) {}

}  // namespace headrace
