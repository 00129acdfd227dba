// The step header: a flat int32 array that says everything new about one step (docs/adr/0001-step-header.md).
// headrace.runner.step_header writes it; the words here and there are the same list.
#pragma once
#include <cstdint>
#include <vector>

#include "rows.h"

namespace headrace {

constexpr int32_t HEADER_MAGIC = 0x31535248;  // "HRS1"
constexpr int32_t HEADER_VERSION = 1;
constexpr int64_t MAX_GATES = 1024;
constexpr int32_t MAX_LOGIT_BIAS = 1024;

enum HeaderWord {
    WORD_MAGIC, WORD_VERSION, WORD_TOTAL, WORD_FLAGS, WORD_STEP_LOW, WORD_STEP_HIGH, WORD_NUM_TOKENS,
    // Counts of the sections, in the order in which they follow the fixed words.
    WORD_ENTRIES, WORD_LOGITS_ROWS, WORD_TOKEN_WRITES, WORD_ROW_PARAMS, WORD_TABLE_WRITES, WORD_BLOCK_COPIES,
    WORD_OVERLAY, WORD_GATE_TARGETS, WORD_RESERVED,
    HEADER_WORDS
};

constexpr int32_t FLAG_REPEAT = 1;      // reserved for free-running decode; refused by this version
constexpr int32_t FLAG_WAIT_GATES = 2;  // gates with a target wait for their counter

// Words per record; records with ids or pairs are followed by them.
constexpr int64_t ENTRY_WORDS = 6;        // row, first position, query length, flags (0), adapter slot (-1), reserved (0)
constexpr int64_t LOGITS_WORDS = 3;       // entry, offset in its query, kind
constexpr int64_t TOKEN_WRITE_WORDS = 3;  // row, first position, count | ids
constexpr int64_t PARAM_WORDS = 10;       // row, temperature, top_p, top_k, seed low, seed high, sample index,
                                          // num_logprobs, num_prompt_logprobs, bias count | (id, bias) pairs
constexpr int64_t TABLE_WRITE_WORDS = 4;  // group, row, first index, count | block ids
constexpr int64_t COPY_WORDS = 3;         // group, source block, target block
constexpr int64_t OVERLAY_WORDS = 2;      // token index, overlay row
constexpr int64_t GATE_WORDS = 3;         // gate, target low, target high

enum LogitsKind : int32_t {
    LOGITS_SAMPLE = 0,  // sample the token after the row's last known one and append it to the row
    LOGITS_SCORE = 1,   // report the logprob of the row's next token, which is known
};

// What the plan and the KV memory allow; filled in by the executor.
struct HeaderLimits {
    int64_t num_token_ids = 0;    // token ids are below this
    int64_t vocab = 0;            // columns of the logits; 0: the plan does not sample
    int64_t overlay_rows = 0;
    std::vector<KvGroup> groups;  // num_blocks 0: the group has no memory yet
};

struct Section {
    const int32_t* words = nullptr;
    int32_t count = 0;
};

struct StepHeader {
    int64_t step_id = 0;
    int32_t flags = 0;
    int32_t num_tokens = 0;
    Section entries, logits_rows, token_writes, row_params, table_writes, block_copies, overlay, gate_targets;
};

class HeaderReader {
  public:
    // Sizes its scratch for `sizes`; reading a header allocates nothing.
    explicit HeaderReader(const RowSizes& sizes);

    // Splits and checks the words against limits and row state. Throws std::invalid_argument; changes nothing but scratch.
    StepHeader read(const int32_t* words, int64_t num_words, const HeaderLimits& limits, const Rows& rows);

  private:
    void check_writes(const StepHeader& header, const HeaderLimits& limits, const Rows& rows);
    void check_entries(const StepHeader& header, const HeaderLimits& limits, const Rows& rows);
    void check_logits_rows(const StepHeader& header, const HeaderLimits& limits, const Rows& rows);

    std::vector<int64_t> num_known_, table_lengths_;  // as they will be once the header's writes are applied
    enum RowState : char { ABSENT, NAMED, SAMPLES };
    std::vector<RowState> row_state_;  // in the header at hand
};

// Applies a header that read() accepted: token writes, row parameters, table writes, block copies, in this order.
void apply_writes(const StepHeader& header, Rows& rows, const std::vector<KvGroup>& groups);
void fill_step_tokens(const StepHeader& header, StepTokens& step);

inline int64_t join_words(int32_t low, int32_t high) {
    return static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low));
}

}  // namespace headrace
