// The thread team of one executor: fork-join over persistent threads, a barrier, and chunk claiming.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace headrace {

// Sets round-to-nearest with denormals kept, as every kernel assumes, and restores the thread's own mode at the end.
class FloatMode {
  public:
    FloatMode();
    ~FloatMode();
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

  private:
    unsigned saved_;
};

// A word that threads wait on to change, in two stages: a short spin for gaps inside a step, then the kernel's futex, so
// that an idle engine costs nothing. It counts who sleeps: waking is a system call, and mostly nobody does.
class WaitWord {
  public:
    explicit WaitWord(int spins) : spins_(spins) {}

    uint32_t load() const { return word_.load(std::memory_order_acquire); }
    // Everything written before is visible to whoever sees the new value.
    void store(uint32_t value);
    // Returns the new value.
    uint32_t add(uint32_t value);
    // Waits until the word differs from `old`; returns what it is then.
    uint32_t wait_change(uint32_t old);

  private:
    void wake();

    const int spins_;
    alignas(64) std::atomic<uint32_t> word_{0};
    std::atomic<uint32_t> num_sleeping_{0};
};

class Barrier {
  public:
    Barrier(int size, int spins) : size_(static_cast<uint32_t>(size)), generation_(spins) {}
    void arrive();

  private:
    const uint32_t size_;
    alignas(64) std::atomic<uint32_t> arrived_{0};
    WaitWord generation_;
};

struct alignas(64) ClaimCounter {
    std::atomic<int64_t> next{0};
};

// What one thread knows while a step runs. All threads walk the same calls, so their phase numbers agree.
class Team {
  public:
    Team(int index, int size, Barrier& barrier, ClaimCounter* counters)
        : index(index), size(size), barrier_(barrier), counter_(counters) {}

    // Units [0, num_units) in chunks claimed one after the other; body(begin, end). No barrier on either side.
    template <class Body>
    void share(int64_t num_units, int64_t chunk, Body&& body) {
        std::atomic<int64_t>& next = (counter_++)->next;
        if (size == 1) {
            if (num_units > 0) body(int64_t{0}, num_units);
            return;
        }
        for (;;) {
            const int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
            if (begin >= num_units) return;
            body(begin, std::min(begin + chunk, num_units));
        }
    }

    // A chunk that gives each thread about `pieces` turns.
    int64_t chunk_of(int64_t num_units, int64_t pieces) const {
        return std::max<int64_t>(1, num_units / (size * pieces));
    }

    void barrier() {
        if (size > 1) barrier_.arrive();
    }

    const int index, size;

  private:
    Barrier& barrier_;
    ClaimCounter* counter_;
};

class ThreadPool {
  public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return size_; }
    Barrier& barrier() { return barrier_; }
    // Runs body(context, index) on every thread; the caller is index 0. Returns when all are done.
    void run(void (*body)(void*, int), void* context);
    // False in a forked child, where the threads do not exist.
    bool is_alive() const;

  private:
    ThreadPool(int num_threads, int spins);
    void work(int index);
    void stop();

    const int size_;
    const long owner_pid_;
    Barrier barrier_;
    void (*body_)(void*, int) = nullptr;
    void* context_ = nullptr;
    bool stopping_ = false;
    WaitWord generation_, num_running_;
    std::vector<std::unique_ptr<std::thread>> threads_;
};

}  // namespace headrace
