#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_dfa.h"
#include "grammar/expr.h"

namespace deepinfer::grammar {

/// A regular expression over characters: the common subset of ECMA-262 and RE2. Back-references, look-around and word boundaries
/// are refused, by name and position.
///
/// `.` is any character but a line end; \d and \w are ASCII, \s is Unicode white space, \p{..} takes general categories, scripts
/// and binary properties; lazy quantifiers mean the same as greedy ones here. A `{` that starts no quantifier is itself.
struct RegexNode {
  enum class Kind : uint8_t { kEmpty, kNever, kChars, kSeq, kAlt, kRepeat, kStart, kEnd };
  Kind kind = Kind::kEmpty;
  CodeSet chars;
  std::vector<std::shared_ptr<const RegexNode>> parts;
  uint32_t min = 0;
  uint32_t max = 0;
};
using Regex = std::shared_ptr<const RegexNode>;

/// Where a pattern must match.
enum class RegexScope : uint8_t {
  kWhole,   ///< the whole text
  kSearch,  ///< somewhere in the text, as JSON Schema wants it
};

/// Parses and resolves anchors: the result has none, and describes the whole text.
Result<Regex> parse_regex(std::string_view pattern, RegexScope scope, const CompileLimits& limits);

ExprId lower_regex(const Regex& regex, Spelling spelling, Grammar& grammar);
CharDfa dfa_of_regex(const Regex& regex, Work& work);

}  // namespace deepinfer::grammar
