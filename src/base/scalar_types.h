#pragma once

// The number formats of the checkpoint and of the caches (spec/backbone §2.5, §6): bf16, E4M3, E2M1, E8M0. Every rounding is
// to nearest, ties to even. These are the definitions; fast paths elsewhere are tested against them.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace deepinfer {

/// bfloat16 as stored: the upper half of an fp32.
struct bf16 {
  uint16_t bits = 0;
  friend bool operator==(bf16, bf16) = default;
};
static_assert(sizeof(bf16) == 2);

inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

/// Round to nearest even; NaN stays NaN (quietened).
inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

/// fp32 -> bf16 -> fp32.
inline float round_bf16(float x) { return to_float(to_bf16(x)); }

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE2m1Max = 6.0f;
inline constexpr int kScaleGroup = 32;       ///< columns that share an E8M0 scale; also the tile edge of dense FP8 weights
inline constexpr int kCacheScaleGroup = 16;  ///< columns of a compressed KV row that share an E4M3 scale

/// Values of all 256 E4M3 (e4m3fn) bytes; 0x7f and 0xff are NaN.
extern const std::array<float, 256> kE4m3Values;
/// Values of the 16 E2M1 codes; code 8 is -0.
inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline float e4m3_to_float(uint8_t byte) { return kE4m3Values[byte]; }
inline float e2m1_to_float(uint8_t code) { return kE2m1Values[code & 15]; }

/// Nearest E4M3 byte of x; |x| above 448 saturates, NaN gives 0x7f.
uint8_t float_to_e4m3(float x);
/// Nearest E2M1 code of x; |x| above 6 saturates. A negative value that rounds to zero gives code 8.
uint8_t float_to_e2m1(float x);

/// Value of an E8M0 byte: 2^(byte-127); 0xff is NaN; 0 is 2^-127, a subnormal.
inline float e8m0_to_float(uint8_t byte) {
  if (byte == 0xff) return std::bit_cast<float>(0x7fc00000u);
  if (byte == 0) return std::bit_cast<float>(0x00400000u);
  return std::bit_cast<float>(static_cast<uint32_t>(byte) << 23);
}

/// E8M0 byte of the smallest power of two >= x, for normal positive x (spec/backbone §6.1: by bit inspection).
inline uint8_t e8m0_ceil(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return static_cast<uint8_t>(((u >> 23) & 255u) + ((u & 0x7fffffu) != 0 ? 1u : 0u));
}

/// Scale byte of a group of FP8 activations with largest magnitude amax (spec/backbone §6.1).
inline uint8_t fp8_group_scale(float amax) { return e8m0_ceil(std::fmax(amax, 1e-4f) * (1.0f / kE4m3Max)); }
/// Scale byte of a group of FP4 index queries or keys (spec/backbone §6.3).
inline uint8_t fp4_index_scale(float amax) { return e8m0_ceil(std::fmax(amax, 6.0f * 0x1p-126f) * (1.0f / kE2m1Max)); }
/// E4M3 scale byte of a group of compressed KV (spec/backbone §6.3).
inline uint8_t fp4_cache_scale(float amax) { return float_to_e4m3(std::fmax(amax, 6.0f * 0x1p-9f) / kE2m1Max); }

}  // namespace deepinfer
