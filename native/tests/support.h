// Pseudo-random inputs and the count of what passed.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint32_t bits() {
        state_ += 0x9E3779B97F4A7C15ull;
        uint64_t x = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        return uint32_t((x ^ (x >> 31)) >> 32);
    }
    float number() { return float(int32_t(bits()) >> 8) * 0x1p-22f; }  // [-2, 2), exact
    std::vector<float> numbers(int64_t n, float factor = 1.0f) {
        std::vector<float> values(static_cast<size_t>(n));
        for (float& value : values) value = number() * factor;
        return values;
    }

  private:
    uint64_t state_;
};

struct Score {
    int passed = 0, failed = 0;

    void line(const char* level, const std::string& name, bool good, const std::string& note) {
        ++(good ? passed : failed);
        std::printf("%-4s  %-12s  %-20s  %s\n", good ? "ok" : "FAIL", level, name.c_str(), note.c_str());
        std::fflush(stdout);  // an illegal instruction later must not take this line along
    }
};
