#pragma once

// The number formats on the device (spec/backbone §2.5, §6), and reductions with one order of summation. Definitions are those of
// base/scalar_types.h; the operator tests hold the two together.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "base/scalar_types.h"
#include "ops/cuda/instructions.cuh"

namespace deepinfer::cuda {

inline constexpr int kWarp = 32;

__device__ inline float widen(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
__device__ inline float widen_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float widen_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline uint16_t bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
__device__ inline bf16 narrow(float x) { return bf16{bf16_bits(x)}; }
__device__ inline float round_to_bf16(float x) { return __uint_as_float(static_cast<uint32_t>(bf16_bits(x)) << 16); }
__device__ inline uint32_t narrow_pair(float low, float high) {
  return static_cast<uint32_t>(bf16_bits(low)) | static_cast<uint32_t>(bf16_bits(high)) << 16;
}

__device__ inline float e8m0_value(uint32_t byte) {
  if (byte == 0xff) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(byte == 0 ? 0x00400000u : byte << 23);
}
__device__ inline uint32_t e8m0_ceil_bits(float x) {
  const uint32_t u = __float_as_uint(x);
  return ((u >> 23) & 255u) + ((u & 0x7fffffu) != 0 ? 1u : 0u);
}
__device__ inline uint32_t fp8_scale_bits(float amax) { return e8m0_ceil_bits(fmaxf(amax, 1e-4f) * (1.0f / kE4m3Max)); }
__device__ inline uint32_t index_scale_bits(float amax) {
  return e8m0_ceil_bits(fmaxf(amax, 6.0f * 0x1p-126f) * (1.0f / kE2m1Max));
}

/// Nearest E4M3 byte, saturating; NaN gives 0x7f.
__device__ inline uint32_t e4m3_bits(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
__device__ inline float e4m3_value(uint32_t byte) {
  const uint32_t magnitude = byte & 0x7f;
  float v = __uint_as_float(magnitude << 20) * 0x1p120f;  // subnormals too: the product is exact
  if (magnitude == 0x7f) v = __uint_as_float(0x7fc00000u);
  return (byte & 0x80) != 0 ? -v : v;
}
__device__ inline uint32_t cache_scale_bits(float amax) { return e4m3_bits(fmaxf(amax, 6.0f * 0x1p-9f) / kE2m1Max); }

/// Eight bf16 columns in fp32, and their largest magnitude.
__device__ inline float widen_eight(const uint4& v, float (&f)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    f[i] = i % 2 == 0 ? widen_low(words[i / 2]) : widen_high(words[i / 2]);
    amax = fmaxf(amax, fabsf(f[i]));
  }
  return amax;
}
/// E4M3 bits where bf16 has its sign, low exponent and high mantissa bits: two values times 2^-120. The bytes are in bits 8 to 15
/// and 24 to 31, and the first one's sign is in all bits between them.
__device__ inline uint32_t spread_signed_fp8(uint32_t high_bytes) {
  return static_cast<uint32_t>(static_cast<int32_t>(high_bytes) >> 4) & 0x87f087f0u;
}
/// Two columns rounded to E4M3, the first in the low byte.
__device__ inline uint32_t e4m3_pair_bits(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}
/// Eight columns rounded to E4M3 times `scale`, a power of two, as bf16 pairs (0, 4), (1, 5), (2, 6), (3, 7).
__device__ inline uint4 round_eight(float (&f)[8], float scale) {
  const float inverse = 1.0f / scale;  // exact
#pragma unroll
  for (float& q : f) q *= inverse;
  uint32_t pairs[4];
  uint32_t nan = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = e4m3_pair_bits(f[i], f[i + 4]);
    nan |= (pairs[i] & 0x7f7fu) + 0x0101u;
  }
  // In bf16, unless there are values that are no numbers or as large as they come.
  const uint32_t exponent = (__float_as_uint(scale) >> 23) + 120;
  if ((nan & 0x8080u) == 0 && exponent > 120 && exponent < 255) {
#pragma unroll
    for (uint32_t& pair : pairs)
      pair = multiply_bf16x2(spread_signed_fp8(permute_signed(pair, 0, 0x1800)), (exponent << 7) * 0x10001u);
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
#pragma unroll
  for (float& q : f) q = e4m3_value(e4m3_bits(q)) * scale;
  return make_uint4(narrow_pair(f[0], f[4]), narrow_pair(f[1], f[5]), narrow_pair(f[2], f[6]), narrow_pair(f[3], f[7]));
}

/// Nearest E2M1 code, ties to even, saturating.
__device__ inline uint32_t e2m1_bits(float x) {
  const float a = fabsf(x);
  const uint32_t code =
      static_cast<uint32_t>(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return code | (__float_as_uint(x) >> 31) << 3;
}
__device__ inline float e2m1_value(uint32_t code) {
  const float v = __uint_as_float((code & 7) << 22) * 0x1p126f;
  return (code & 8) != 0 ? -v : v;
}

/// Sum over the warp, the same in every lane: a fixed tree.
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}
__device__ inline float warp_max(float v) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
  return v;
}

/// Sum over a block of kThreads, the same in every thread. `scratch`: one float a warp; may be used again after the next barrier.
template <int kThreads>
__device__ inline float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  if constexpr (kThreads == kWarp) return v;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = v;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) total += scratch[w];
  __syncthreads();
  return total;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/// Position that holds place of column i in a row whose columns are interleaved for the products (products.cuh): in each eight,
/// 0 4 1 5 2 6 3 7.
__device__ inline int interleaved(int i) { return (i & ~7) | (i & 3) << 1 | (i >> 2 & 1); }

}  // namespace deepinfer::cuda
