#pragma once

// Matrix products of the reference backend. Every output is one chain of additions in K order, in double precision, rounded to
// fp32 once: what every order of an fp32 sum approximates. Only the loop over rows, whose results don't meet, is left to the
// compiler to vectorise.

#include <cstdint>
#include <vector>

#include "ops/ops.h"

namespace deepinfer::reference {

/// fp8 round trip of a row of bf16 values, in groups of 32 (spec §6.1): values that E4M3 x 2^s can hold.
void round_fp8_groups(const bf16* x, int64_t k, float* y);

/// Inputs of a product, transposed: [k][rows] fp32.
struct Inputs {
  std::vector<float> values;
  int64_t rows = 0;
  int64_t k = 0;
};
Inputs make_inputs(const bf16* x, int64_t rows, int64_t k, int64_t stride, bool quantize);
/// The inputs of some rows only.
Inputs gather_inputs(const bf16* x, std::span<const int64_t> rows, int64_t k, bool quantize);

/// y[o][r], o in [begin, end): one output row of weights at a time.
void multiply_fp8(const Fp8Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y);
void multiply_fp4(const Fp4Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y);
void multiply_bf16(const Bf16Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y);

}  // namespace deepinfer::reference
