#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

/// What a tokenizer.json says, checked: every id is in range and used once, every merge names known tokens, and every field
/// that would change how text is split or joined has the one value that this implementation follows (spec/protocol §2).
struct TokenizerFile {
  static constexpr int64_t kMaxFileBytes = 64 << 20;
  static constexpr int64_t kMaxVocabulary = 1 << 20;
  static constexpr int64_t kMaxMerges = 1 << 20;
  static constexpr size_t kMaxAddedTokens = 1 << 16;
  static constexpr size_t kMaxTokenBytes = 1024;
  static constexpr size_t kMaxTotalTokenBytes = 64 << 20;

  enum class Kind : uint8_t { kNone, kOrdinary, kAdded, kSpecial };
  struct Merge {
    int32_t left, right, merged;
  };

  std::vector<std::string> tokens;  ///< bytes by id: of an added token its literal text; empty where there is none
  std::vector<Kind> kinds;          ///< by id
  std::array<int32_t, 256> byte_ids{};
  std::vector<Merge> merges;  ///< by rank

  /// `source` stands in front of every message.
  static Result<TokenizerFile> Parse(std::string_view json, std::string_view source);
};

/// Code point that stands for a byte in the token strings of the file (the GPT-2 alphabet): U+0021..U+0143.
uint32_t byte_to_alphabet(uint8_t byte);

}  // namespace deepinfer
