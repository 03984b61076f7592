#pragma once

// The noise of sampling (spec/sampling §4.2): a pure function of seed, position and token, with the same bits on every device.

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/fixed_math.h"
#include "base/philox.h"

namespace deepinfer {

/// Stream of the noise; part of the counter.
enum class NoiseStream : uint32_t { kTarget = 0, kDraft = 1, kAcceptance = 2, kResidual = 3, kSpare = 4 };

/// Counter and key of the four words that tokens token_id & ~3 ... token_id | 3 share.
constexpr std::array<uint32_t, 4> noise_counter(int32_t token_id, int64_t position, NoiseStream stream, uint32_t choice_index) {
  return {static_cast<uint32_t>(token_id) >> 2, static_cast<uint32_t>(position),
          static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32), static_cast<uint32_t>(stream) | choice_index << 8};
}
constexpr std::array<uint32_t, 2> noise_key(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

/// -log(E), E = -log1p(-u): what is added to a logit before the argmax.
constexpr float gumbel(uint32_t word) {
  // u is a multiple of 2^-33, so 1 - u is exact and log1p(-u) = log(1 - u). Everything stays in FP64 and is rounded once.
  const double u = std::min(static_cast<double>(word) * 0x1p-32 + 0x1p-33, 1.0 - 0x1p-24);
  return static_cast<float>(-fixed_log(-fixed_log(1.0 - u)));
}

/// Upper bound of gumbel(w) for every w with `zeros` leading zeros.
///
/// With c leading zeros w >= 2^(31-c), or w = 0 and c = 32; either way u >= 2^-(c+1). E = -log1p(-u) >= u, so
/// -log(E) <= (c+1) ln 2. The addend covers the rounding of this and of gumbel itself. That of 32, 22.88, bounds all.
constexpr float noise_bound(int zeros) { return static_cast<float>((zeros + 1) * kLn2 + 1e-5); }

}  // namespace deepinfer
