#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "grammar/char_class.h"
#include "grammar/token_trie.h"

namespace deepinfer::grammar {

class TokenVocabulary;

/// The tokens of a vocabulary against one wide class of characters: which consist of such characters (the last may be cut off),
/// and where the others leave the class. In a place that takes any characters of the class, the mask is the first kind, a copy,
/// and what a walk over the few others that can leave there gives. Immutable but for tries made at first use, behind a mutex.
class ClassTable {
 public:
  /// Null where fewer than kWideTokens tokens consist of the class.
  static std::shared_ptr<const ClassTable> Make(const TokenVocabulary& vocabulary, const CharClass& chars);
  static constexpr size_t kWideTokens = 2048;

  /// ORs the tokens of at most `characters` characters (started ones included) into the mask.
  void add_tokens(uint64_t characters, std::span<uint32_t> mask) const;
  /// Tokens that leave the class with this byte behind zero or more whole characters.
  const TokenTrie& leaving(uint8_t byte) const;
  /// All tokens that leave the class, or null where they are so many that a walk over the whole vocabulary is as good.
  const TokenTrie* all_leaving() const;

 private:
  static constexpr size_t kCounted = 16;  ///< masks for 1 ... 16 characters, a list beyond
  static constexpr size_t kManyLeaving = 30000;

  const TokenVocabulary* vocabulary_ = nullptr;
  std::vector<std::vector<uint32_t>> up_to_;          ///< [n]: tokens of at most n characters; the last: all
  std::vector<std::pair<uint32_t, int32_t>> longer_;  ///< (characters, token), sorted, above kCounted
  std::array<std::vector<int32_t>, 256> leaving_tokens_;
  size_t leaving_count_ = 0;

  mutable std::mutex mutex_;
  mutable std::array<std::unique_ptr<TokenTrie>, 256> leaving_;
  mutable std::unique_ptr<TokenTrie> all_leaving_;
};

}  // namespace deepinfer::grammar
