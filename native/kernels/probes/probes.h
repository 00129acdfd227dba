// Loops that show what a machine can give at best, for `headrace bench roofline`: reading memory, and arithmetic on registers
// or L1. They share no code with the kernels, so that a slow kernel cannot lower its own yardstick.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace {

struct ProbeLoop {
    const char* kind;  // f32, bf16, int8: registers only. q4: int8 with a scale and a minimum per group of 32 inputs, from L1
    int64_t ops;       // multiplications and additions of one round
    void (*run)(int64_t rounds, float* sink);
};

struct ProbeLevel {
    const char* isa;
    const ProbeLoop* loops;  // of one kind there may be several shapes: the fastest counts
    int num_loops;
    // Reads `size` bytes (a multiple of 256, 64-aligned) `rounds` times. Null: as the next lower level does.
    void (*read)(const uint8_t* data, size_t size, int64_t rounds, float* sink);
};

// Null where the compiler had no such instructions (another architecture).
const ProbeLevel* probes_portable();
const ProbeLevel* probes_avx2();
const ProbeLevel* probes_avx512_vnni();
const ProbeLevel* probes_avx512_bf16();

}  // namespace headrace
