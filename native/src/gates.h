// Gates: where a plan tells the world how far it is, and may wait for it.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include "step_header.h"

namespace headrace {

class Gates {
  public:
    static constexpr int64_t DONE = MAX_GATES;  // published as gate -1: the step is over

    void publish(int64_t step_id, int64_t gate) {
        progress_.store(static_cast<uint64_t>(step_id) << kGateBits | static_cast<uint64_t>(gate), std::memory_order_release);
    }

    // (step, gate) of the last gate passed; (-1, -1) before the first.
    std::pair<int64_t, int64_t> progress() const {
        const uint64_t word = progress_.load(std::memory_order_acquire);
        if (word == kNothing) return {-1, -1};
        const auto gate = static_cast<int64_t>(word & ((1u << kGateBits) - 1));
        return {static_cast<int64_t>(word >> kGateBits), gate == DONE ? -1 : gate};
    }

    // Counters only grow.
    void raise(int64_t gate, int64_t value) {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto& counter = counters_[static_cast<size_t>(gate)];
        if (value > counter.load(std::memory_order_relaxed)) counter.store(value, std::memory_order_release);
        raised_.notify_all();
    }

    int64_t counter(int64_t gate) const { return counters_[static_cast<size_t>(gate)].load(std::memory_order_acquire); }

    // False when the time is over.
    bool wait(int64_t gate, int64_t target, std::chrono::nanoseconds timeout) {
        for (int i = 0; i < 64; ++i) {
            if (counter(gate) >= target) return true;
            std::this_thread::yield();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        return raised_.wait_for(lock, timeout, [&] { return counter(gate) >= target; });
    }

  private:
    static constexpr int kGateBits = 11;
    static constexpr uint64_t kNothing = ~uint64_t{0};
    static_assert(DONE < 1 << kGateBits);

    std::atomic<uint64_t> progress_{kNothing};
    std::array<std::atomic<int64_t>, MAX_GATES> counters_{};
    std::mutex mutex_;
    std::condition_variable raised_;
};

}  // namespace headrace
