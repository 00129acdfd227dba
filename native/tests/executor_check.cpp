// The thread pool and the executor without Python, for the thread sanitizer (`make tsan`): every way in which threads meet,
// with results compared between team sizes. Prints one line per check; exit status 1 when one fails.
// With the argument `race` it does what it must not, so that the caller sees the sanitizer report it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "executor.h"
#include "step_queue.h"

namespace {

using namespace headrace;

int num_failed = 0;

void check(bool holds, const std::string& what) {
    std::printf("%s %s\n", holds ? "ok    " : "FAILED", what.c_str());
    if (!holds) ++num_failed;
}

// Phases of random sizes over plain memory: each counts its units and reads what the phase before wrote.
class CountedPhases : public Work {
  public:
    explicit CountedPhases(uint32_t seed) : random_(seed), units_(4096), before_(4096) {}

    bool next(int, Phase& phase) override {
        for (size_t i = 0; i < units_.size(); ++i) is_right &= units_[i] == (i < size_ ? before_[i] + 1 : before_[i]);
        before_ = units_;
        if (num_phases_++ == 20) return false;
        size_ = random_() % 3 == 0 ? 1 + random_() % 4000 : 1 + random_() % 12;
        phase = {static_cast<int64_t>(size_), static_cast<int64_t>(1 + random_() % 3)};
        return true;
    }
    void run(const Share& share) override {
        for (int64_t i = share.begin; i < share.end; ++i) units_[static_cast<size_t>(i)] = before_[static_cast<size_t>(i)] + 1;
    }

    bool is_right = true;

  private:
    std::minstd_rand random_;
    std::vector<int> units_, before_;
    size_t size_ = 0;
    int num_phases_ = 0;
};

// Long enough that a second thread gets a processor on a busy machine; the sanitizer ends it at the first report.
class Race : public Work {
  public:
    bool next(int, Phase& phase) override {
        phase = {64, 1};
        return std::chrono::steady_clock::now() < deadline_;
    }
    void run(const Share& share) override { sum += share.end - share.begin; }
    int64_t sum = 0;

  private:
    std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + std::chrono::seconds(10);
};

void check_pool() {
    for (const int size : {1, 2, 3, 7}) {
        ThreadPool pool(size);
        bool right = true;
        for (uint32_t run = 0; run < 60; ++run) {
            CountedPhases phases(run + 1);  // its memory ends with the run: a late thread that touched it would be caught
            pool.run(phases);
            right &= phases.is_right;
            if (run % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // let the others fall asleep
        }
        check(right, "pool of " + std::to_string(size) + ": every unit of every phase once, and in order");
    }
}

// A small model of random f32 weights with all fused ops.
constexpr int64_t VOCAB = 9000, HIDDEN = 64, HEADS = 4, KV_HEADS = 2, DIM = 16, MLP = 96, LAYERS = 2, ROWS = 3, LENGTH = 64, TOKENS = 80;
constexpr int64_t QKV = (HEADS + 2 * KV_HEADS) * DIM, BLOCK = 16, TILE = BLOCK * DIM;

class Model {
  public:
    explicit Model(int num_threads) : executor("portable", num_threads) {
        for (auto* out : {&x_, &qkv_, &attended_, &mlp_, &tapped_}) out->resize(static_cast<size_t>(TOKENS * std::max(QKV, MLP)));
        logits.resize(static_cast<size_t>(TOKENS * VOCAB));
        kv_.resize(static_cast<size_t>(ROWS * 4 + 1) * LAYERS * KV_HEADS * 2 * TILE);
        rope_.resize(static_cast<size_t>(LENGTH * DIM));
        for (size_t i = 0; i < rope_.size(); ++i) rope_[i] = i % 2 == 0 ? 0.8f : 0.6f;
        norm_.assign(static_cast<size_t>(std::max(HIDDEN, MLP)), 1.0f);
        weights_.reserve(32);  // calls hold addresses
        executor.set_rows({ROWS, LENGTH, TOKENS, TOKENS, 4, {LENGTH / BLOCK}});
        KvGroup kv{};
        kv.base = decltype(kv.base)(kv_.data());
        kv.num_blocks = ROWS * 4 + 1;
        kv.block_size = BLOCK;
        kv.block_stride = LAYERS * KV_HEADS * 2 * TILE;
        kv.layer_stride = KV_HEADS * 2 * TILE;
        kv.head_stride = 2 * TILE;
        kv.v_offset = TILE;
        executor.set_kv_group(0, kv);
        load();
    }

    int64_t num_calls() const { return executor.num_calls(); }

    std::vector<float> logits;
    Executor executor;

  private:
    static uint64_t address(std::vector<float>& values) { return reinterpret_cast<uint64_t>(values.data()); }

    uint64_t weight(int64_t n, int64_t k) {
        auto& values = weights_.emplace_back(static_cast<size_t>((n + 15) / 16 * 16 * k));
        for (float& value : values) value = (static_cast<float>(random_() % 2001) - 1000.0f) * 2e-4f;
        return address(values);
    }

    Call call(Op op, std::vector<uint64_t> ptr, std::vector<int64_t> dim, double scalar = 0, uint32_t flags = 0) {
        Call c{};
        c.op = static_cast<uint32_t>(op);
        c.flags = flags;
        std::copy(ptr.begin(), ptr.end(), c.ptr);
        std::copy(dim.begin(), dim.end(), c.dim);
        c.scalar[0] = scalar;
        return c;
    }

    Call linear(std::vector<float>& in, int64_t k, std::vector<float>& out, int64_t out_stride, int64_t n, bool norm, uint32_t flags) {
        return call(Op::linear, {address(in), address(out), weight(n, k), norm ? address(norm_) : 0},
                    {n, k, static_cast<int64_t>(Format::f32), k, out_stride, 1}, 1e-5, flags);
    }

    void load() {
        std::vector<Call> calls{call(Op::embed, {weight(VOCAB, HIDDEN), address(x_)}, {VOCAB, HIDDEN, static_cast<int64_t>(Format::f32)})};
        for (int64_t i = 0; i < LAYERS; ++i) {
            calls.push_back(linear(x_, HIDDEN, qkv_, QKV, QKV, true, 0));
            calls.push_back(call(Op::qkv_prepare, {address(qkv_), address(rope_)}, {0, i, HEADS, KV_HEADS, DIM, DIM, QKV}, 1e-5));
            calls.push_back(call(Op::attention, {address(qkv_), address(attended_)}, {0, i, HEADS, KV_HEADS, DIM, QKV, HEADS * DIM}, 0.25));
            calls.push_back(linear(attended_, HEADS * DIM, x_, HIDDEN, HIDDEN, false, LINEAR_RESIDUAL));
            calls.push_back(linear(x_, HIDDEN, mlp_, MLP, 2 * MLP, true, LINEAR_SILU_MUL));
            calls.push_back(linear(mlp_, MLP, x_, HIDDEN, HIDDEN, false, LINEAR_RESIDUAL));
            calls.push_back(call(Op::gate, {}, {i}));
        }
        calls.push_back(call(Op::tap, {address(x_), address(tapped_)}, {HIDDEN, HIDDEN}));
        calls.push_back(linear(x_, HIDDEN, logits, VOCAB, VOCAB, true, LINEAR_LOGITS_ROWS));
        calls.push_back(call(Op::sample, {address(logits)}, {VOCAB}));
        executor.load_plan(reinterpret_cast<const uint8_t*>(calls.data()), static_cast<int64_t>(calls.size() * sizeof(Call)), {0});
    }

    std::minstd_rand random_{7};
    std::vector<float> x_, qkv_, attended_, mlp_, tapped_, kv_, rope_, norm_;
    std::vector<std::vector<float>> weights_;
};

int32_t float_bits(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Step 0 computes three prompts, one row greedy, one with a nucleus, one drawing from all; later steps one token each.
std::vector<int32_t> header(int64_t step, int32_t position, int64_t gate_target = -1) {
    const bool first = step == 0;
    std::vector<int32_t> words(HEADER_WORDS, 0);
    const int32_t query = first ? position + 1 : 1;
    for (int32_t row = 0; row < ROWS; ++row) words.insert(words.end(), {row, first ? 0 : position, query, 0, -1, 0});
    for (int32_t row = 0; row < ROWS; ++row) words.insert(words.end(), {row, query - 1, LOGITS_SAMPLE});
    if (first) {
        for (int32_t row = 0; row < ROWS; ++row) {
            words.insert(words.end(), {row, 0, query});
            for (int32_t i = 0; i < query; ++i) words.push_back((row * 977 + i * 131) % VOCAB);
        }
        for (int32_t row = 0; row < ROWS; ++row)
            words.insert(words.end(), {row, float_bits(row == 0 ? 0.0f : 1.0f), float_bits(row == 1 ? 0.9f : 1.0f), 0, 5 + row, 0, 0, 2, -1, 0});
        for (int32_t row = 0; row < ROWS; ++row) words.insert(words.end(), {0, row, 0, 4, row * 4 + 1, row * 4 + 2, row * 4 + 3, row * 4 + 4});
    }
    if (gate_target >= 0) words.insert(words.end(), {1, static_cast<int32_t>(gate_target), 0});
    words[WORD_MAGIC] = HEADER_MAGIC;
    words[WORD_VERSION] = HEADER_VERSION;
    words[WORD_TOTAL] = static_cast<int32_t>(words.size());
    words[WORD_FLAGS] = gate_target >= 0 ? FLAG_WAIT_GATES : 0;
    words[WORD_STEP_LOW] = static_cast<int32_t>(step);
    words[WORD_NUM_TOKENS] = query * static_cast<int32_t>(ROWS);
    words[WORD_ENTRIES] = words[WORD_LOGITS_ROWS] = static_cast<int32_t>(ROWS);
    if (first) words[WORD_TOKEN_WRITES] = words[WORD_ROW_PARAMS] = words[WORD_TABLE_WRITES] = static_cast<int32_t>(ROWS);
    words[WORD_GATE_TARGETS] = gate_target >= 0;
    return words;
}

constexpr int32_t PROMPT = 20;
constexpr int64_t STEPS = 12;

template <class Step>
std::vector<int32_t> tokens_of(Model& model, Step&& step) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < STEPS; ++i) {
        step(header(i, i == 0 ? PROMPT - 1 : PROMPT - 1 + static_cast<int32_t>(i)));
        const auto& ids = model.executor.outputs()->token_ids;
        tokens.insert(tokens.end(), ids.begin(), ids.begin() + ROWS);
    }
    tokens.push_back(float_bits(model.logits[0]));
    tokens.push_back(float_bits(model.logits[2 * VOCAB + 5]));
    return tokens;
}

std::vector<int32_t> whole_steps(Model& model) {
    return tokens_of(model, [&](const std::vector<int32_t>& h) { model.executor.step(h.data(), static_cast<int64_t>(h.size())); });
}

void check_executor(int num_threads, const std::vector<int32_t>& expected) {
    const std::string name = "executor of " + std::to_string(num_threads) + ": ";
    Model model(num_threads);
    std::atomic<bool> stop{false};
    std::thread watcher([&] {
        while (!stop.load()) {
            (void)model.executor.progress();
            (void)model.executor.num_steps();
            std::this_thread::yield();
        }
    });
    check(whole_steps(model) == expected, name + "whole steps");
    model.executor.set_profile(true);
    check(tokens_of(model, [&](const std::vector<int32_t>& h) {
              for (int64_t c = 0; c < model.num_calls(); ++c) model.executor.run_calls(h.data(), static_cast<int64_t>(h.size()), c, 1);
          }) == expected, name + "call by call, timed");
    model.executor.set_profile(false);
    check(tokens_of(model, [&](const std::vector<int32_t>& h) {
              std::thread other([&] { model.executor.step(h.data(), static_cast<int64_t>(h.size())); });
              other.join();
          }) == expected, name + "each step from another thread");

    bool timed_out = false;
    model.executor.set_gate_timeout(0.02);
    const auto waiting = header(0, PROMPT - 1, 5);
    try {
        model.executor.step(waiting.data(), static_cast<int64_t>(waiting.size()));
    } catch (const GateTimeout&) {
        timed_out = true;
    }
    model.executor.set_gate_timeout(30);
    std::thread opener([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        for (int64_t value = 1; value <= 5; ++value) model.executor.raise_gate(1, value);
    });
    model.executor.step(waiting.data(), static_cast<int64_t>(waiting.size()));
    opener.join();
    check(timed_out && std::equal(expected.begin(), expected.begin() + ROWS, model.executor.outputs()->token_ids.begin()),
          name + "a gate that stays shut, and one that opens");
    {
        StepQueue queue(model.executor);
        std::vector<int32_t> tokens;
        for (int64_t i = 0; i < STEPS; ++i) {
            const auto h = header(i, PROMPT - 1 + static_cast<int32_t>(i));
            queue.submit(h.data(), static_cast<int64_t>(h.size()));
            if (i == 0) continue;
            const auto outcome = queue.collect();
            tokens.insert(tokens.end(), outcome->token_ids.begin(), outcome->token_ids.begin() + ROWS);
        }
        const auto outcome = queue.collect();
        tokens.insert(tokens.end(), outcome->token_ids.begin(), outcome->token_ids.begin() + ROWS);
        check(std::equal(tokens.begin(), tokens.end(), expected.begin()), name + "through the queue");
    }
    stop.store(true);
    watcher.join();
    model.executor.close();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::strcmp(argv[1], "race") == 0) {
        ThreadPool pool(4);
        Race race;
        pool.run(race);
        std::printf("sum %lld\n", static_cast<long long>(race.sum));
        return 0;
    }
    check_pool();
    Model alone(1);
    const std::vector<int32_t> expected = whole_steps(alone);
    for (const int size : {1, 2, 3, 5}) check_executor(size, expected);
    return num_failed == 0 ? 0 : 1;
}
