#include "step_header.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

using std::to_string;

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument("malformed step header: " + why); }

void check_range(const char* what, int64_t value, int64_t low, int64_t end) {
    if (value < low || value >= end)
        refuse(std::string(what) + " " + to_string(value) + " is not in [" + to_string(low) + ", " + to_string(end) + ")");
}

class Cursor {
  public:
    Cursor(const int32_t* words, int64_t num_words) : next_(words), left_(num_words) {}

    const int32_t* take(int64_t num_words, const char* what) {
        if (num_words < 0 || num_words > left_) refuse(std::string("it ends inside its ") + what);
        const int32_t* taken = next_;
        next_ += num_words;
        left_ -= num_words;
        return taken;
    }

    // `count` records of `fixed` words; word `tail_count` of each (or -1) counts the tail items of `tail_words` words.
    Section section(int32_t count, int64_t fixed, int tail_count, int64_t tail_words, const char* what) {
        if (count < 0) refuse(std::string("a negative number of ") + what);
        Section s{next_, count};
        for (int32_t i = 0; i < count; ++i) {
            const int32_t* record = take(fixed, what);
            if (tail_count >= 0) take(int64_t{record[tail_count]} * tail_words, what);
        }
        return s;
    }

    int64_t left() const { return left_; }

  private:
    const int32_t* next_;
    int64_t left_;
};

void check_params(const int32_t* record, const HeaderLimits& limits, const Rows& rows) {
    check_range("row", record[0], 0, rows.sizes.max_num_seqs);
    const float temperature = std::bit_cast<float>(record[1]), top_p = std::bit_cast<float>(record[2]);
    if (!std::isfinite(temperature) || temperature < 0.0f) refuse("temperature must be finite and not negative");
    if (!(top_p > 0.0f && top_p <= 1.0f)) refuse("top_p must be in (0, 1]");
    if (record[3] < 0) refuse("top_k must not be negative");
    check_range("num_logprobs", record[7], -1, rows.sizes.max_top_logprobs + 1);
    check_range("num_prompt_logprobs", record[8], -1, rows.sizes.max_top_logprobs + 1);
    check_range("number of logit biases", record[9], 0, MAX_LOGIT_BIAS + 1);
    for (int32_t i = 0, previous = -1; i < record[9]; ++i) {
        const int32_t id = record[PARAM_WORDS + 2 * i];
        check_range("logit bias id", id, 0, limits.vocab);
        if (id <= previous) refuse("logit bias ids must ascend");
        if (!std::isfinite(std::bit_cast<float>(record[PARAM_WORDS + 2 * i + 1]))) refuse("a logit bias must be finite");
        previous = id;
    }
}

}  // namespace

HeaderReader::HeaderReader(const RowSizes& sizes)
    : num_known_(static_cast<size_t>(sizes.max_num_seqs)),
      table_lengths_(sizes.max_blocks_per_row.size() * static_cast<size_t>(sizes.max_num_seqs)),
      row_state_(static_cast<size_t>(sizes.max_num_seqs)) {}

StepHeader HeaderReader::read(const int32_t* words, int64_t num_words, const HeaderLimits& limits, const Rows& rows) {
    Cursor cursor(words, num_words);
    const int32_t* w = cursor.take(HEADER_WORDS, "fixed words");
    if (w[WORD_MAGIC] != HEADER_MAGIC) refuse("wrong magic");
    if (w[WORD_VERSION] != HEADER_VERSION) refuse("version " + to_string(w[WORD_VERSION]) + " is not supported");
    if (w[WORD_TOTAL] != num_words)
        refuse("it counts " + to_string(w[WORD_TOTAL]) + " words, the array has " + to_string(num_words));
    if (w[WORD_FLAGS] & FLAG_REPEAT) refuse("the repeat flag is reserved");
    if (w[WORD_FLAGS] & ~FLAG_WAIT_GATES) refuse("unknown flags");
    if (w[WORD_RESERVED] != 0) refuse("the reserved word is not 0");

    StepHeader header;
    header.step_id = join_words(w[WORD_STEP_LOW], w[WORD_STEP_HIGH]);
    if (header.step_id < 0) refuse("a negative step id");
    header.flags = w[WORD_FLAGS];
    header.num_tokens = w[WORD_NUM_TOKENS];
    header.entries = cursor.section(w[WORD_ENTRIES], ENTRY_WORDS, -1, 0, "entries");
    header.logits_rows = cursor.section(w[WORD_LOGITS_ROWS], LOGITS_WORDS, -1, 0, "logits rows");
    header.token_writes = cursor.section(w[WORD_TOKEN_WRITES], TOKEN_WRITE_WORDS, 2, 1, "token writes");
    header.row_params = cursor.section(w[WORD_ROW_PARAMS], PARAM_WORDS, 9, 2, "row parameters");
    header.table_writes = cursor.section(w[WORD_TABLE_WRITES], TABLE_WRITE_WORDS, 3, 1, "table writes");
    header.block_copies = cursor.section(w[WORD_BLOCK_COPIES], COPY_WORDS, -1, 0, "block copies");
    header.overlay = cursor.section(w[WORD_OVERLAY], OVERLAY_WORDS, -1, 0, "overlay list");
    header.gate_targets = cursor.section(w[WORD_GATE_TARGETS], GATE_WORDS, -1, 0, "gate targets");
    if (cursor.left() != 0) refuse(to_string(cursor.left()) + " words are left over");

    num_known_ = rows.num_known;
    table_lengths_ = rows.table_lengths;
    check_writes(header, limits, rows);
    check_entries(header, limits, rows);
    check_logits_rows(header, limits, rows);
    return header;
}

void HeaderReader::check_writes(const StepHeader& header, const HeaderLimits& limits, const Rows& rows) {
    const RowSizes& sizes = rows.sizes;
    const int32_t* r = header.token_writes.words;
    for (int32_t i = 0; i < header.token_writes.count; ++i, r += TOKEN_WRITE_WORDS + r[2]) {
        check_range("row", r[0], 0, sizes.max_num_seqs);
        int64_t& known = num_known_[static_cast<size_t>(r[0])];
        check_range("first position of a token write", r[1], 0, known + 1);
        check_range("number of tokens of a row", int64_t{r[1]} + r[2], 0, sizes.max_model_len + 1);
        for (int32_t j = 0; j < r[2]; ++j) check_range("token id", r[TOKEN_WRITE_WORDS + j], 0, limits.num_token_ids);
        known = int64_t{r[1]} + r[2];
    }
    r = header.row_params.words;
    for (int32_t i = 0; i < header.row_params.count; ++i, r += PARAM_WORDS + 2 * r[9]) check_params(r, limits, rows);
    r = header.table_writes.words;
    for (int32_t i = 0; i < header.table_writes.count; ++i, r += TABLE_WRITE_WORDS + r[3]) {
        check_range("layer group", r[0], 0, rows.num_groups());
        check_range("row", r[1], 0, sizes.max_num_seqs);
        const auto group = static_cast<size_t>(r[0]);
        int64_t& length = table_lengths_[static_cast<size_t>(rows.length_index(r[0], r[1]))];
        check_range("first index of a table write", r[2], 0, length + 1);
        check_range("length of a block table", int64_t{r[2]} + r[3], 0, sizes.max_blocks_per_row[group] + 1);
        for (int32_t j = 0; j < r[3]; ++j)
            check_range("block id", r[TABLE_WRITE_WORDS + j], 0, limits.groups[group].num_blocks);
        length = int64_t{r[2]} + r[3];
    }
    r = header.block_copies.words;
    for (int32_t i = 0; i < header.block_copies.count; ++i, r += COPY_WORDS) {
        check_range("layer group", r[0], 0, rows.num_groups());
        const int64_t num_blocks = limits.groups[static_cast<size_t>(r[0])].num_blocks;
        check_range("copied block", r[1], 1, num_blocks);
        check_range("copied block", r[2], 1, num_blocks);
        if (r[1] == r[2]) refuse("a block is copied to itself");
    }
    r = header.gate_targets.words;
    for (int32_t i = 0; i < header.gate_targets.count; ++i, r += GATE_WORDS) {
        check_range("gate", r[0], 0, MAX_GATES);
        if (r[2] < 0) refuse("a negative gate target");
    }
}

void HeaderReader::check_entries(const StepHeader& header, const HeaderLimits& limits, const Rows& rows) {
    const RowSizes& sizes = rows.sizes;
    std::fill(row_state_.begin(), row_state_.end(), ABSENT);
    int64_t num_tokens = 0;
    const int32_t* r = header.entries.words;
    for (int32_t i = 0; i < header.entries.count; ++i, r += ENTRY_WORDS) {
        check_range("row", r[0], -1, sizes.max_num_seqs);
        check_range("first position", r[1], 0, sizes.max_model_len);
        check_range("query length", r[2], 1, sizes.max_model_len - r[1] + 1);
        if (r[3] != 0 || r[5] != 0) refuse("unknown entry flags");
        if (r[4] != -1) refuse("adapter slots do not exist yet");
        num_tokens += r[2];
        if (num_tokens > sizes.max_tokens) refuse("more than " + to_string(sizes.max_tokens) + " tokens");
        if (r[0] < 0) continue;
        const auto row = static_cast<size_t>(r[0]);
        if (row_state_[row] != ABSENT) refuse("row " + to_string(row) + " is named by two entries");
        row_state_[row] = NAMED;
        const int64_t end = int64_t{r[1]} + r[2];
        if (end > num_known_[row])
            refuse("row " + to_string(row) + " knows " + to_string(num_known_[row]) + " tokens, the step computes " +
                   to_string(end));
        for (int64_t group = 0; group < rows.num_groups(); ++group) {
            const KvGroup& kv = limits.groups[static_cast<size_t>(group)];
            if (kv.num_blocks == 0) continue;
            const int64_t needed = (end + kv.block_size - 1) / kv.block_size;
            if (table_lengths_[static_cast<size_t>(rows.length_index(group, r[0]))] < needed)
                refuse("row " + to_string(row) + " needs " + to_string(needed) + " blocks of group " + to_string(group));
        }
    }
    if (num_tokens != header.num_tokens)
        refuse("it counts " + to_string(header.num_tokens) + " tokens, its entries " + to_string(num_tokens));
    r = header.overlay.words;
    for (int32_t i = 0; i < header.overlay.count; ++i, r += OVERLAY_WORDS) {
        check_range("overlaid token", r[0], 0, num_tokens);
        check_range("overlay row", r[1], 0, limits.overlay_rows);
    }
}

void HeaderReader::check_logits_rows(const StepHeader& header, const HeaderLimits& limits, const Rows& rows) {
    check_range("number of logits rows", header.logits_rows.count, 0, rows.sizes.max_logits_rows + 1);
    const int32_t* r = header.logits_rows.words;
    for (int32_t i = 0; i < header.logits_rows.count; ++i, r += LOGITS_WORDS) {
        check_range("entry of a logits row", r[0], 0, header.entries.count);
        const int32_t* entry = header.entries.words + r[0] * ENTRY_WORDS;
        check_range("offset of a logits row", r[1], 0, entry[2]);
        check_range("kind of a logits row", r[2], LOGITS_SAMPLE, LOGITS_SCORE + 1);
        if (entry[0] < 0) refuse("a padding entry has no logits rows");
        const auto row = static_cast<size_t>(entry[0]);
        const int64_t next = int64_t{entry[1]} + r[1] + 1;
        if (limits.vocab == 0) refuse("the plan does not sample");
        if (r[2] == LOGITS_SCORE) {
            if (next >= num_known_[row]) refuse("the token to score is not known");
        } else {
            if (next != num_known_[row]) refuse("only the token after the last known one can be sampled");
            if (row_state_[row] == SAMPLES) refuse("row " + to_string(row) + " is sampled twice");
            row_state_[row] = SAMPLES;
        }
    }
}

void apply_writes(const StepHeader& header, Rows& rows, const std::vector<KvGroup>& groups) {
    const int32_t* r = header.token_writes.words;
    for (int32_t i = 0; i < header.token_writes.count; ++i, r += TOKEN_WRITE_WORDS + r[2]) {
        std::copy_n(r + TOKEN_WRITE_WORDS, r[2], rows.tokens_of(r[0]) + r[1]);
        rows.num_known[static_cast<size_t>(r[0])] = int64_t{r[1]} + r[2];
    }
    r = header.row_params.words;
    for (int32_t i = 0; i < header.row_params.count; ++i, r += PARAM_WORDS + 2 * r[9]) {
        RowParams& p = rows.params[static_cast<size_t>(r[0])];
        p.temperature = std::bit_cast<float>(r[1]);
        p.top_p = std::bit_cast<float>(r[2]);
        p.top_k = r[3];
        p.seed = static_cast<uint64_t>(join_words(r[4], r[5]));
        p.sample_index = static_cast<uint32_t>(r[6]);
        p.num_logprobs = r[7];
        p.num_prompt_logprobs = r[8];
        p.bias.clear();
        for (int32_t j = 0; j < r[9]; ++j)
            p.bias.push_back({r[PARAM_WORDS + 2 * j], std::bit_cast<float>(r[PARAM_WORDS + 2 * j + 1])});
    }
    r = header.table_writes.words;
    for (int32_t i = 0; i < header.table_writes.count; ++i, r += TABLE_WRITE_WORDS + r[3]) {
        std::copy_n(r + TABLE_WRITE_WORDS, r[3], rows.table_of(r[0], r[1]) + r[2]);
        rows.table_lengths[static_cast<size_t>(rows.length_index(r[0], r[1]))] = int64_t{r[2]} + r[3];
    }
    r = header.block_copies.words;
    for (int32_t i = 0; i < header.block_copies.count; ++i, r += COPY_WORDS) {
        const KvGroup& kv = groups[static_cast<size_t>(r[0])];
        const int64_t block_bytes = kv.block_stride * element_bytes(kv.dtype);
        auto* base = static_cast<uint8_t*>(kv.base);
        std::memcpy(base + r[2] * block_bytes, base + r[1] * block_bytes, static_cast<size_t>(block_bytes));
    }
}

void fill_step_tokens(const StepHeader& header, StepTokens& step) {
    step.num_tokens = header.num_tokens;
    step.num_entries = header.entries.count;
    step.num_logits_rows = header.logits_rows.count;
    step.num_tiles = 0;
    int32_t token = 0;
    const int32_t* r = header.entries.words;
    for (int32_t i = 0; i < header.entries.count; ++i, r += ENTRY_WORDS) {
        for (int32_t j = 0; j < r[2];) {
            const int32_t count = std::min(QUERY_TOKENS - (r[1] + j) % QUERY_TOKENS, r[2] - j);
            step.tiles[static_cast<size_t>(step.num_tiles++)] = {token + j, count};
            j += count;
        }
        for (int32_t j = 0; j < r[2]; ++j, ++token) {
            const auto t = static_cast<size_t>(token);
            step.token_row[t] = r[0];
            step.token_position[t] = r[1] + j;
            step.token_overlay[t] = -1;
        }
        step.entry_row[static_cast<size_t>(i)] = r[0];
        step.entry_last_token[static_cast<size_t>(i)] = token - 1;
    }
    r = header.overlay.words;
    for (int32_t i = 0; i < header.overlay.count; ++i, r += OVERLAY_WORDS)
        step.token_overlay[static_cast<size_t>(r[0])] = r[1];
    r = header.logits_rows.words;
    for (int32_t i = 0; i < header.logits_rows.count; ++i, r += LOGITS_WORDS) {
        const int32_t last = step.entry_last_token[static_cast<size_t>(r[0])];
        const int32_t query_length = header.entries.words[r[0] * ENTRY_WORDS + 2];
        step.logits_token[static_cast<size_t>(i)] = last - query_length + 1 + r[1];
        step.logits_kind[static_cast<size_t>(i)] = r[2];
    }
}

}  // namespace headrace
