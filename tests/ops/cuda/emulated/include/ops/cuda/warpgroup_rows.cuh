#pragma once

// As src/ops/cuda/warpgroup_rows.cuh, emulated.

#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

template <int kInputs>
void multiply_tile_rows(float (&c)[kInputs / 8][4], const uint32_t (&a)[4], uint64_t inputs, bool add) {
  multiply_rows<kInputs>(c, a, inputs, add);
}

}  // namespace deepinfer::cuda
