#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

/// Ways in which the CUDA backend can go about its work; results have the same bits with and without. Engines have all of them
/// (EngineOptions::cuda_features), tests and benchmarks also the plain ways.
struct CudaFeatures {
  bool overlap = false;         ///< a kernel may begin before the one before it has ended (ops/cuda/launch.h)
  bool beside = false;          ///< what Backend::beside is given runs on a stream of its own
  bool fused = false;           ///< one kernel where an operator has several steps over the same rows
  bool arranged = false;        ///< FP4 weights in another order (ops/cuda/fp4_order.h)
  bool wide_attention = false;  ///< attention of many rows on warpgroups (ops/cuda/attention_wide.cu)
  bool wide_index = false;      ///< index scores likewise (ops/cuda/index_wide.cu)
  bool staged = false;          ///< packed weights of products by way of shared memory (ops/cuda/staged.cuh)
  bool widened = false;         ///< dense products of many rows with weights widened before (ops/cuda/widened.cuh)
  bool panels = false;          ///< experts of many tokens from arranged weights, in bulk copies (ops/cuda/panels.cuh)
  bool streamed = false;        ///< experts of few tokens each by warps with rings of their own (ops/cuda/streamed.cuh)
  bool few_rows = false;        ///< steps of few rows by kernels of their own: attention, products, router, choice of rows
  bool split = false;           ///< products of 9 to 256 rows by blocks of a segment each (ops/cuda/products_split.cu)
  bool engram_ahead = false;    ///< what Backend::ahead is given runs on a stream of its own

  bool operator==(const CudaFeatures&) const = default;
};

/// Names separated by commas, or "all", or "none". An error names what is unknown, and what there is.
Result<CudaFeatures> parse_cuda_features(std::string_view text);
/// What parse_cuda_features takes.
std::string cuda_features_text(const CudaFeatures& features);

}  // namespace deepinfer
