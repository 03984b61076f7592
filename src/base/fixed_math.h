#pragma once

// exp and log with a fixed sequence of IEEE additions, multiplications and divisions in FP64 (the build sets
// -ffp-contract=off). A C library's own may differ in the last bit between versions and between the instruction sets it picks
// at run time, and one bit can change a drawn token; these give the same bits wherever fp64 does, GPUs included
// (spec/sampling §4.2, "one fixed log/log1p"); constexpr is what lets device code call them. Relative error below 1e-15, far
// below the fp32 that results are rounded to.

#include <bit>
#include <cstdint>

namespace deepinfer {

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;

/// Natural logarithm of a positive, finite, normal x. Keeps its relative precision near 1, so log1p(-u) is fixed_log(1 - u)
/// wherever 1 - u is exact.
constexpr double fixed_log(double x) {
  // x = 2^k * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716.
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdull;
  const uint64_t shifted = std::bit_cast<uint64_t>(x) - kSqrtHalf;
  const int64_t k = static_cast<int64_t>(shifted) >> 52;
  const double m = std::bit_cast<double>((shifted & 0x000fffffffffffffull) + kSqrtHalf);
  const double f = m - 1.0;
  const double s = f / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 23.0;
  for (const double c :
       {1.0 / 21.0, 1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0}) {
    p = p * z + c;
  }
  return static_cast<double>(k) * kLn2 + (2.0 * s + 2.0 * s * z * p);
}

/// e^x for x <= 0; 0 below -700.
constexpr double fixed_exp(double x) {
  if (!(x > -700.0)) return 0.0;
  // x = k ln 2 + r, |r| <= ln(2) / 2. Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
  constexpr double kRound = 0x1.8p52;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 21 trailing zero bits: k * kLn2High is exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const double biased = x * 0x1.71547652b82fep+0 + kRound;
  const double k = biased - kRound;
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double p = 1.0 / 6227020800.0;
  for (const double c : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0,
                         1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0}) {
    p = p * r + c;
  }
  p = p * r + 1.0;
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(biased) + 1023) << 52);
}

/// Softmax weight of a logit against the largest one. Infinite maxima (a huge bias or a tiny repetition penalty) share the mass.
constexpr double softmax_weight(float z, float z_max) {
  return z == z_max ? 1.0 : fixed_exp(static_cast<double>(z) - static_cast<double>(z_max));
}

/// Order in which a softmax mass is summed: token v belongs to sum v % kMassLanes, ascending in each; then the upper half of the
/// sums is added to the lower until one is left.
inline constexpr int kMassLanes = 1024;

}  // namespace deepinfer
