#pragma once

// Time on a multiprocessor.

#include <cstdint>

namespace deepinfer::cuda {

/// Cycles of the multiprocessor since some moment.
__device__ inline int64_t cycles_now() { return clock64(); }
/// Lets others issue for a little while.
__device__ inline void pause_briefly() { __nanosleep(40); }

}  // namespace deepinfer::cuda
