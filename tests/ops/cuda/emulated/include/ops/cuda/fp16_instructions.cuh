#pragma once

// As src/ops/cuda/fp16_instructions.cuh, emulated.

#include <cmath>

#include "ops/cuda/instructions.cuh"

namespace deepinfer::cuda {

/// Nearest, ties to even.
inline uint16_t round_fp16(float v) {
  const int sign = std::signbit(v) ? 0x8000 : 0;
  const float magnitude = std::fabs(v);
  if (std::isnan(v)) return 0x7fff;
  if (magnitude >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(magnitude * 0x1p24f)));
  int exponent = 0;
  const float mantissa = std::frexp(magnitude, &exponent);  // 0.5 and more
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + static_cast<int>(std::nearbyint(mantissa * 2048)) - 1024));
}
inline float widen_fp16(uint16_t v) {
  const int exponent = v >> 10 & 31;
  const int mantissa = v & 0x3ff;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                  : std::ldexp(static_cast<float>(mantissa | 0x400), exponent - 25);
  if (exponent == 31) magnitude = mantissa == 0 ? INFINITY : NAN;
  return (v & 0x8000) != 0 ? -magnitude : magnitude;
}
/// Of numbers that fp16 has: others end the test.
inline uint32_t narrow_fp16(float low, float high) {
  uint32_t r = 0;
  for (int i = 0; i < 2; ++i) {
    const float v = i == 0 ? low : high;
    const uint16_t half = round_fp16(v);
    if (!std::isnan(v) && widen_fp16(half) != v) std::abort();
    r |= static_cast<uint32_t>(half) << 16 * i;
  }
  return r;
}
template <bool kHigh>
uint32_t fp16_of_fp8(uint32_t four) {
  const uint32_t two = kHigh ? four >> 16 : four;
  return narrow_fp16(e4m3_to_float(static_cast<uint8_t>(two)), e4m3_to_float(static_cast<uint8_t>(two >> 8)));
}
inline uint32_t multiply_fp16x2(uint32_t a, uint32_t b) {
  uint32_t r = 0;
  for (int i = 0; i < 2; ++i)
    r |= static_cast<uint32_t>(
             round_fp16(widen_fp16(static_cast<uint16_t>(a >> 16 * i)) * widen_fp16(static_cast<uint16_t>(b >> 16 * i))))
         << 16 * i;
  return r;
}
/// All values are such as bf16 has, too, or no numbers.
inline void mma_fp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto pair = [](uint32_t v) {
    return pair_of(widen_fp16(static_cast<uint16_t>(v)), widen_fp16(static_cast<uint16_t>(v >> 16)));
  };
  const uint32_t rows[4] = {pair(a[0]), pair(a[1]), pair(a[2]), pair(a[3])};
  mma(c, rows, pair(b0), pair(b1));
}

}  // namespace deepinfer::cuda
