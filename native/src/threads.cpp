#include "threads.h"

#include <sched.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace headrace {
namespace {

// About 10 µs on current x86 cores: longer than the usual gap between threads at a barrier.
constexpr int kSpins = 250;

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

// With more threads than CPUs a spinning thread keeps the one it waits for from running.
int spins_for(int num_threads) { return num_threads <= num_usable_cpus() ? kSpins : 0; }

}  // namespace

#if defined(__x86_64__)
FloatMode::FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
FloatMode::~FloatMode() { _mm_setcsr(saved_); }
#else
FloatMode::FloatMode() : saved_(static_cast<unsigned>(std::fegetround())) { std::fesetround(FE_TONEAREST); }
FloatMode::~FloatMode() { std::fesetround(static_cast<int>(saved_)); }
#endif

uint32_t SpinWait::changed(const std::atomic<uint32_t>& word, uint32_t old) const {
    for (int i = 0; i < spins_; ++i) {
        const uint32_t now = word.load(std::memory_order_acquire);
        if (now != old) return now;
        relax();
    }
    word.wait(old, std::memory_order_acquire);
    return word.load(std::memory_order_acquire);
}

void Barrier::arrive() {
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        arrived_.store(0, std::memory_order_relaxed);
        generation_.store(generation + 1, std::memory_order_release);
        generation_.notify_all();
        return;
    }
    wait_.changed(generation_, generation);
}

ThreadPool::ThreadPool(int num_threads)
    : size_(num_threads), owner_pid_(getpid()), wait_(spins_for(num_threads)), barrier_(num_threads, wait_) {
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
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    for (auto& thread : threads_) thread->join();
}

bool ThreadPool::is_alive() const { return getpid() == owner_pid_; }

void ThreadPool::run(void (*body)(void*, int), void* context) {
    body_ = body;
    context_ = context;
    if (size_ > 1) {
        num_running_.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
        generation_.fetch_add(1, std::memory_order_release);
        generation_.notify_all();
    }
    {
        FloatMode mode;
        body(context, 0);
    }
    for (uint32_t left = num_running_.load(std::memory_order_acquire); left != 0;) left = wait_.changed(num_running_, left);
}

void ThreadPool::work(int index) {
    for (uint32_t seen = 0;;) {
        seen = wait_.changed(generation_, seen);
        if (stopping_) return;
        {
            FloatMode mode;
            body_(context_, index);
        }
        if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_running_.notify_one();
    }
}

}  // namespace headrace
