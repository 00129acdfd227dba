// How an attention op is cut into units of work.
#include <algorithm>
#include <atomic>

#include "ops.h"

namespace headrace {
namespace {

// One attention op in this step. A unit is (KV head, tile of query tokens), and where those are few for the threads, each split of
// their history is a unit of its own; whoever finishes the last split of a tile merges them all. Bits do not depend on it.
class AttentionUnits {
  public:
    AttentionUnits(const StepContext& x, const Call& c)
        : x_(x), c_(c), num_kv_heads_(c.dim[3]), head_dim_(c.dim[4]), group_heads_(c.dim[2] / c.dim[3]) {
        const StepTokens& step = *x.step;
        num_units_ = step.num_tiles * num_kv_heads_;
        if (num_units_ >= static_cast<int64_t>(x.threads.size()) * ATTENTION_UNITS_PER_THREAD) return;
        int64_t num_splits = 0, max_tokens = 0;
        for (int64_t i = 0; i < step.num_tiles; ++i) {
            num_splits += splits_of(tile(i));
            max_tokens = std::max<int64_t>(max_tokens, tile(i).num_tokens);
        }
        partial_floats_ = x.kernels->attention_partial(max_tokens * group_heads_, head_dim_);
        is_split_ = num_splits > step.num_tiles && num_splits * num_kv_heads_ * partial_floats_ <= x.max_partial_floats;
        if (is_split_) num_units_ = num_splits * num_kv_heads_;
    }

    int64_t count() const { return num_units_; }

    void run(StepContext& x, int64_t unit, float* scratch) const {
        if (is_split_) return run_split(x, unit, scratch);
        // Head by head, so that the tiles of a prompt share the keys in cache; last tile first, as it has the most keys.
        const int64_t num_tiles = x_.step->num_tiles;
        const StepTokens::Tile& t = tile(num_tiles - 1 - unit % num_tiles);
        const int64_t kv_head = unit / num_tiles;
        if (row_of(t) < 0) return fill_zero(t, kv_head);
        x_.kernels->attention(args(t, kv_head, scratch), out(t, kv_head), c_.dim[6]);
    }

  private:
    const StepTokens::Tile& tile(int64_t i) const { return x_.step->tiles[static_cast<size_t>(i)]; }
    int32_t row_of(const StepTokens::Tile& t) const { return x_.step->token_row[static_cast<size_t>(t.first_token)]; }
    int32_t position_of(const StepTokens::Tile& t) const { return x_.step->token_position[static_cast<size_t>(t.first_token)]; }
    int64_t splits_of(const StepTokens::Tile& t) const { return row_of(t) < 0 ? 1 : position_of(t) / SPLIT_TOKENS + 1; }
    float* out(const StepTokens::Tile& t, int64_t kv_head) const {
        return floats(c_.ptr[1]) + t.first_token * c_.dim[6] + kv_head * group_heads_ * head_dim_;
    }
    AttentionArgs args(const StepTokens::Tile& t, int64_t kv_head, float* scratch) const {
        const float* q = const_floats(c_.ptr[0]) + t.first_token * c_.dim[5] + kv_head * group_heads_ * head_dim_;
        return {q,          c_.dim[5],      t.num_tokens,
                group_heads_, head_dim_,      position_of(t),
                x_.rows->table_of(c_.dim[0], row_of(t)), &x_.groups[static_cast<size_t>(c_.dim[0])], c_.dim[1],
                kv_head,    static_cast<float>(c_.scalar[0]), scratch};
    }
    void fill_zero(const StepTokens::Tile& t, int64_t kv_head) const {
        for (int64_t i = 0; i < t.num_tokens; ++i) std::fill_n(out(t, kv_head) + i * c_.dim[6], group_heads_ * head_dim_, 0.0f);
    }

    void run_split(StepContext& x, int64_t unit, float* scratch) const {
        int64_t index = 0, first = 0;  // units of a tile: [KV heads, splits] from `first` on
        while (unit >= first + splits_of(tile(index)) * num_kv_heads_) first += splits_of(tile(index++)) * num_kv_heads_;
        const StepTokens::Tile& t = tile(index);
        const int64_t num_splits = splits_of(t), kv_head = (unit - first) / num_splits, split = (unit - first) % num_splits;
        if (row_of(t) < 0) return fill_zero(t, kv_head);
        const AttentionArgs a = args(t, kv_head, scratch);
        auto* partials = static_cast<float*>(x.partials.data()) + (unit - split) * partial_floats_;
        x_.kernels->attention_split(a, split, partials + split * partial_floats_);
        std::atomic<int64_t>& done = x.splits_done[static_cast<size_t>(index * num_kv_heads_ + kv_head)].count;
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < num_splits) return;
        done.store(0, std::memory_order_relaxed);
        x_.kernels->attention_merge(a, partials, partial_floats_, out(t, kv_head), c_.dim[6]);
    }

    const StepContext& x_;
    const Call& c_;
    const int64_t num_kv_heads_, head_dim_, group_heads_;
    int64_t num_units_ = 0, partial_floats_ = 0;
    bool is_split_ = false;
};

}  // namespace

Phase attention_phase(const StepContext& x, const Call& c, int phase) {
    if (phase != 0) return {};
    return {AttentionUnits(x, c).count(), 1};
}

void run_attention(StepContext& x, const Call& c, const Share& share) {
    const AttentionUnits units(x, c);
    auto* scratch = static_cast<float*>(x.threads[static_cast<size_t>(share.thread)].attention.data());
    for (int64_t u = share.begin; u < share.end; ++u) units.run(x, u, scratch);
}

}  // namespace headrace
