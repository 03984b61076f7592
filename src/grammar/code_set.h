#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::grammar {

struct CodeRange {
  uint32_t first;
  uint32_t last;
  bool operator==(const CodeRange&) const = default;
};

/// A set of Unicode scalar values: sorted, disjoint, non-adjacent ranges. Surrogates are never members.
class CodeSet {
 public:
  CodeSet() = default;
  CodeSet(std::initializer_list<CodeRange> ranges);
  static CodeSet All();
  static CodeSet One(uint32_t code) { return CodeSet({{code, code}}); }
  static CodeSet FromRanges(std::vector<CodeRange> ranges);

  const std::vector<CodeRange>& ranges() const& { return ranges_; }
  std::vector<CodeRange> ranges() && { return std::move(ranges_); }  // a loop over a temporary's ranges keeps them
  bool empty() const { return ranges_.empty(); }
  bool contains(uint32_t code) const;
  CodeSet complement() const;
  CodeSet united(const CodeSet& other) const;
  CodeSet intersected(const CodeSet& other) const;
  CodeSet minus(const CodeSet& other) const { return intersected(other.complement()); }
  bool operator==(const CodeSet&) const = default;

 private:
  std::vector<CodeRange> ranges_;
};

/// The members of \p{name}: a general category or group ("L", "Lu"), a script ("Greek", "Script=Greek") or a binary property
/// ("Alphabetic"). An error names what is not known.
Result<CodeSet> unicode_property(std::string_view name);
/// The set with the other letter case of each member.
CodeSet with_other_case(const CodeSet& set);

/// Code points of a UTF-8 text; an error at the first invalid byte.
Result<std::vector<uint32_t>> decode_utf8(std::string_view text);
void append_utf8(std::string& out, uint32_t code);

}  // namespace deepinfer::grammar
