#pragma once

// As src/ops/cuda/narrow_products.cuh, emulated.

#include <cuda_runtime.h>

namespace deepinfer::cuda {

inline void multiply_narrow(float (&c)[2][4], const uint32_t (&a)[4], uint64_t inputs) {
  emulated::Product product;
  product.sums = &c[0][0];
  for (int i = 0; i < 4; ++i) product.a[i] = a[i];
  product.descriptor = inputs;
  product.n = 16;
  product.narrow = true;
  emulated::issue(product);
}

}  // namespace deepinfer::cuda
