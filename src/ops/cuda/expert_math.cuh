#pragma once

// What the kernels of the experts share.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/weight_view.h"

namespace deepinfer::cuda {

/// One more expert, with FP8 weights.
struct SharedExpert {
  Fp8Weight w1, w2, w3;
};

__device__ inline WeightView device_view(const Fp8Weight& w) { return {w.values, w.scales, w.out, w.in}; }
__device__ inline WeightView device_view(const Fp4Weight& w) { return {w.codes, w.scales, w.out, w.in}; }

/// A gate and a value, as large as `limit` allows.
__device__ inline void clamp_gated(float limit, float& gate, float& value) {
  if (limit <= 0) return;
  value = fminf(fmaxf(value, -limit), limit);
  gate = fminf(gate, limit);
}

/// 1 / e8m0_value(bits): multiplying by it rounds as dividing does.
__device__ inline float inverse_scale(uint32_t bits) { return e8m0_value(bits == 0xff ? bits : 254 - bits); }

/// What goes into the second product, for the lane's column of a group of 32: the warp holds the group.
__device__ inline float hidden_value(float gate, float value, float limit, float weight) {
  gate = round_to_bf16(gate);
  value = round_to_bf16(value);
  clamp_gated(limit, gate, value);
  const float h = round_to_bf16(gate / (1.0f + expf(-gate)) * value * weight);
  const uint32_t bits = fp8_scale_bits(warp_max(fabsf(h)));
  return e4m3_value(e4m3_bits(h * inverse_scale(bits))) * e8m0_value(bits);
}

/// x / y rounded to nearest, without the branch that the operator has for what is out of the usual: |x| from 2^-30 to 2^100, y
/// from 1 to 2^60. The quotient is corrected by its remainder, twice, as the operator does it.
__device__ inline float divide_usual(float x, float y) {
  float inverse = reciprocal_approx(y);
  inverse = __fmaf_rn(inverse, __fmaf_rn(-y, inverse, 1.0f), inverse);
  float quotient = x * inverse;
  quotient = __fmaf_rn(inverse, __fmaf_rn(-y, quotient, x), quotient);
  return __fmaf_rn(inverse, __fmaf_rn(-y, quotient, x), quotient);
}

/// Eight gated values h before they are rounded to FP8, of bf16 columns: those of hidden_value. No branch for each of them, so
/// that they are computed side by side.
__device__ inline void gate_eight(const uint4& gates, const uint4& values, float limit, float weight, float (&h)[8]) {
  float gate[8], value[8];
  widen_eight(gates, gate);
  widen_eight(values, value);
  bool usual = true;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    clamp_gated(limit, gate[i], value[i]);
    usual = usual && fabsf(gate[i]) >= 0x1p-30f && gate[i] >= -40.0f && gate[i] <= 0x1p100f;
  }
  if (usual) {
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] = divide_usual(gate[i], 1.0f + expf(-gate[i]));
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] = gate[i] / (1.0f + expf(-gate[i]));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) h[i] = round_to_bf16(h[i] * value[i] * weight);
}

/// Columns of a group whose largest magnitude is `amax`, rounded to E4M3 times a power of two.
__device__ inline void round_to_fp8(float (&h)[8], float amax) {
  const uint32_t bits = fp8_scale_bits(amax);
  const float scale = e8m0_value(bits);
  const float inverse = inverse_scale(bits);
#pragma unroll
  for (float& v : h) v = e4m3_value(e4m3_bits(v * inverse)) * scale;
}

}  // namespace deepinfer::cuda
