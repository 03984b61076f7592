#pragma once

// As src/ops/cuda/pace.cuh: time goes on when it is looked at.

#include <cstdint>

namespace deepinfer::cuda {

inline int64_t cycles_now() {
  thread_local int64_t cycles = 0;
  return cycles += 100;
}
inline void pause_briefly() {}

}  // namespace deepinfer::cuda
