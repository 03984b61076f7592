#include "base/scalar_types.h"

#include <algorithm>

namespace deepinfer {
namespace {

std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (int b = 0; b < 256; ++b) {
    const int exponent = (b >> 3) & 15;
    const int mantissa = b & 7;
    float v = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                            : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
    if ((b & 0x7f) == 0x7f) v = std::bit_cast<float>(0x7fc00000u);
    values[static_cast<size_t>(b)] = (b & 128) != 0 ? -v : v;
  }
  return values;
}

}  // namespace

const std::array<float, 256> kE4m3Values = make_e4m3_values();

uint8_t float_to_e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  const float a = std::fabs(x);
  if (std::isnan(a)) return static_cast<uint8_t>(sign | 0x7f);
  if (a >= kE4m3Max) return static_cast<uint8_t>(sign | 0x7e);
  if (a < 0x1p-6f) {
    // Subnormal: a multiple of 2^-9, where 8 steps reach the first normal number.
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(a * 0x1p9f)));
  }
  const uint32_t m = std::bit_cast<uint32_t>(a);
  const uint32_t rounded = m + 0x7ffffu + ((m >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - ((127u - 7u) << 3);
  return static_cast<uint8_t>(sign | std::min<uint32_t>(code, 0x7e));
}

uint8_t float_to_e2m1(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 8 : 0);
  const float a = std::fabs(x);
  uint8_t code = 0;
  if (a <= 0.25f)
    code = 0;
  else if (a < 0.75f)
    code = 1;
  else if (a <= 1.25f)
    code = 2;
  else if (a < 1.75f)
    code = 3;
  else if (a <= 2.5f)
    code = 4;
  else if (a < 3.5f)
    code = 5;
  else if (a <= 5.0f)
    code = 6;
  else
    code = 7;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace deepinfer
