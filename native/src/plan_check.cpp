// What can be checked of a plan before it runs. Addresses are taken on trust: the lowering made them.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "ops.h"

namespace headrace {
namespace {

constexpr int64_t kMaxDim = int64_t{1} << 40;

class CallCheck {
  public:
    CallCheck(const Call& call, int64_t index) : call_(call), index_(index) {}

    void that(bool holds, const std::string& what) const {
        if (!holds) throw std::invalid_argument("plan call " + std::to_string(index_) + " (op " + std::to_string(call_.op) + "): " + what);
    }
    void pointers(std::initializer_list<int> slots) const {
        for (const int i : slots) that(call_.ptr[i] != 0, "ptr" + std::to_string(i) + " is missing");
    }
    // Every dim[first..last] is positive.
    void positive(int first, int last) const {
        for (int i = first; i <= last; ++i)
            that(call_.dim[i] > 0 && call_.dim[i] < kMaxDim, "dim" + std::to_string(i) + " is " + std::to_string(call_.dim[i]));
    }
    void format(int i, int64_t k) const {
        that(call_.dim[i] >= 0 && call_.dim[i] <= static_cast<int64_t>(Format::f32), "unknown weight format");
        const auto format = static_cast<Format>(call_.dim[i]);
        that((format != Format::q4 && format != Format::q8) || k % 32 == 0, "K must be a multiple of 32 in this format");
    }

  private:
    const Call& call_;
    const int64_t index_;
};

}  // namespace

void check_call(const Call& c, int64_t index) {
    const CallCheck check(c, index);
    check.that(c.op == static_cast<uint32_t>(Op::linear) || c.flags == 0, "unknown flags");
    switch (static_cast<Op>(c.op)) {
        case Op::embed:
            check.pointers({0, 1});
            check.positive(0, 1);
            check.format(2, c.dim[1]);
            check.that(c.dim[0] <= INT32_MAX, "the vocabulary is too large");
            check.that(c.dim[3] >= 0 && (c.dim[3] == 0 || c.ptr[2] != 0), "overlay rows without an overlay");
            return;
        case Op::linear:
            check.pointers({0, 1, 2});
            check.positive(0, 1);
            check.positive(3, 5);
            check.format(2, c.dim[1]);
            check.that(c.dim[5] == 1 || c.dim[5] == 2 || c.dim[5] == 4 || c.dim[5] == 8, "k_segments is 1, 2, 4 or 8");
            check.that((c.flags & ~(LINEAR_RESIDUAL | LINEAR_SILU_MUL | LINEAR_LOGITS_ROWS)) == 0, "unknown flags");
            check.that(!(c.flags & LINEAR_RESIDUAL) || !(c.flags & LINEAR_SILU_MUL), "residual and silu_mul together");
            check.that(!(c.flags & LINEAR_SILU_MUL) || c.dim[0] % 2 == 0, "silu_mul needs an even N");
            return;
        case Op::rms_norm:
            check.pointers({0, 1, 2});
            check.positive(0, 3);
            return;
        case Op::rope:
            check.pointers({0, 1});
            check.positive(0, 3);
            check.that(c.dim[2] <= c.dim[1] && c.dim[2] % 2 == 0, "rotary_dim must be even and at most head_dim");
            return;
        case Op::kv_store:
            check.pointers({0, 1});
            check.positive(2, 5);
            return;
        case Op::attention:
            check.pointers({0, 1});
            check.positive(2, 6);
            check.that(c.dim[2] % c.dim[3] == 0, "num_heads must be a multiple of num_kv_heads");
            return;
        case Op::silu_mul:
        case Op::add:
            check.pointers({0, 1, 2});
            check.positive(0, 3);
            return;
        case Op::qkv_prepare:
            check.pointers({0, 1});
            check.positive(2, 6);
            check.that(c.dim[5] <= c.dim[4] && c.dim[5] % 2 == 0, "rotary_dim must be even and at most head_dim");
            return;
        case Op::tap:
            check.pointers({0, 1});
            check.positive(0, 1);
            return;
        case Op::gate:
            check.that(c.dim[0] >= 0 && c.dim[0] < MAX_GATES, "gate index out of range");
            return;
        case Op::sample:
            check.pointers({0});
            check.positive(0, 0);
            check.that(c.dim[0] <= INT32_MAX, "the vocabulary is too large");
            return;
    }
    check.that(false, "unknown op");
}

void check_call_memory(const Call& c, int64_t index, const std::vector<KvGroup>& groups) {
    const auto op = static_cast<Op>(c.op);
    if (op != Op::kv_store && op != Op::attention && op != Op::qkv_prepare) return;
    const CallCheck check(c, index);
    check.that(c.dim[0] >= 0 && c.dim[0] < static_cast<int64_t>(groups.size()), "no such layer group");
    const KvGroup& kv = groups[static_cast<size_t>(c.dim[0])];
    check.that(kv.num_blocks > 0, "the layer group has no KV memory");
    const int64_t num_kv_heads = op == Op::kv_store ? c.dim[2] : c.dim[3];
    const int64_t head_dim = op == Op::kv_store ? c.dim[3] : c.dim[4];
    const int64_t end = c.dim[1] * kv.layer_stride + (num_kv_heads - 1) * kv.head_stride + kv.v_offset + kv.block_size * head_dim;
    check.that(c.dim[1] >= 0 && end <= kv.block_stride, "the layer reaches past the end of a KV block");
}

void reserve_scratch(const Call& c, const RowSizes& sizes, StepContext& x) {
    const int64_t max_rows = std::max(sizes.max_tokens, sizes.max_logits_rows);
    for (ThreadScratch& thread : x.threads) thread.out_rows.resize(static_cast<size_t>(max_rows));
    switch (static_cast<Op>(c.op)) {
        case Op::linear: {
            const int64_t stride = activation_stride(*x.kernels, c);
            const int64_t own_rows = std::min(max_rows, std::max<int64_t>(1, OWN_PREPARE_VALUES / c.dim[1]));
            x.activations.reserve(max_rows * stride);
            for (ThreadScratch& thread : x.threads) thread.activations.reserve(own_rows * stride);
            return;
        }
        case Op::attention: {
            const int64_t group_heads = c.dim[2] / c.dim[3], num_threads = static_cast<int64_t>(x.threads.size());
            const int64_t num_tokens = std::min<int64_t>(QUERY_TOKENS, sizes.max_tokens);
            const int64_t num_floats = x.kernels->attention_scratch(num_tokens * group_heads, c.dim[4]);
            for (ThreadScratch& thread : x.threads) thread.attention.reserve(num_floats * static_cast<int64_t>(sizeof(float)));
            if (num_threads == 1) return;
            const int64_t max_units = num_threads * ATTENTION_UNITS_PER_THREAD;
            const int64_t max_splits = (sizes.max_model_len + SPLIT_TOKENS - 1) / SPLIT_TOKENS;
            const int64_t partials = max_units * max_splits * x.kernels->attention_partial(group_heads, c.dim[4]);
            x.max_partial_floats = std::max(x.max_partial_floats, partials);
            x.partials.reserve(x.max_partial_floats * static_cast<int64_t>(sizeof(float)));
            if (x.splits_done.size() < static_cast<size_t>(max_units))
                x.splits_done = std::vector<SplitCounter>(static_cast<size_t>(max_units));
            return;
        }
        case Op::sample: {
            const int64_t slices = (c.dim[0] + SAMPLE_SLICE - 1) / SAMPLE_SLICE;
            x.slice_best.resize(std::max(x.slice_best.size(), static_cast<size_t>(sizes.max_logits_rows * slices)));
            x.sample_units.reserve(x.slice_best.size());
            for (ThreadScratch& thread : x.threads) thread.sampler.reserve(c.dim[0]);
            return;
        }
        default: return;
    }
}

}  // namespace headrace
