#pragma once

// As src/ops/cuda/launch_order.cuh: emulated kernels run one after the other.

#include <cuda_runtime.h>

namespace deepinfer::cuda {

inline void let_next_begin() {}
inline void wait_for_earlier() {}
inline void take_turn() {}
/// For tests: told of every such request.
inline void (*on_fetch)(const uint8_t* weights, int64_t bytes) = nullptr;
inline void fetch_ahead(const uint8_t* weights, int64_t bytes) {
  if (on_fetch != nullptr) on_fetch(weights, bytes);
}

}  // namespace deepinfer::cuda
