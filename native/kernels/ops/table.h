// The kernels of one ISA level: included once by each isa_*.cpp after its vector header.
#pragma once
#include "../../include/kernels.h"
#include "math.h"
#include "prepare.h"
#include "linear.h"
#include "attention.h"
#include "elementwise.h"
#include "sampler.h"
#include "../noise.h"

namespace headrace {
namespace {

constexpr Kernels kernels_named(const char* isa) {
    return {isa,      act_bytes,         prepare_row, linear,   embed_row, rms_norm, rope,        kv_store,
            attention_scratch, attention, attention_partial, attention_split, attention_merge,
            silu_mul, add_rows, argmax,  log_sum_exp, gumbel};
}

}  // namespace
}  // namespace headrace
