#pragma once

// As src/ops/cuda/chosen_lane.cuh, emulated: the first.

#include <cuda_runtime.h>

namespace deepinfer::cuda {

inline bool chosen_lane() { return emulated::place().thread.x % 32 == 0; }

}  // namespace deepinfer::cuda
