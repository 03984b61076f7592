#pragma once

// As src/ops/cuda/ready.cuh: emulated blocks run one after the other, in the order of their numbers.

#include <cuda_runtime.h>

#include <cstdlib>

namespace deepinfer::cuda {

inline void count_done(int32_t* count) { ++*count; }
inline void wait_done(const int32_t* count, int wanted) {
  if (*count != wanted) std::abort();
}
inline int take_number(int32_t* count) { return (*count)++; }
inline int take_numbers(int32_t* count, int own) {
  *count += own;
  return *count - own;
}
inline int take_number_of_block(int* count) { return (*count)++; }

}  // namespace deepinfer::cuda
