#include "grammar/code_set.h"

#include <unicode/uset.h>

#include <algorithm>
#include <memory>

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kLastCode = 0x10FFFF;
constexpr CodeRange kSurrogates{0xD800, 0xDFFF};

struct CloseSet {
  void operator()(USet* set) const { uset_close(set); }
};
using SetHandle = std::unique_ptr<USet, CloseSet>;

CodeSet from_icu(const USet* set) {
  std::vector<CodeRange> ranges;
  const int32_t count = uset_getItemCount(set);
  for (int32_t i = 0; i < count; ++i) {
    UChar32 first = 0;
    UChar32 last = 0;
    UErrorCode error = U_ZERO_ERROR;
    // Items that are strings (case folding can give them) have a length of two or more: left out.
    if (uset_getItem(set, i, &first, &last, nullptr, 0, &error) == 0) {
      ranges.push_back({static_cast<uint32_t>(first), static_cast<uint32_t>(last)});
    }
  }
  return CodeSet::FromRanges(std::move(ranges));
}

}  // namespace

CodeSet::CodeSet(std::initializer_list<CodeRange> ranges) { *this = FromRanges(std::vector<CodeRange>(ranges)); }

CodeSet CodeSet::All() { return CodeSet({{0, kLastCode}}); }

CodeSet CodeSet::FromRanges(std::vector<CodeRange> ranges) {
  std::vector<CodeRange> cut;
  for (CodeRange range : ranges) {
    range.last = std::min(range.last, kLastCode);
    if (range.first > range.last) continue;
    if (range.first < kSurrogates.first) cut.push_back({range.first, std::min(range.last, kSurrogates.first - 1)});
    if (range.last > kSurrogates.last) cut.push_back({std::max(range.first, kSurrogates.last + 1), range.last});
  }
  std::sort(cut.begin(), cut.end(), [](const CodeRange& a, const CodeRange& b) { return a.first < b.first; });
  CodeSet set;
  for (const CodeRange& range : cut) {
    auto& out = set.ranges_;
    const bool joins = !out.empty() && (range.first <= out.back().last + 1 ||
                                        (out.back().last + 1 == kSurrogates.first && range.first == kSurrogates.last + 1));
    // The gap of the surrogates stays a gap: each range lowers to UTF-8 by itself.
    if (joins && range.first != kSurrogates.last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return set;
}

bool CodeSet::contains(uint32_t code) const {
  const auto at = std::upper_bound(ranges_.begin(), ranges_.end(), code,
                                   [](uint32_t value, const CodeRange& range) { return value < range.first; });
  return at != ranges_.begin() && code <= std::prev(at)->last;
}

CodeSet CodeSet::complement() const {
  std::vector<CodeRange> gaps;
  uint32_t next = 0;
  for (const CodeRange& range : ranges_) {
    if (range.first > next) gaps.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCode) gaps.push_back({next, kLastCode});
  return FromRanges(std::move(gaps));
}

CodeSet CodeSet::united(const CodeSet& other) const {
  std::vector<CodeRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return FromRanges(std::move(all));
}

CodeSet CodeSet::intersected(const CodeSet& other) const {
  std::vector<CodeRange> common;
  for (size_t i = 0, j = 0; i < ranges_.size() && j < other.ranges_.size();) {
    const CodeRange& a = ranges_[i];
    const CodeRange& b = other.ranges_[j];
    const uint32_t first = std::max(a.first, b.first);
    const uint32_t last = std::min(a.last, b.last);
    if (first <= last) common.push_back({first, last});
    if (a.last < b.last) {
      ++i;
    } else {
      ++j;
    }
  }
  return FromRanges(std::move(common));
}

Result<CodeSet> unicode_property(std::string_view name) {
  // ICU parses the name itself; only names get through, no pattern syntax.
  if (name.empty() || name.size() > 64) return Err(Status::InvalidArgument("Unicode property name of {} bytes", name.size()));
  std::u16string pattern = u"\\p{";
  for (const char c : name) {
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '=' ||
                      c == ' ' || c == '-';
    if (!word) return Err(Status::InvalidArgument("Unicode property \"{}\" is not known", name));
    pattern.push_back(static_cast<char16_t>(c));
  }
  pattern += u"}";
  UErrorCode error = U_ZERO_ERROR;
  const SetHandle set(uset_openPattern(pattern.data(), static_cast<int32_t>(pattern.size()), &error));
  if (U_FAILURE(error) || set == nullptr) return Err(Status::InvalidArgument("Unicode property \"{}\" is not known", name));
  return from_icu(set.get());
}

CodeSet with_other_case(const CodeSet& set) {
  const SetHandle icu(uset_openEmpty());
  for (const CodeRange& range : set.ranges()) {
    uset_addRange(icu.get(), static_cast<UChar32>(range.first), static_cast<UChar32>(range.last));
  }
  uset_closeOver(icu.get(), USET_CASE_INSENSITIVE);
  return from_icu(icu.get());
}

Result<std::vector<uint32_t>> decode_utf8(std::string_view text) {
  std::vector<uint32_t> codes;
  codes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    bool valid = length != 0 && i + length <= text.size();
    uint32_t code = length < 2 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; valid && k < length; ++k) {
      const auto byte = static_cast<uint8_t>(text[i + k]);
      valid = (byte & 0xC0) == 0x80;
      code = code << 6 | (byte & 0x3F);
    }
    if (valid && length == 3) valid = code >= 0x800 && (code < kSurrogates.first || code > kSurrogates.last);
    if (valid && length == 4) valid = code >= 0x10000 && code <= kLastCode;
    if (!valid) return Err(Status::InvalidArgument("invalid UTF-8 at byte {}", i));
    codes.push_back(code);
    i += length;
  }
  return codes;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  if (code < 0x10000) return put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
}

}  // namespace deepinfer::grammar
