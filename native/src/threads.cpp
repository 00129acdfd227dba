#include "threads.h"

#include <sched.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <chrono>
#include <climits>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace headrace {
namespace {

// Longer than the usual gap between threads at the end of a phase, short enough to be nothing when a step is over.
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

// std::atomic::wait would spin and yield on its own account first, and share its waiters' table with all others.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
    static_assert(sizeof word == 4);
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
    word.wait(value);
#endif
}

void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    word.notify_all();
#endif
}

}  // namespace

#if defined(__x86_64__)
FloatMode::FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
FloatMode::~FloatMode() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
// All of FPCR, not the rounding mode alone: code built with -ffast-math switches on flushing to zero when it is loaded.
FloatMode::FloatMode() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    saved_ = static_cast<unsigned>(mode);
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
}
FloatMode::~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(uint64_t{saved_})); }
#else
FloatMode::FloatMode() : saved_(static_cast<unsigned>(std::fegetround())) { std::fesetround(FE_TONEAREST); }
FloatMode::~FloatMode() { std::fesetround(static_cast<int>(saved_)); }
#endif

ThreadPool::ThreadPool(int num_threads) : size_(num_threads), owner_pid_(getpid()), spins_(spins_for(num_threads)) {
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
    publish(STOP);
    for (auto& thread : threads_) thread->join();
}

bool ThreadPool::is_alive() const { return getpid() == owner_pid_; }

// Sequentially consistent on both sides: either the sleeper sees the new word or the waker sees the sleeper. One wake per
// sleep: a woken thread that gets no core yet does not cost a system call per phase.
void ThreadPool::publish(uint64_t word) {
    claim_.store(word, std::memory_order_seq_cst);
    if (has_sleepers_.load(std::memory_order_seq_cst) == 0) return;
    has_sleepers_.store(0, std::memory_order_seq_cst);
    wake_word_.fetch_add(1, std::memory_order_seq_cst);
    wake_all(wake_word_);
}

void ThreadPool::wait_change(uint64_t old) {
    for (int i = 0; i < spins_; ++i) {
        if (claim_.load(std::memory_order_relaxed) != old) return;
        relax();
    }
    const uint32_t wake = wake_word_.load(std::memory_order_seq_cst);
    has_sleepers_.store(1, std::memory_order_seq_cst);
    if (claim_.load(std::memory_order_seq_cst) == old) sleep_while(wake_word_, wake);
}

int64_t ThreadPool::open_next(int index) {
    Phase phase;
    const bool has_next = work_->next(index, phase);
    ++serial_;
    if (!has_next) {
        publish(serial_ * SERIAL | IDLE);
        return 0;
    }
    num_units_ = phase.num_units;
    piece_ = std::max(phase.min_chunk, num_units_ / static_cast<int64_t>(PIECES) + 1);
    num_pieces_ = (num_units_ + piece_ - 1) / piece_;
    pieces_left_.store(num_pieces_, std::memory_order_relaxed);
    const int64_t take = guided_take(num_pieces_, size_);
    publish(serial_ * SERIAL | static_cast<uint64_t>(num_pieces_ - take));
    return take;
}

void ThreadPool::carry_out(int index, int64_t first, int64_t take, uint64_t& last_serial) {
    while (take != 0) {
        const Share share{index, last_serial != serial_, first * piece_, std::min((first + take) * piece_, num_units_)};
        last_serial = serial_;
        work_->run(share);
        if (pieces_left_.fetch_sub(take, std::memory_order_acq_rel) != take) return;
        take = open_next(index);
        first = 0;
    }
}

void ThreadPool::take_part(int index, uint64_t word, uint64_t& last_serial) {
    while ((word & PIECES) != 0) {
        const auto unclaimed = static_cast<int64_t>(word & PIECES);
        const int64_t take = guided_take(unclaimed, size_);
        if (!claim_.compare_exchange_weak(word, word - static_cast<uint64_t>(take), std::memory_order_acq_rel, std::memory_order_acquire))
            continue;
        carry_out(index, num_pieces_ - unclaimed, take, last_serial);
        word = claim_.load(std::memory_order_acquire);
    }
}

void ThreadPool::run(Work& work) {
    const FloatMode mode;
    if (size_ == 1) {
        for (Phase phase; work.next(0, phase);) work.run({0, true, 0, phase.num_units});
        return;
    }
    work_ = &work;
    uint64_t last_serial = serial_;
    carry_out(0, 0, open_next(0), last_serial);
    for (;;) {
        const uint64_t word = claim_.load(std::memory_order_acquire);
        if (word & IDLE) return;
        if ((word & PIECES) != 0) {
            take_part(0, word, last_serial);
        } else {
            wait_change(word);
        }
    }
}

void ThreadPool::work(int index) {
    const FloatMode mode;
    uint64_t last_serial = ~uint64_t{0};
    for (;;) {
        const uint64_t word = claim_.load(std::memory_order_acquire);
        if (word & STOP) return;
        if ((word & PIECES) != 0) {
            take_part(index, word, last_serial);
        } else {
            wait_change(word);
        }
    }
}

}  // namespace headrace
