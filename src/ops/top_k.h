#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace deepinfer {

/// Sorting key of (score, index): smaller is better; higher score first, equal scores lower index first (spec §3.8). -0 and +0
/// are one score, NaN comes last.
inline uint64_t rank_key(float score, uint32_t index) {
  if (score != score) return (uint64_t{0xffffffffu} << 32) | index;
  const uint32_t u = std::bit_cast<uint32_t>(score + 0.0f);
  const uint32_t ordered = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
  return (static_cast<uint64_t>(~ordered) << 32) | index;
}

/// The k best of scores[0, n), ascending by index, into `chosen`. `keys` is scratch.
inline void choose_top(const float* scores, int64_t n, int64_t k, std::vector<uint64_t>& keys, int32_t* chosen) {
  keys.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) keys[static_cast<size_t>(i)] = rank_key(scores[i], static_cast<uint32_t>(i));
  if (k < n) std::nth_element(keys.begin(), keys.begin() + k, keys.end());
  for (int64_t i = 0; i < k; ++i) chosen[i] = static_cast<int32_t>(keys[static_cast<size_t>(i)] & 0xffffffffu);
  std::sort(chosen, chosen + k);
}

}  // namespace deepinfer
