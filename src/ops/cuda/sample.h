#pragma once

// Draws (spec/sampling §2.2, steps 7 to 11).

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// A row's draw as the kernel sees it.
struct SampleRow {
  const float* logits = nullptr;
  double log_min_p = 0;  ///< read if min_p is on
  float temperature = 1.0f;
  float top_p = 1.0f;
  int64_t top_k = 0;  ///< 0: off
  uint64_t seed = 0;
  int64_t position = 0;
  uint32_t choice_index = 0;
  bool greedy = false;
  bool min_p = false;
  bool certain = false;  ///< as DrawRow's
};

/// Blocks that share the vocabulary of a row without filters, and what each finds.
inline constexpr int64_t kDrawShares = 8;
struct DrawFound {
  float score;
  int32_t token;  ///< -1: none
};

/// tokens[i] of rows[i], both on the device; kUndrawnToken where top-p keeps more tokens than a block sorts. `found`: scratch
/// [count, kDrawShares].
void sample_rows(const SampleRow* rows, int64_t count, int64_t vocab, DrawFound* found, int32_t* tokens, LaunchStream& stream);

}  // namespace deepinfer::cuda
