// Included once per instruction set (see row_ops.cc): 16 floats as the compiler's vector type, which becomes as many registers as
// the set needs. No include guard by design of foreach_target.

#if defined(DEEPINFER_VECTOR16_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_VECTOR16_H
#undef DEEPINFER_VECTOR16_H
#else
#define DEEPINFER_VECTOR16_H
#endif

#include <cstdint>
#include <cstring>

#include "base/scalar_types.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::cpu::HWY_NAMESPACE {

using Float16 = float __attribute__((vector_size(64)));
using Int16 = int32_t __attribute__((vector_size(64)));
using Uint16 = uint32_t __attribute__((vector_size(64)));
using Half16 = uint16_t __attribute__((vector_size(32)));
using Byte16 = uint8_t __attribute__((vector_size(16)));

template <typename V, typename T>
inline V load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

template <typename V, typename T>
inline void store(T* p, V v) {
  std::memcpy(static_cast<void*>(p), &v, sizeof(V));
}

inline Float16 splat(float x) { return Float16{} + x; }
inline Float16 as_float(Uint16 u) { return (Float16)u; }
inline Uint16 as_bits(Float16 f) { return (Uint16)f; }
inline Int16 as_int(Uint16 u) { return (Int16)u; }

inline Float16 load_bf16(const bf16* p) { return as_float(__builtin_convertvector(load<Half16>(p), Uint16) << 16); }

/// Rounded to nearest even; no NaN expected (a NaN stays a NaN unless its payload is all ones in the low half).
inline void store_bf16(bf16* p, Float16 v) {
  const Uint16 u = as_bits(v);
  const Uint16 r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  store(p, __builtin_convertvector(r, Half16));
}

inline Float16 round_to_bf16(Float16 v) {
  const Uint16 u = as_bits(v);
  return as_float((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

inline Float16 select(Int16 mask, Float16 yes, Float16 no) {
  return as_float(((Uint16)mask & as_bits(yes)) | (~(Uint16)mask & as_bits(no)));
}
inline Float16 abs(Float16 v) { return as_float(as_bits(v) & 0x7fffffffu); }
inline Float16 max(Float16 a, Float16 b) { return select(a > b, a, b); }
inline Float16 min(Float16 a, Float16 b) { return select(a < b, a, b); }

/// The fixed tree of lanes.
inline float sum(Float16 v) {
  float f[16];
  store(f, v);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) f[i] += f[i + step];
  }
  return f[0];
}

inline float largest(Float16 v) {
  float f[16];
  store(f, v);
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) f[i] = f[i] > f[i + step] ? f[i] : f[i + step];
  }
  return f[0];
}

/// e^x to about one unit in the last place, by 2^n * polynomial; x below -87 gives 0. The same operations on every machine.
inline Float16 exp(Float16 x) {
  const Float16 clamped = min(max(x, splat(-87.0f)), splat(88.0f));
  const Float16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Float16 n = (clamped * 1.44269504088896341f + magic) - magic;
  const Float16 r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Float16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const Float16 e = p * (r * r) + r + 1.0f;
  const Int16 exponent = (__builtin_convertvector(n, Int16) + 127) << 23;
  const Float16 power = as_float((Uint16)exponent);
  return select(x < splat(-87.0f), splat(0.0f), e * power);
}

/// Nearest E4M3 value of v, |v| <= 448.
inline Float16 round_e4m3(Float16 v) {
  const Uint16 u = as_bits(v);
  const Float16 normal = as_float((u + 0x7ffffu + ((u >> 20) & 1u)) & 0xfff00000u);
  const Float16 step = splat(0x1.8p14f);  // adding it rounds to multiples of 2^-9
  const Float16 small = as_float((as_bits((abs(v) + step) - step)) | (u & 0x80000000u));
  return select(abs(v) < splat(0x1p-6f), small, normal);
}

/// Nearest E2M1 value of v, |v| <= 6: multiples of 0.5 below 2, of 1 below 4, of 2 above.
inline Float16 round_e2m1(Float16 v) {
  const Float16 a = abs(v);
  const Float16 half = splat(0x1.8p22f);
  const Float16 one = splat(0x1.8p23f);
  const Float16 two = splat(0x1.8p24f);
  const Float16 r = select(a < splat(2.0f), (a + half) - half, select(a < splat(4.0f), (a + one) - one, (a + two) - two));
  return as_float(as_bits(r) | (as_bits(v) & 0x80000000u));
}

/// fp32 values of 16 E4M3 bytes; no NaN codes.
inline Float16 decode_e4m3(const uint8_t* p) {
  const Uint16 b = __builtin_convertvector(load<Byte16>(p), Uint16);
  const Uint16 sign = (b & 0x80u) << 24;
  const Uint16 magnitude = b & 0x7fu;
  const Float16 normal = as_float((magnitude << 20) + (120u << 23));
  const Float16 small = __builtin_convertvector(as_int(magnitude), Float16) * 0x1p-9f;
  const Uint16 v = as_bits(select(as_int(magnitude) < 8, small, normal));
  return as_float(v | sign);
}

/// fp32 values of 16 E2M1 codes, one per element.
inline Float16 decode_e2m1(Uint16 code) {
  const Uint16 sign = (code & 8u) << 28;
  const Uint16 magnitude = code & 7u;
  const Float16 normal = as_float((magnitude << 22) + (126u << 23));
  const Float16 small = __builtin_convertvector(as_int(magnitude), Float16) * 0.5f;
  const Uint16 v = as_bits(select(as_int(magnitude) < 2, small, normal));
  return as_float(v | sign);
}

/// fp32 values of columns [0, 16) of packed codes (8 bytes), low nibble first.
inline Float16 decode_e2m1_pairs(const uint8_t* p) {
  Uint16 code;
  for (int i = 0; i < 8; ++i) {
    code[2 * i] = p[i] & 15u;
    code[2 * i + 1] = p[i] >> 4;
  }
  return decode_e2m1(code);
}

}  // namespace deepinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
