#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grammar/code_set.h"

namespace deepinfer::grammar {

/// How a character is written as bytes.
enum class Spelling : uint8_t {
  kText,      ///< UTF-8
  kJson,      ///< inside a JSON string: UTF-8, and the shortest escape where JSON demands one
  kJsonFree,  ///< inside a JSON string: kJson, or any other escape (only for the set of all characters)
};

using ByteSet = std::bitset<256>;

/// The spellings of one character of a set, as a byte automaton. They form a prefix code: a spelling that is complete can't be
/// continued, so a text splits into characters in one way. Immutable.
class CharClass {
 public:
  static constexpr uint16_t kDead = 0xFFFF;
  static constexpr uint16_t kDone = 0xFFFE;

  /// States are at most a few hundred even for the largest Unicode classes.
  /// Spellings with a byte outside `allowed` are left out; all of them may be, then no byte of state 0 is live.
  static std::shared_ptr<const CharClass> Make(const CodeSet& set, Spelling spelling, const ByteSet& allowed = ByteSet().set());

  /// The state behind `byte`, kDone when the character is complete, or kDead. State 0 is the start.
  uint16_t step(uint16_t state, uint8_t byte) const { return next_[state][byte]; }
  size_t states() const { return next_.size(); }
  /// Bytes that lead somewhere from a state.
  const ByteSet& live_bytes(uint16_t state) const { return live_[state]; }
  const CodeSet& codes() const { return codes_; }
  Spelling spelling() const { return spelling_; }
  /// Two classes with one key are the same class.
  const std::string& key() const { return key_; }
  static std::string KeyOf(const CodeSet& set, Spelling spelling);

 private:
  friend class CharClassBuilder;
  std::vector<std::array<uint16_t, 256>> next_;
  std::vector<ByteSet> live_;
  CodeSet codes_;
  Spelling spelling_ = Spelling::kText;
  std::string key_;
};

/// The spelling of one character.
std::string spell(uint32_t code, Spelling spelling);

}  // namespace deepinfer::grammar
