// A thread that runs an executor's steps one after the other, so that the host can prepare the next step and hand out the
// last one's results meanwhile. Steps complete in the order they were submitted.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "executor.h"

namespace headrace {

// What a step left behind: its own copy, because the next step may be running when it is read.
struct StepOutcome {
    int64_t num_rows = 0, max_top = 0;
    std::vector<int32_t> token_ids, ranks, top_ids;
    std::vector<float> logprobs, top_logprobs;
    std::exception_ptr error;
};

class StepQueue {
  public:
    // The executor must outlive the queue, and nobody else may run steps on it while any is pending.
    explicit StepQueue(Executor& executor);
    // Lets the step under way finish; those behind it are dropped.
    ~StepQueue();
    StepQueue(const StepQueue&) = delete;
    StepQueue& operator=(const StepQueue&) = delete;

    // Steps submitted and not yet collected.
    int64_t num_pending() const;
    // Takes a copy of the header and returns at once. Throws std::logic_error after close().
    void submit(const int32_t* words, int64_t num_words);
    // Waits for the oldest pending step. Throws std::logic_error when there is none; the outcome may hold the step's error.
    // After a failed step, those submitted behind it are not run and have the same error.
    std::unique_ptr<StepOutcome> collect();
    void close();

  private:
    void work();
    std::unique_ptr<StepOutcome> run(const std::vector<int32_t>& header);

    Executor& executor_;
    mutable std::mutex mutex_;
    std::condition_variable submitted_, completed_;
    std::deque<std::vector<int32_t>> headers_;
    std::deque<std::unique_ptr<StepOutcome>> outcomes_;
    int64_t num_pending_ = 0;
    std::exception_ptr error_;  // of a step whose followers have not all been collected
    bool closing_ = false;
    std::thread thread_;
};

}  // namespace headrace
