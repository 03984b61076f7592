#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer_file.h"

namespace deepinfer {

/// Byte-pair merging of one piece of text: the adjacent pair of lowest rank first, leftmost on ties (spec/protocol §2).
/// Immutable after construction.
class Bpe {
 public:
  explicit Bpe(const TokenizerFile& file);

  /// Appends the ids of one piece.
  void encode(std::string_view piece, std::vector<int32_t>& out) const;
  /// The same by merging alone, without the look-up of whole tokens.
  void merge(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  static constexpr int kIdBits = 21;
  static constexpr int kRankBits = 20;
  static constexpr int32_t kNoRank = -1;
  static constexpr size_t kSmallPiece = 128;

  int32_t rank(int32_t left, int32_t right) const {
    const uint64_t key = static_cast<uint64_t>(left) << kIdBits | static_cast<uint64_t>(right);
    const uint64_t h = key * kMix;
    if (!(filter_[h >> kFilterShift >> 6] >> (h >> kFilterShift & 63) & 1)) return kNoRank;
    for (uint64_t slot = h >> pair_shift_;; slot = (slot + 1) & pair_mask_) {
      const uint64_t entry = pairs_[slot];
      if (entry == kEmpty) return kNoRank;
      if (entry >> kRankBits == key) return static_cast<int32_t>(entry & ((1u << kRankBits) - 1));
    }
  }
  void insert_pair(int32_t left, int32_t right, int32_t rank);
  void merge_small(const uint8_t* bytes, size_t n, std::vector<int32_t>& out) const;
  void merge_large(const uint8_t* bytes, size_t n, std::vector<int32_t>& out) const;

  static uint64_t hash(std::string_view text);
  void insert_word(int32_t id);
  int32_t find_word(std::string_view text) const;
  std::string_view bytes_of(int32_t id) const { return {arena_.data() + begins_[id], begins_[id + 1] - begins_[id]}; }

  static constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  std::array<int32_t, 256> byte_ids_{};
  std::vector<int32_t> byte_pair_ranks_;  // [256][256], for the first round of every piece
  // Open addressing, at most half full: left id, right id and rank packed into one word.
  std::vector<uint64_t> pairs_;
  uint64_t pair_mask_ = 0;
  int pair_shift_ = 63;
  std::vector<int32_t> merged_;  // by rank
  // One bit per pair by its hash. Most pairs asked for do not merge; this answers from the second-level cache.
  static constexpr int kFilterShift = 64 - 21;
  std::vector<uint64_t> filter_;

  // Tokens that merging produces from their own bytes: such a piece need not be merged. That is not all of them: a token that
  // is only reachable as a part of other texts, or shadowed by a lower-ranked pair, must not be taken whole.
  std::vector<uint64_t> words_;  // upper half of the hash, id
  uint64_t word_mask_ = 0;
  size_t longest_word_ = 0;
  std::vector<char> arena_;
  std::vector<uint32_t> begins_;
};

}  // namespace deepinfer
