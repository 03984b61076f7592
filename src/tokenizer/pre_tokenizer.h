#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/utf8.h"

namespace deepinfer {

/// General categories and the few other properties that the splits of spec/protocol §2 ask for, one byte per code point in a
/// two-stage table. Built once from ICU; a look-up is two loads.
class CharClasses {
 public:
  static constexpr uint8_t kLetter = 1;       // \p{L}
  static constexpr uint8_t kMark = 2;         // \p{M}
  static constexpr uint8_t kNumber = 4;       // \p{N}
  static constexpr uint8_t kPunctuation = 8;  // \p{P}
  static constexpr uint8_t kSymbol = 16;      // \p{S}
  static constexpr uint8_t kWhite = 32;       // \s: White_Space (U+0085 is in, U+001C..U+001F are not)
  static constexpr uint8_t kCjk = 64;         // the ranges of stage 2
  static constexpr uint8_t kNewline = 128;    // CR, LF

  static const CharClasses& instance();

  uint8_t ascii(uint8_t byte) const { return ascii_[byte]; }
  uint8_t of(uint32_t code_point) const {
    return blocks_[static_cast<size_t>(index_[code_point >> 8]) << 8 | (code_point & 0xFF)];
  }
  /// Class of the character at `p` in valid text.
  uint8_t at(const uint8_t* p, uint32_t& length) const {
    if (*p < 0x80) {
      length = 1;
      return ascii_[*p];
    }
    return of(utf8_decode_valid(p, length));
  }

 private:
  CharClasses();
  std::array<uint8_t, 256> ascii_{};
  std::array<uint16_t, 0x1100> index_{};
  std::vector<uint8_t> blocks_;
};

/// The pre-tokenizer of spec/protocol §2: numbers in threes, CJK runs, then one alternation of six, written out by hand.
///
/// The stages are applied one after the other, each to the pieces of the one before. That needs no separate passes: a piece
/// of stage 3 never crosses a border of stages 1 and 2, and on which side of such borders a character lies follows from its
/// own class (number / CJK / anything else). So the class of its first character decides in which region a piece lies, and the
/// matcher treats a character of another region as the end of the text; also the lookahead of 3e does.
class PreTokenizer {
 public:
  PreTokenizer(std::string_view valid_utf8)  // NOLINT(google-explicit-constructor)
      : classes_(CharClasses::instance()),
        at_(reinterpret_cast<const uint8_t*>(valid_utf8.data())),
        end_(at_ + valid_utf8.size()) {}

  /// Moves to the next piece; false at the end.
  bool next(std::string_view& piece) {
    if (at_ == end_) return false;
    const uint8_t* begin = at_;
    uint32_t length;
    const uint8_t bits = classes_.at(at_, length);
    if (bits & CharClasses::kNumber) {
      at_ = match_number(at_ + length);
    } else if (bits & CharClasses::kCjk) {
      at_ = match_or_gap<true>(bits, length);
    } else {
      at_ = match_or_gap<false>(bits, length);
    }
    piece = {reinterpret_cast<const char*>(begin), static_cast<size_t>(at_ - begin)};
    return true;
  }

 private:
  using C = CharClasses;
  static constexpr uint8_t kWord = C::kLetter | C::kMark;
  static constexpr uint8_t kSign = C::kPunctuation | C::kSymbol;

  template <bool kInCjk>
  static bool inside(uint8_t bits) {
    return kInCjk ? (bits & C::kCjk) != 0 : (bits & (C::kCjk | C::kNumber)) == 0;
  }

  /// Stage 1, `\p{N}{1,3}`; one number is already taken.
  const uint8_t* match_number(const uint8_t* p) const {
    for (int more = 0; more < 2 && p < end_; ++more) {
      uint32_t length;
      if (!(classes_.at(p, length) & C::kNumber)) break;
      p += length;
    }
    return p;
  }

  /// End of the run of characters of the region that have one of the `wanted` bits.
  template <bool kInCjk>
  const uint8_t* run(const uint8_t* p, uint8_t wanted) const {
    while (p < end_) {
      uint32_t length;
      const uint8_t bits = classes_.at(p, length);
      if (!inside<kInCjk>(bits) || !(bits & wanted)) break;
      p += length;
    }
    return p;
  }

  /// Stage 3 at `p`, whose character has class `bits`: the first alternative that matches, nullptr if none does.
  template <bool kInCjk>
  const uint8_t* match(const uint8_t* p, uint8_t bits, uint32_t length) const {
    const uint8_t* after = p + length;
    // 3b without its optional first character (3a needs a sign here, so it cannot be the one that matches).
    if (bits & kWord) return run<kInCjk>(after, kWord);
    uint32_t next_length = 0;
    uint8_t next_bits = 0;  // of the following character of this region; 0 where the region ends
    bool region_ends = true;
    if (after < end_) {
      next_bits = classes_.at(after, next_length);
      region_ends = !inside<kInCjk>(next_bits);
      if (region_ends) next_bits = 0;
    }
    if (bits & kSign) {
      // 3a: every ASCII sign is in its list. A letter below U+0080 is one of A-Za-z.
      if (*p < 0x80 && (next_bits & C::kLetter) && *after < 0x80) {
        do {
          ++after;
        } while (after < end_ && *after < 0x80 && (classes_.ascii(*after) & C::kLetter));
        return after;
      }
      return run<kInCjk>(run<kInCjk>(after, kSign), C::kNewline);  // 3c
    }
    if (!(bits & C::kNewline) && (next_bits & kWord)) return run<kInCjk>(after + next_length, kWord);  // 3b
    if (*p == ' ' && (next_bits & kSign)) {                                                            // 3c
      return run<kInCjk>(run<kInCjk>(after + next_length, kSign), C::kNewline);
    }
    return bits & C::kWhite ? match_white<kInCjk>(p) : nullptr;
  }

  /// 3d, 3e and 3f share their run of white space.
  template <bool kInCjk>
  const uint8_t* match_white(const uint8_t* begin) const {
    const uint8_t* p = begin;
    const uint8_t* last = begin;             // start of the last character of the run
    const uint8_t* after_newline = nullptr;  // \s* gives back until a newline follows: the match ends behind the last one
    bool region_ends = true;
    while (p < end_) {
      uint32_t length;
      const uint8_t bits = classes_.at(p, length);
      if (!(bits & C::kWhite)) {
        region_ends = !inside<kInCjk>(bits);
        break;
      }
      last = p;
      p += length;
      if (bits & C::kNewline) after_newline = p;
    }
    if (after_newline != nullptr) return after_newline;
    if (region_ends) return p;
    return last > begin ? last : p;  // 3e leaves one blank for the word that follows; a lone one is 3f's
  }

  /// A match at the current place, or the gap up to the next match or the end of the region.
  template <bool kInCjk>
  const uint8_t* match_or_gap(uint8_t bits, uint32_t length) const {
    const uint8_t* p = at_;
    if (const uint8_t* matched = match<kInCjk>(p, bits, length)) return matched;
    do {
      p += length;
      if (p == end_) break;
      bits = classes_.at(p, length);
    } while (inside<kInCjk>(bits) && match<kInCjk>(p, bits, length) == nullptr);
    return p;
  }

  const CharClasses& classes_;
  const uint8_t* at_;
  const uint8_t* end_;
};

/// All pieces of valid text, in order; together they are the text.
std::vector<std::string_view> pre_tokenize(std::string_view valid_utf8);

/// Which of the three stages a regular expression of a tokenizer.json is (0, 1, 2), or -1. The pattern is compared after
/// undoing the spellings that differ between files: `\"` for `"`, `\r` and `\n` for the characters themselves.
int recognise_split(std::string_view pattern);

}  // namespace deepinfer
