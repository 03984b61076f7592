#pragma once

// As src/ops/cuda/attention_instructions.cuh, emulated.

#include <cmath>

#include "ops/cuda/warpgroup_shared.cuh"

namespace deepinfer::cuda {

inline float exp2_approx(float x) { return std::exp2(x); }
inline float multiply_rounded(float a, float b) { return a * b; }
inline void multiply_half_tile(float (&c)[4][4], uint64_t rows, uint64_t keys, bool add) {
  emulated::issue({.sums = &c[0][0], .descriptor = keys, .add = add, .n = 32, .rows = rows});
}
template <int kFirst>
void multiply_across(float (&c)[32][4], uint64_t rows, uint64_t values) {
  emulated::issue({.sums = &c[kFirst][0], .descriptor = values, .add = true, .n = 128, .across = true, .rows = rows});
}

}  // namespace deepinfer::cuda
