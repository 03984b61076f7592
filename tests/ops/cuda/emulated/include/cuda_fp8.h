#pragma once

#include <cuda_runtime.h>

#include "base/scalar_types.h"

enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3 };
inline uint8_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t, __nv_fp8_interpretation_t) {
  return deepinfer::float_to_e4m3(v);
}
inline uint16_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t, __nv_fp8_interpretation_t) {
  return static_cast<uint16_t>(deepinfer::float_to_e4m3(v.x) | deepinfer::float_to_e4m3(v.y) << 8);
}
