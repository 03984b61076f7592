#pragma once

#include "base/scalar_types.h"
#include "cuda_runtime.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  uint16_t x, y;
};
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return {deepinfer::to_bf16(v).bits}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {deepinfer::to_bf16(low).bits, deepinfer::to_bf16(high).bits};
}
