// Runs the probes of native/kernels/probes/ on several threads at once and measures them, for headrace.kernels.roofline.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../kernels/probes/probes.h"

namespace nb = nanobind;
using namespace headrace;

namespace {

constexpr int MAX_THREADS = 1024;
constexpr int TRIES = 5;

// `isa` and the levels below it, best first; levels that this CPU cannot run are left out.
std::vector<const ProbeLevel*> levels_from(const std::string& isa) {
    std::vector<const ProbeLevel*> all;
    const auto add = [&](const ProbeLevel* level, bool runs) {
        if (level != nullptr && runs) all.push_back(level);
    };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool vnni = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    add(probes_avx512_bf16(), vnni && __builtin_cpu_supports("avx512bf16"));
    add(probes_avx512_vnni(), vnni);
    add(probes_avx2(), avx2);
#endif
    add(probes_portable(), true);
    // A level without probes of its own is measured as the one that it extends, at last as the portable one.
    const std::string measured = isa.rfind("avx_", 0) == 0 ? "avx2" : isa;
    const auto at = std::find_if(all.begin(), all.end(), [&](const ProbeLevel* level) { return measured == level->isa; });
    if (at == all.end()) return {all.back()};
    return {at, all.end()};
}

// Seconds from letting `num_threads` threads go at once until the last has finished.
double seconds_of(int num_threads, const std::function<void(int, float*)>& work) {
    using Clock = std::chrono::steady_clock;
    std::atomic<int> num_ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    const auto wait_and_work = [&](int index) {
        float sink = 0.0f;
        num_ready.fetch_add(1);
        while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
        work(index, &sink);
        volatile float kept = sink;
        (void)kept;
    };
    for (int i = 1; i < num_threads; ++i) threads.emplace_back(wait_and_work, i);
    while (num_ready.load() + 1 < num_threads) std::this_thread::yield();
    const auto begin = Clock::now();
    go.store(true, std::memory_order_release);
    wait_and_work(0);
    for (std::thread& thread : threads) thread.join();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Billions of operations per second of all threads together: the best of some tries of about `seconds`. 0: no such loop.
double probe_compute(const std::string& isa, const std::string& kind, int num_threads, double seconds) {
    if (num_threads < 1 || num_threads > MAX_THREADS) throw std::invalid_argument("num_threads is out of range");
    if (!(seconds > 0.0 && seconds <= 10.0)) throw std::invalid_argument("seconds must lie in 0..10");
    const nb::gil_scoped_release released;
    double best = 0.0;
    for (const ProbeLevel* level : levels_from(isa)) {
        for (int i = 0; i < level->num_loops; ++i) {
            const ProbeLoop& loop = level->loops[i];
            if (kind != loop.kind) continue;
            int64_t rounds = 1000;
            for (int attempt = 0; attempt < TRIES + 1; ++attempt) {
                const double taken = seconds_of(num_threads, [&](int, float* sink) { loop.run(rounds, sink); });
                best = std::max(best, 1e-9 * static_cast<double>(loop.ops * rounds) * num_threads / taken);
                // The first try is short and tells how many rounds fill the time.
                if (attempt == 0) rounds = static_cast<int64_t>(static_cast<double>(rounds) * std::clamp(seconds / taken, 1.0, 1e6));
            }
        }
        if (best > 0.0) break;
    }
    return best;
}

class Mapping {
  public:
    explicit Mapping(size_t size) : size_(size), data_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        if (data_ == MAP_FAILED) throw std::bad_alloc();
        madvise(data_, size, MADV_HUGEPAGE);
        std::memset(data_, 1, size);
    }
    ~Mapping() { munmap(data_, size_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    const uint8_t* data() const { return static_cast<const uint8_t*>(data_); }

  private:
    size_t size_;
    void* data_;
};

// GB/s that `num_threads` threads read together from a working set, each its own part over and over, one number a size.
std::vector<double> probe_read(const std::string& isa, const std::vector<int64_t>& sizes, int num_threads, double seconds) {
    if (num_threads < 1 || num_threads > MAX_THREADS) throw std::invalid_argument("num_threads is out of range");
    if (!(seconds > 0.0 && seconds <= 10.0)) throw std::invalid_argument("seconds must lie in 0..10");
    for (const int64_t size : sizes)
        if (size < 256 * num_threads || size > int64_t{1} << 40) throw std::invalid_argument("a size is out of range");
    const nb::gil_scoped_release released;
    std::vector<double> rates;
    if (sizes.empty()) return rates;
    const Mapping memory(static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end())));
    const std::vector<const ProbeLevel*> levels = levels_from(isa);
    const auto level = std::find_if(levels.begin(), levels.end(), [](const ProbeLevel* l) { return l->read != nullptr; });
    for (const int64_t size : sizes) {
        const size_t part = static_cast<size_t>(size / num_threads) & ~size_t{255};
        const double bytes = static_cast<double>(part) * num_threads;
        int64_t rounds = 2;
        double best = 0.0;
        for (int attempt = 0; attempt < TRIES; ++attempt) {
            const double taken = seconds_of(num_threads, [&](int index, float* sink) {
                (*level)->read(memory.data() + part * static_cast<size_t>(index), part, rounds, sink);
            });
            best = std::max(best, 1e-9 * bytes * static_cast<double>(rounds) / taken);
            if (attempt == 0) rounds = std::max<int64_t>(2, static_cast<int64_t>(seconds * best * 1e9 / bytes));
        }
        rates.push_back(best);
    }
    return rates;
}

}  // namespace

void bind_probes(nb::module_& m) {
    m.def("probe_compute", &probe_compute, nb::arg("isa"), nb::arg("kind"), nb::arg("num_threads"), nb::arg("seconds"));
    m.def("probe_read", &probe_read, nb::arg("isa"), nb::arg("sizes"), nb::arg("num_threads"), nb::arg("seconds"));
}
