#pragma once

// Matrix products of the CUDA backend. Every one of them adds in the order of fragments.cuh.

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
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
  const bf16* x = nullptr;  ///< row r of group g at x + r * x_stride + g * x_group
  int64_t rows = 0;
  int64_t x_stride = 0;
  int64_t groups = 1;   ///< the weight rows are cut into as many, each with its part of the input (spec §3.11)
  int64_t x_group = 0;  ///< from one part of an input row to the next
  ProductOutput outputs[kMostOutputs];
  int output_count = 0;
  bool fp32 = false;
  bool fetch_ahead = false;  ///< blocks ask for their weights while they wait for their turn
};

/// Where the columns of an input row lie, so that what a lane multiplies at a time lies together: for the kernels of segments.cuh
/// each eight as 0 4 1 5 2 6 3 7; for those of wide.cuh the 16 of each product one after the other.
enum class InputOrder : uint8_t { kLanes, kWideFp8, kWideFp4 };
/// Room for a row; what is behind the last column is zero.
inline int64_t ordered_columns(InputOrder order, int64_t columns) {
  return order == InputOrder::kLanes ? columns : (columns + 127) / 128 * 128;
}
/// y [rows, ordered_columns] = x [rows, columns] rounded to E4M3 times a power of two in groups of 32 (spec §6.1).
void quantize_rows(const bf16* x, int64_t rows, int64_t columns, InputOrder order, bf16* y, LaunchStream& stream);

/// bf16 values that an FP8 product needs as scratch.
int64_t fp8_scratch(const ProductArgs& args);
/// x is quantised first.
void multiply_fp8_quantized(const ProductArgs& args, bf16* scratch, LaunchStream& stream);
/// x is used as it is.
void multiply_fp8(const ProductArgs& args, bf16* scratch, LaunchStream& stream);
void multiply_bf16(const ProductArgs& args, LaunchStream& stream);

}  // namespace deepinfer::cuda
