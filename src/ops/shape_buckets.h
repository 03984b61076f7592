#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace deepinfer {

/// The few row counts that steps are brought to where shapes are recorded: every count up to 8, then an eighth more at most.
inline int64_t row_bucket(int64_t rows) {
  if (rows <= 8) return rows;
  const int64_t step = std::max<int64_t>(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows))) / 8, 4);
  return (rows + step - 1) / step * step;
}

/// The same for lengths of context, from which launches take their sizes: a quarter more at most.
inline int64_t length_bucket(int64_t length) {
  constexpr int64_t kLeast = 1024;
  if (length <= 0) return 0;
  const int64_t step = std::max<int64_t>(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(length))) / 4, kLeast);
  return (length + step - 1) / step * step;
}

}  // namespace deepinfer
