// The thread pool of one executor. Work comes in phases, one after the other; a phase is over when all its units are done,
// whoever did them. A thread that holds no units is never waited for: not one that sleeps, not one that lost its core.
// docs/native-core.md tells why.
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

// Independent units [0, num_units). Nobody claims less than min_chunk of them at once (but for the rest), so it should be
// worth a claim, about a microsecond of work.
struct Phase {
    int64_t num_units = 0;
    int64_t min_chunk = 1;
};

// What a thread has claimed of the current phase.
struct Share {
    int thread;
    bool is_first;  // this thread's first of the phase
    int64_t begin, end;
};

class Work {
  public:
    virtual ~Work() = default;
    // The phase after the one just completed; false when there is none. Exactly one thread is here at a time and nobody is
    // in run(): the state between phases is its alone, and what is quicker done than handed out it may do itself.
    virtual bool next(int thread, Phase& phase) = 0;
    virtual void run(const Share& share) = 0;
};

// How much to take of what is left: large pieces first, small ones last, so that threads end together and one that loses
// its core late in a phase holds little.
inline int64_t guided_take(int64_t left, int num_threads) { return std::max<int64_t>(1, left / (2 * num_threads)); }

class ThreadPool {
  public:
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return size_; }
    // Runs all phases; the caller is thread 0. Returns when the last one is complete, even if other threads have not woken.
    void run(Work& work);
    // False in a forked child, where the threads do not exist.
    bool is_alive() const;

  private:
    // The claim word: serial number of the phase | IDLE or STOP | pieces not yet claimed. A thread that looked long ago holds
    // an old serial number, so its compare-exchange fails; until one succeeds it reads nothing but this word.
    static constexpr int kPieceBits = 24;
    static constexpr uint64_t PIECES = (uint64_t{1} << kPieceBits) - 1, IDLE = PIECES + 1, STOP = IDLE << 1, SERIAL = STOP << 1;

    void work(int index);
    void stop();
    // Takes part in the phase until nothing of it is left to claim; `word` is the claim word as last seen.
    void take_part(int index, uint64_t word, uint64_t& last_serial);
    // Runs claimed pieces, then whatever the completion of phases hands to this thread.
    void carry_out(int index, int64_t first, int64_t take, uint64_t& last_serial);
    // Opens the next phase and returns what the opener claims of it itself; 0 when there is none.
    int64_t open_next(int index);
    void publish(uint64_t word);
    // Waits until the claim word differs from `old`: a short spin for gaps inside a step, then the kernel's futex.
    void wait_change(uint64_t old);

    const int size_;
    const long owner_pid_;
    const int spins_;
    alignas(64) std::atomic<uint64_t> claim_{IDLE};
    std::atomic<uint32_t> has_sleepers_{0}, wake_word_{0};  // read by whoever opens a phase, so beside the claim word
    alignas(64) std::atomic<int64_t> pieces_left_{0};       // not yet done; whoever brings it to zero opens the next phase
    // Of the open phase; written before it opens, read only by those who hold a piece of it.
    alignas(64) Work* work_ = nullptr;
    uint64_t serial_ = 0;
    int64_t num_units_ = 0, num_pieces_ = 0, piece_ = 1;
    std::vector<std::unique_ptr<std::thread>> threads_;
};

}  // namespace headrace
