#include "executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace headrace {
namespace {

constexpr int64_t kMaxCells = int64_t{1} << 40;  // of any one array of row state

const Kernels& kernels_named(const std::string& isa) {
    const Kernels* kernels = select_kernels(isa.c_str());
    if (kernels != nullptr) return *kernels;
    std::string known;
    for (const char* const* name = available_isas(); *name != nullptr; ++name) known += std::string(" ") + *name;
    throw std::invalid_argument("no kernels for ISA '" + isa + "' on this CPU; there are:" + known);
}

void require(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

bool is_count(int64_t n, int64_t max = INT32_MAX) { return n >= 1 && n <= max; }

}  // namespace

class Executor::Claim {
  public:
    explicit Claim(Executor& executor) : executor_(executor) {
        if (executor_.is_busy_.exchange(true, std::memory_order_acquire))
            throw std::runtime_error("the executor is running a step; use it from one thread at a time");
        if (executor_.pool_ == nullptr) fail("the executor is closed");
        if (!executor_.pool_->is_alive()) fail("the executor does not survive fork; make one in the child");
    }
    ~Claim() { executor_.is_busy_.store(false, std::memory_order_release); }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

  private:
    [[noreturn]] void fail(const char* why) {
        executor_.is_busy_.store(false, std::memory_order_release);
        throw std::runtime_error(why);
    }
    Executor& executor_;
};

Executor::Executor(const std::string& isa, int num_threads) : kernels_(kernels_named(isa)), num_threads_(num_threads) {
    require(is_count(num_threads, 1024), "num_threads must be in [1, 1024]");
    pool_ = std::make_unique<ThreadPool>(num_threads);
}

Executor::~Executor() = default;

void Executor::close() {
    if (pool_ == nullptr) return;
    if (is_busy_.exchange(true)) throw std::runtime_error("the executor is running a step");
    pool_.reset();
    rows_.reset();
    outputs_.reset();
    step_tokens_.reset();
    context_ = StepContext{};
    calls_.clear();
    call_times_ns_.clear();
    segment_bounds_ = {0, 0};
    is_prepared_ = has_step_ = false;
    is_busy_.store(false);
}

void Executor::load_plan(const uint8_t* bytes, int64_t num_bytes, const std::vector<int64_t>& segment_starts) {
    const Claim claim(*this);
    require(num_bytes % static_cast<int64_t>(sizeof(Call)) == 0, "a plan is a whole number of 232-byte calls");
    std::vector<Call> calls(static_cast<size_t>(num_bytes) / sizeof(Call));
    if (num_bytes > 0) std::memcpy(calls.data(), bytes, static_cast<size_t>(num_bytes));
    require(!segment_starts.empty() && segment_starts.front() == 0 &&
                segment_starts.back() <= static_cast<int64_t>(calls.size()) &&
                std::is_sorted(segment_starts.begin(), segment_starts.end()),
            "segments start at 0 and ascend within the plan");
    int64_t embed_vocab = 0, sample_vocab = 0, overlay_rows = INT32_MAX;
    bool has_overlay = false;
    for (size_t i = 0; i < calls.size(); ++i) {
        const Call& c = calls[i];
        check_call(c, static_cast<int64_t>(i));
        if (c.op == static_cast<uint32_t>(Op::embed)) {
            embed_vocab = embed_vocab == 0 ? c.dim[0] : std::min(embed_vocab, c.dim[0]);
            overlay_rows = std::min(overlay_rows, c.dim[3]);
            has_overlay = true;
        }
        if (c.op == static_cast<uint32_t>(Op::sample)) {
            require(sample_vocab == 0, "a plan samples once");
            sample_vocab = c.dim[0];
        }
    }
    require(embed_vocab == 0 || sample_vocab <= embed_vocab, "the head has more tokens than the embedding");
    limits_.vocab = sample_vocab;
    // Scored tokens are looked up in the logits, computed ones in the embedding.
    limits_.num_token_ids = sample_vocab != 0 ? sample_vocab : embed_vocab != 0 ? embed_vocab : INT32_MAX;
    limits_.overlay_rows = has_overlay ? overlay_rows : 0;
    calls_ = std::move(calls);
    segment_bounds_ = segment_starts;
    segment_bounds_.push_back(num_calls());
    call_times_ns_.assign(calls_.size(), 0);
    call_phases_.assign(calls_.size(), 0);
    thread_profiles_.clear();
    is_profiling_ = is_tracing_ = false;
    if (rows_) rows_->clear();  // old tokens and biases were checked against another vocabulary
    is_prepared_ = has_step_ = false;
}

void Executor::set_rows(const RowSizes& s) {
    const Claim claim(*this);
    require(is_count(s.max_num_seqs) && is_count(s.max_model_len) && is_count(s.max_tokens) && is_count(s.max_logits_rows),
            "row sizes must be positive");
    require(s.max_top_logprobs >= 0 && s.max_top_logprobs <= 1024, "max_top_logprobs must be in [0, 1024]");
    require(s.max_num_seqs * s.max_model_len < kMaxCells, "too many rows for this context length");
    for (const int64_t blocks : s.max_blocks_per_row)
        require(is_count(blocks) && s.max_num_seqs * blocks < kMaxCells, "max_blocks_per_row must be positive");
    rows_ = std::make_shared<Rows>(s);
    outputs_ = std::make_shared<Outputs>(s.max_logits_rows, s.max_top_logprobs);
    step_tokens_ = std::make_shared<StepTokens>(s);
    reader_ = std::make_unique<HeaderReader>(s);
    limits_.groups.assign(s.max_blocks_per_row.size(), KvGroup{});
    is_prepared_ = has_step_ = false;
}

void Executor::set_kv_group(int64_t index, const KvGroup& kv) {
    const Claim claim(*this);
    require_rows();
    require(index >= 0 && index < rows_->num_groups(), "no such layer group");
    require(kv.base != nullptr && is_count(kv.num_blocks), "a KV group needs memory and at least one block");
    require(is_count(kv.block_size, 1 << 20) && kv.block_size % 16 == 0, "block_size must be a multiple of 16");
    require(kv.layer_stride >= 0 && kv.head_stride >= 0 && kv.v_offset >= 0, "KV strides must not be negative");
    require(kv.block_stride > 0 && kv.block_stride < kMaxCells && kv.layer_stride <= kv.block_stride &&
                kv.head_stride <= kv.block_stride && kv.v_offset <= kv.block_stride,
            "the block must be the outermost KV stride");
    limits_.groups[static_cast<size_t>(index)] = kv;
    for (int64_t row = 0; row < rows_->sizes.max_num_seqs; ++row)
        rows_->table_lengths[static_cast<size_t>(rows_->length_index(index, row))] = 0;
    is_prepared_ = has_step_ = false;
}

void Executor::require_rows() const {
    if (!rows_) throw std::runtime_error("set_rows comes first");
}

// Checks and sizes everything that plan, rows and KV memory decide together, so that steps allocate nothing.
void Executor::prepare() {
    if (is_prepared_) return;
    require_rows();
    context_.kernels = &kernels_;
    context_.rows = rows_.get();
    context_.outputs = outputs_.get();
    context_.step = step_tokens_.get();
    context_.gates = &gates_;
    context_.groups = limits_.groups;
    context_.threads.resize(static_cast<size_t>(num_threads_));
    for (size_t i = 0; i < calls_.size(); ++i) {
        check_call_memory(calls_[i], static_cast<int64_t>(i), limits_.groups);
        reserve_scratch(calls_[i], rows_->sizes, context_);
    }
    is_prepared_ = true;
}

void Executor::begin(const int32_t* words, int64_t num_words) {
    prepare();
    header_.assign(words, words + num_words);
    has_step_ = false;
    context_.header = reader_->read(header_.data(), num_words, limits_, *rows_);
    apply_writes(context_.header, *rows_, limits_.groups);
    fill_step_tokens(context_.header, *step_tokens_);
    has_step_ = true;
}

void Executor::check_continues(const int32_t* words, int64_t num_words) {
    if (!has_step_ || num_words != static_cast<int64_t>(header_.size()) || !std::equal(words, words + num_words, header_.begin()))
        throw std::invalid_argument("calls after the first continue the step that call 0 began, with the same header");
}

void Executor::step(const int32_t* words, int64_t num_words) {
    const Claim claim(*this);
    begin(words, num_words);
    run(0, num_calls());
    gates_.publish(context_.header.step_id, Gates::DONE);
    num_steps_.fetch_add(1, std::memory_order_relaxed);
}

void Executor::run_calls(const int32_t* words, int64_t num_words, int64_t first, int64_t count) {
    const Claim claim(*this);
    require(first >= 0 && count >= 0 && first <= num_calls() && count <= num_calls() - first, "no such calls in the plan");
    if (first == 0) {
        begin(words, num_words);
    } else {
        check_continues(words, num_words);
    }
    run(first, count);
    if (first + count == num_calls()) {
        gates_.publish(context_.header.step_id, Gates::DONE);
        num_steps_.fetch_add(1, std::memory_order_relaxed);
        has_step_ = false;
    }
}

void Executor::run_segment(const int32_t* words, int64_t num_words, int64_t segment) {
    require(segment >= 0 && segment < num_segments(), "no such segment in the plan");
    const int64_t first = segment_bounds_[static_cast<size_t>(segment)];
    run_calls(words, num_words, first, segment_bounds_[static_cast<size_t>(segment) + 1] - first);
}

void Executor::run(int64_t first, int64_t count) {
    call_ = first;
    run_end_ = first + count;
    phase_ = -1;
    context_.timed_out_gate = -1;
    call_start_ = std::chrono::steady_clock::now();
    pool_->run(*this);
    if (context_.timed_out_gate >= 0) {
        has_step_ = false;
        throw GateTimeout("gate " + std::to_string(context_.timed_out_gate) + " was not opened in time; the step was abandoned");
    }
}

bool Executor::next(int thread, Phase& phase) {
    for (++phase_; call_ < run_end_; ++phase_) {
        if (phase_ == NUM_PHASES) {
            if (is_profiling_) book_call();
            phase_ = -1;
            ++call_;
            continue;
        }
        const Call& call = calls_[static_cast<size_t>(call_)];
        phase = phase_of(context_, call, phase_);
        if (context_.timed_out_gate >= 0) return false;
        if (phase.num_units > phase.min_chunk) {
            call_phases_[static_cast<size_t>(call_)] += is_profiling_;
            return true;
        }
        // One piece: nobody could share it, so it is not handed out.
        if (phase.num_units > 0) run(Share{thread, true, 0, phase.num_units});
    }
    return false;
}

void Executor::run(const Share& share) {
    if (is_profiling_) return run_timed(share);
    run_units(context_, calls_[static_cast<size_t>(call_)], phase_, share);
}

void Executor::run_timed(const Share& share) {
    const auto now_ns = [] {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
    const int64_t start = now_ns();
    run_units(context_, calls_[static_cast<size_t>(call_)], phase_, share);
    const int64_t end = now_ns();
    ThreadProfile& profile = thread_profiles_[static_cast<size_t>(share.thread)];
    profile.busy_ns[static_cast<size_t>(call_)] += static_cast<uint64_t>(end - start);
    if (is_tracing_) profile.events.push_back({share.thread, call_, phase_, start, end});
}

void Executor::book_call() {
    const auto now = std::chrono::steady_clock::now();
    call_times_ns_[static_cast<size_t>(call_)] +=
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now - call_start_).count());
    call_start_ = now;
}

std::shared_ptr<Rows> Executor::rows() const {
    require_rows();
    return rows_;
}

std::shared_ptr<Outputs> Executor::outputs() const {
    require_rows();
    return outputs_;
}

std::shared_ptr<StepTokens> Executor::step_tokens() const {
    require_rows();
    return step_tokens_;
}

void Executor::raise_gate(int64_t gate, int64_t value) {
    require(gate >= 0 && gate < MAX_GATES, "gate index out of range");
    gates_.raise(gate, value);
}

void Executor::set_gate_timeout(double seconds) {
    require(seconds > 0 && seconds <= 1e6, "a timeout is a positive number of seconds");
    context_.gate_timeout = std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

int64_t Executor::memory_bytes() {
    const Claim claim(*this);
    prepare();
    int64_t total = rows_->num_bytes() + outputs_->num_bytes() + context_.activations.num_bytes() +
                    context_.partials.num_bytes() + static_cast<int64_t>(context_.splits_done.size() * sizeof(SplitCounter)) +
                    static_cast<int64_t>(context_.slice_best.size() * sizeof(Candidate));
    for (const ThreadScratch& thread : context_.threads)
        total += thread.activations.num_bytes() + thread.attention.num_bytes() + thread.sampler.num_bytes() +
                 static_cast<int64_t>(thread.out_rows.size() * sizeof(float*));
    return total;
}

void Executor::set_profile(bool on, bool trace) {
    const Claim claim(*this);
    is_profiling_ = on;
    is_tracing_ = on && trace;
    if (!on) return;
    call_times_ns_.assign(calls_.size(), 0);
    call_phases_.assign(calls_.size(), 0);
    thread_profiles_.assign(static_cast<size_t>(num_threads_), ThreadProfile{std::vector<uint64_t>(calls_.size(), 0), {}});
}

std::vector<uint64_t> Executor::call_busy_ns() const {
    std::vector<uint64_t> total(call_phases_.size(), 0);
    for (const ThreadProfile& thread : thread_profiles_)
        for (size_t i = 0; i < total.size(); ++i) total[i] += thread.busy_ns[i];
    return total;
}

std::vector<Executor::TraceEvent> Executor::trace() const {
    std::vector<TraceEvent> all;
    for (const ThreadProfile& thread : thread_profiles_) all.insert(all.end(), thread.events.begin(), thread.events.end());
    return all;
}

}  // namespace headrace
