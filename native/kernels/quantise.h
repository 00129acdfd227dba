// Lossy packing, for pack.cpp: see quantise.cpp.
#pragma once
#include "kernels.h"

namespace headrace {

// 32 inputs of 16 rows, x[input][lane], into one packed group; lanes from `count` on are left as they are.
// False when a value is no number or too large for the format.
bool quantise_q4(const float (&x)[32][16], int count, uint8_t* group);
bool quantise_q8(const float (&x)[32][16], int count, uint8_t* group);
// Nearest, ties to even.
uint16_t bf16_bits(float value);
// Input i of a row of f16, bf16 or f32.
float element(Source, const uint8_t* row, int64_t i);
// 32 inputs of a row of q8_0, f16, bf16 or f32.
void dequantise_group(Source, const uint8_t* row, int64_t group, float* out);

}  // namespace headrace
