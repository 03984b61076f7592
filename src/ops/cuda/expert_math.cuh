#pragma once

// What the kernels of the experts share.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/weight_view.h"

namespace deepinfer::cuda {

/// One more expert, with FP8 weights.
struct SharedExpert {
  Fp8Weight w1, w2, w3;
};

__device__ inline WeightView device_view(const Fp8Weight& w) { return {w.values, w.scales, w.out, w.in}; }
__device__ inline WeightView device_view(const Fp4Weight& w) { return {w.codes, w.scales, w.out, w.in}; }

/// What goes into the second product, for the lane's column of a group of 32: the warp holds the group.
__device__ inline float hidden_value(float gate, float value, float limit, float weight) {
  gate = round_to_bf16(gate);
  value = round_to_bf16(value);
  if (limit > 0) {
    value = fminf(fmaxf(value, -limit), limit);
    gate = fminf(gate, limit);
  }
  const float h = round_to_bf16(gate / (1.0f + expf(-gate)) * value * weight);
  const float scale = e8m0_value(fp8_scale_bits(warp_max(fabsf(h))));
  return e4m3_value(e4m3_bits(h / scale)) * scale;
}

}  // namespace deepinfer::cuda
