#include "threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace headrace {
namespace {

// Longer than the usual gap between threads at a barrier, short enough to be nothing when a step is over.
constexpr double kSpinNs = 20'000;

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int num_usable_cpus() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return static_cast<int>(std::thread::hardware_concurrency());
}

// How often relax() fits into the spin: 10 ns on one CPU, 60 on the next, so it is measured.
int spins_that_fit() {
    constexpr int kProbe = 200;
    double best_ns = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kProbe; ++i) relax();
        best_ns = std::min(best_ns, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
    }
    return static_cast<int>(std::clamp(kSpinNs * kProbe / std::max(best_ns, 1.0), 1.0, 20'000.0));
}

// With more threads than CPUs a spinning thread keeps the one it waits for from running.
int spins_for(int num_threads) { return num_threads > 1 && num_threads <= num_usable_cpus() ? spins_that_fit() : 0; }

}  // namespace

#if defined(__x86_64__)
FloatMode::FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
FloatMode::~FloatMode() { _mm_setcsr(saved_); }
#else
FloatMode::FloatMode() : saved_(static_cast<unsigned>(std::fegetround())) { std::fesetround(FE_TONEAREST); }
FloatMode::~FloatMode() { std::fesetround(static_cast<int>(saved_)); }
#endif

void WaitWord::store(uint32_t value) {
    word_.store(value, std::memory_order_seq_cst);
    wake();
}

uint32_t WaitWord::add(uint32_t value) {
    const uint32_t now = word_.fetch_add(value, std::memory_order_seq_cst) + value;
    wake();
    return now;
}

// Sequentially consistent on both sides: either the sleeper sees the new word or the waker sees the sleeper.
void WaitWord::wake() {
    if (num_sleeping_.load(std::memory_order_seq_cst) != 0) word_.notify_all();
}

uint32_t WaitWord::wait_change(uint32_t old) {
    for (int i = 0; i < spins_; ++i) {
        const uint32_t now = load();
        if (now != old) return now;
        relax();
    }
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    word_.wait(old, std::memory_order_seq_cst);
    num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    return load();
}

void Barrier::arrive() {
    const uint32_t generation = generation_.load();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        arrived_.store(0, std::memory_order_relaxed);
        generation_.store(generation + 1);
        return;
    }
    generation_.wait_change(generation);
}

ThreadPool::ThreadPool(int num_threads)
    : ThreadPool(num_threads, spins_for(num_threads)) {}

ThreadPool::ThreadPool(int num_threads, int spins)
    : size_(num_threads), owner_pid_(getpid()), barrier_(num_threads, spins), generation_(spins), num_running_(spins) {
    try {
        for (int i = 1; i < size_; ++i) threads_.push_back(std::make_unique<std::thread>(&ThreadPool::work, this, i));
    } catch (...) {
        stop();
        throw;
    }
}

ThreadPool::~ThreadPool() {
    if (is_alive()) {
        stop();
    } else {
        for (auto& thread : threads_) (void)thread.release();  // joining what fork did not copy would hang
    }
}

void ThreadPool::stop() {
    stopping_ = true;
    generation_.add(1);
    for (auto& thread : threads_) thread->join();
}

bool ThreadPool::is_alive() const { return getpid() == owner_pid_; }

void ThreadPool::run(void (*body)(void*, int), void* context) {
    body_ = body;
    context_ = context;
    if (size_ > 1) {
        num_running_.store(static_cast<uint32_t>(size_ - 1));
        generation_.add(1);
    }
    {
        FloatMode mode;
        body(context, 0);
    }
    for (uint32_t left = num_running_.load(); left != 0;) left = num_running_.wait_change(left);
}

void ThreadPool::work(int index) {
    for (uint32_t seen = 0;;) {
        seen = generation_.wait_change(seen);
        if (stopping_) return;
        {
            FloatMode mode;
            body_(context_, index);
        }
        num_running_.add(~uint32_t{0});
    }
}

}  // namespace headrace
