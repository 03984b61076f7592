#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"

namespace deepinfer {

/// Which table rows the n-grams that end at a position hash to (spec/backbone §5.2, §5.3).
class EngramHash {
 public:
  /// Compressed id of a token that takes part in no n-gram (image span).
  static constexpr int32_t kDead = -1;

  /// `pad`: compressed id of the pad token.
  EngramHash(const ModelConfig& config, int32_t pad);

  /// rows [columns] of layer slot `slot`. `history`: compressed ids from the start of the sequence up to and including the
  /// position itself; look-back stops at its beginning and at dead tokens.
  void rows(int64_t slot, std::span<const int32_t> history, int64_t* rows) const;

  int64_t columns() const { return columns_; }
  /// Distinct primes, [slot][column]: orders first, heads within.
  const std::vector<std::vector<int64_t>>& primes() const { return primes_; }
  const std::vector<std::vector<int64_t>>& multipliers() const { return multipliers_; }

 private:
  int64_t orders_;
  int64_t heads_;
  int64_t columns_;
  int32_t pad_;
  std::vector<std::vector<int64_t>> primes_;
  std::vector<std::vector<uint64_t>> inverses_;  ///< of the primes: (2^64 - 1) / prime
  std::vector<std::vector<int64_t>> offsets_;
  std::vector<std::vector<int64_t>> multipliers_;  ///< [slot][look-back]
};

}  // namespace deepinfer
