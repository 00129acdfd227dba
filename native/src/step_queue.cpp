#include "step_queue.h"

#include <stdexcept>
#include <utility>

namespace headrace {

StepQueue::StepQueue(Executor& executor) : executor_(executor), thread_(&StepQueue::work, this) {}

StepQueue::~StepQueue() { close(); }

int64_t StepQueue::num_pending() const {
    const std::lock_guard lock(mutex_);
    return num_pending_;
}

void StepQueue::submit(const int32_t* words, int64_t num_words) {
    std::vector<int32_t> header(words, words + num_words);
    {
        const std::lock_guard lock(mutex_);
        if (closing_) throw std::logic_error("the step queue is closed");
        headers_.push_back(std::move(header));
        ++num_pending_;
    }
    submitted_.notify_one();
}

std::unique_ptr<StepOutcome> StepQueue::collect() {
    std::unique_lock lock(mutex_);
    if (num_pending_ == 0) throw std::logic_error("no step is pending");
    completed_.wait(lock, [this] { return !outcomes_.empty() || closing_; });
    if (outcomes_.empty()) throw std::logic_error("the step queue is closed");
    auto outcome = std::move(outcomes_.front());
    outcomes_.pop_front();
    if (--num_pending_ == 0) error_ = nullptr;
    return outcome;
}

void StepQueue::close() {
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
    }
    submitted_.notify_all();
    completed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void StepQueue::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        submitted_.wait(lock, [this] { return !headers_.empty() || closing_; });
        if (closing_) return;
        const std::vector<int32_t> header = std::move(headers_.front());
        headers_.pop_front();
        const std::exception_ptr earlier = error_;
        lock.unlock();
        auto outcome = std::make_unique<StepOutcome>();
        if (earlier) {
            outcome->error = earlier;
        } else {
            outcome = run(header);
        }
        lock.lock();
        error_ = outcome->error;
        outcomes_.push_back(std::move(outcome));
        completed_.notify_one();
    }
}

std::unique_ptr<StepOutcome> StepQueue::run(const std::vector<int32_t>& header) {
    auto outcome = std::make_unique<StepOutcome>();
    try {
        executor_.step(header.data(), static_cast<int64_t>(header.size()));
        const auto out = executor_.outputs();
        const int64_t rows = executor_.step_tokens()->num_logits_rows;
        const auto copy = [](const auto& from, int64_t count) {
            return std::remove_cvref_t<decltype(from)>(from.begin(), from.begin() + count);
        };
        outcome->num_rows = rows;
        outcome->max_top = out->max_top;
        outcome->token_ids = copy(out->token_ids, rows);
        outcome->ranks = copy(out->ranks, rows);
        outcome->logprobs = copy(out->logprobs, rows);
        outcome->top_ids = copy(out->top_ids, rows * out->max_top);
        outcome->top_logprobs = copy(out->top_logprobs, rows * out->max_top);
    } catch (...) {
        outcome->error = std::current_exception();
    }
    return outcome;
}

}  // namespace headrace
