#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/scalar_types.h"

namespace deepinfer::testing {

/// Random numbers for tests: the same on every machine and library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {
    // Scattered: neighbouring seeds would otherwise give one stream, shifted by a draw.
    state_ = bits() ^ 0xA0761D6478BD642Full;
  }

  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// In [0, n).
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  /// In [first, last].
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// Near enough to a normal distribution: a sum of uniforms, without library functions that differ between machines.
  float normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum - 6.0);
  }

 private:
  uint64_t state_;
};

}  // namespace deepinfer::testing
