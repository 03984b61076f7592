#pragma once

// Matrix products of the CUDA backend. Every one of them adds in the order of fragments.cuh.

#include <cuda_runtime.h>

#include "ops/cuda/weight_view.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// One matrix of several with the same inputs; y is bf16 or fp32.
struct ProductOutput {
  WeightView weight;
  void* y = nullptr;
};

struct ProductArgs {
  static constexpr int kMostOutputs = 4;
  const bf16* x = nullptr;  ///< row r of group g at x + r * x_stride + g * in
  int64_t rows = 0;
  int64_t x_stride = 0;
  int64_t groups = 1;  ///< the weight rows are cut into as many, each with its part of the input (spec §3.11)
  ProductOutput outputs[kMostOutputs];
  int output_count = 0;
  bool fp32 = false;
};

/// x is quantised and interleaved (quantize_rows).
void multiply_fp8_quantized(const ProductArgs& args, cudaStream_t stream);
/// x is plain bf16.
void multiply_fp8(const ProductArgs& args, cudaStream_t stream);
void multiply_bf16(const ProductArgs& args, cudaStream_t stream);

/// y [rows, columns] = x rounded to E4M3 times a power of two in groups of 32 (spec §6.1), interleaved.
void quantize_rows(const bf16* x, int64_t rows, int64_t columns, bf16* y, cudaStream_t stream);

}  // namespace deepinfer::cuda
