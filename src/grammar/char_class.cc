#include "grammar/char_class.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>

namespace deepinfer::grammar {
namespace {

/// Characters that a JSON string can't hold as they are.
const CodeSet& escaped_codes() {
  static const CodeSet set({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return set;
}

constexpr std::string_view kShortEscapes = "\b\t\n\f\r\"\\";
constexpr std::string_view kShortLetters = "btnfr\"\\";

struct Sequence {
  int length;
  std::array<std::pair<uint8_t, uint8_t>, 4> bytes;
};

/// UTF-8 byte-range sequences of a code range, by splitting at the lengths and at aligned blocks of 64.
void split_utf8(uint32_t first, uint32_t last, std::vector<Sequence>& out) {
  for (const uint32_t limit : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (first <= limit && last > limit) {
      split_utf8(first, limit, out);
      split_utf8(limit + 1, last, out);
      return;
    }
  }
  if (first > 0x7F) {
    for (int shift = 6; shift <= 18; shift += 6) {
      const uint32_t block = (1u << shift) - 1;
      if ((first & ~block) == (last & ~block)) continue;
      if ((first & block) != 0) {
        split_utf8(first, first | block, out);
        split_utf8((first | block) + 1, last, out);
        return;
      }
      if ((last & block) != block) {
        split_utf8(first, (last & ~block) - 1, out);
        split_utf8(last & ~block, last, out);
        return;
      }
    }
  }
  std::string low;
  std::string high;
  append_utf8(low, first);
  append_utf8(high, last);
  Sequence sequence{static_cast<int>(low.size()), {}};
  for (size_t i = 0; i < low.size(); ++i) sequence.bytes[i] = {static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])};
  out.push_back(sequence);
}

}  // namespace

/// Grows the automaton as a tree, whose equal parts finish() merges.
class CharClassBuilder {
 public:
  explicit CharClassBuilder(CharClass& out) : out_(out) { add_state(); }

  /// Sequences in ascending order, from the start.
  void add(std::span<const Sequence> sequences) { fill(0, sequences, 0); }

  void add_text(std::string_view bytes) {
    uint16_t state = 0;
    for (size_t i = 0; i + 1 < bytes.size(); ++i) state = child(state, static_cast<uint8_t>(bytes[i]));
    out_.next_[state][static_cast<uint8_t>(bytes.back())] = CharClass::kDone;
  }

  /// Bytes of `digits` lead from `state` to `target`.
  void link(uint16_t state, std::string_view digits, uint16_t target) {
    for (const char digit : digits) out_.next_[state][static_cast<uint8_t>(digit)] = target;
  }

  uint16_t child(uint16_t state, uint8_t byte) {
    uint16_t next = out_.next_[state][byte];
    if (next == CharClass::kDead) {
      next = add_state();
      out_.next_[state][byte] = next;
    }
    return next;
  }

  uint16_t add_state() {
    out_.next_.emplace_back().fill(CharClass::kDead);
    return static_cast<uint16_t>(out_.next_.size() - 1);
  }

  /// Takes out other bytes, and states from which no character can be completed any more.
  void restrict_to(const ByteSet& allowed) {
    if (allowed.all()) return;
    for (auto& row : out_.next_) {
      for (size_t byte = 0; byte < 256; ++byte) {
        if (!allowed[byte]) row[byte] = CharClass::kDead;
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      std::vector<bool> dead(out_.next_.size());
      for (size_t i = 0; i < dead.size(); ++i) {
        dead[i] = std::all_of(out_.next_[i].begin(), out_.next_[i].end(), [](uint16_t next) { return next == CharClass::kDead; });
      }
      for (auto& row : out_.next_) {
        for (uint16_t& next : row) {
          if (next < CharClass::kDone && dead[next]) next = CharClass::kDead, changed = true;
        }
      }
    }
  }

  /// Merges equal states (refinement of a partition until it is stable) and fills in the live bytes.
  void finish() {
    std::vector<uint16_t> group(out_.next_.size(), 0);
    size_t groups = 1;
    std::vector<std::array<uint16_t, 256>> merged;
    while (true) {
      std::map<std::array<uint16_t, 256>, uint16_t> known;
      std::vector<uint16_t> refined(group.size());
      merged.clear();
      for (size_t i = 0; i < group.size(); ++i) {  // the start is met first and keeps number 0
        auto row = out_.next_[i];
        for (uint16_t& next : row) {
          if (next < CharClass::kDone) next = group[next];
        }
        const auto [at, added] = known.try_emplace(row, static_cast<uint16_t>(merged.size()));
        if (added) merged.push_back(row);
        refined[i] = at->second;
      }
      const bool stable = merged.size() == groups && refined == group;
      groups = merged.size();
      group = std::move(refined);
      if (stable) break;
    }
    out_.next_ = std::move(merged);
    out_.live_.resize(out_.next_.size());
    for (size_t i = 0; i < out_.next_.size(); ++i) {
      for (size_t byte = 0; byte < 256; ++byte) out_.live_[i][byte] = out_.next_[i][byte] != CharClass::kDead;
    }
  }

 private:
  /// At each byte the ranges of two sequences are equal or apart, so those with an equal range share a state; and equal tails
  /// share one too, or the larger classes would unfold to tens of thousands.
  void fill(uint16_t state, std::span<const Sequence> sequences, size_t at) {
    for (size_t begin = 0; begin < sequences.size();) {
      const auto [low, high] = sequences[begin].bytes[at];
      size_t end = begin + 1;
      while (end < sequences.size() && sequences[end].bytes[at] == sequences[begin].bytes[at] &&
             sequences[end].length == sequences[begin].length)
        ++end;
      const bool last = static_cast<int>(at) + 1 == sequences[begin].length;
      const uint16_t target = last ? CharClass::kDone : tail(sequences.subspan(begin, end - begin), at + 1);
      for (uint32_t byte = low; byte <= high; ++byte) out_.next_[state][byte] = target;
      begin = end;
    }
  }

  uint16_t tail(std::span<const Sequence> sequences, size_t at) {
    std::string key;
    for (const Sequence& sequence : sequences) {
      for (size_t i = at; i < static_cast<size_t>(sequence.length); ++i) {
        key.push_back(static_cast<char>(sequence.bytes[i].first));
        key.push_back(static_cast<char>(sequence.bytes[i].second));
      }
      key.push_back('\xFF');
    }
    const auto [known, added] = tails_.try_emplace(std::move(key), uint16_t{0});
    if (!added) return known->second;
    const uint16_t state = add_state();
    known->second = state;
    fill(state, sequences, at);
    return state;
  }

  std::map<std::string, uint16_t> tails_;
  CharClass& out_;
};

namespace {

/// Every escape of JSON; a pair of surrogates is one character, a lone one is none.
void add_free_escapes(CharClassBuilder& builder) {
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  const auto digits = [&](std::string_view first, uint16_t target) {
    const uint16_t state = builder.add_state();
    builder.link(state, first, target);
    return state;
  };
  const uint16_t one = digits(kHex, CharClass::kDone);
  const uint16_t two = digits(kHex, one);
  const uint16_t three = digits(kHex, two);
  const uint16_t low_half = digits("\\", digits("u", digits("dD", digits("cdefCDEF", two))));
  const uint16_t behind_d = digits("01234567", two);
  builder.link(behind_d, "89abAB", digits(kHex, digits(kHex, low_half)));
  const uint16_t u = digits("0123456789abcefABCEF", three);
  builder.link(u, "dD", behind_d);
  const uint16_t slash = digits("\"\\/bfnrt", CharClass::kDone);
  builder.link(slash, "u", u);
  builder.link(0, "\\", slash);
}

}  // namespace

std::string spell(uint32_t code, Spelling spelling) {
  std::string out;
  if (spelling != Spelling::kText && escaped_codes().contains(code)) {
    const size_t at = code < 0x80 ? kShortEscapes.find(static_cast<char>(code)) : std::string_view::npos;
    if (at != std::string_view::npos && code != 0) return {'\\', kShortLetters[at]};
    return fmt::format("\\u{:04x}", code);
  }
  append_utf8(out, code);
  return out;
}

std::string CharClass::KeyOf(const CodeSet& set, Spelling spelling) {
  std::string key(1, static_cast<char>(spelling));
  key.append(reinterpret_cast<const char*>(set.ranges().data()), set.ranges().size() * sizeof(CodeRange));
  return key;
}

std::shared_ptr<const CharClass> CharClass::Make(const CodeSet& set, Spelling spelling, const ByteSet& allowed) {
  auto result = std::make_shared<CharClass>();
  result->codes_ = set;
  result->spelling_ = spelling;
  result->key_ = KeyOf(set, spelling);
  CharClassBuilder builder(*result);
  CodeSet raw = set;
  if (spelling != Spelling::kText) {
    raw = set.minus(escaped_codes());
    if (spelling == Spelling::kJson) {
      for (const CodeRange& range : set.intersected(escaped_codes()).ranges()) {
        for (uint32_t code = range.first; code <= range.last; ++code) builder.add_text(spell(code, spelling));
      }
    } else {
      add_free_escapes(builder);
    }
  }
  std::vector<Sequence> sequences;
  for (const CodeRange& range : raw.ranges()) split_utf8(range.first, range.last, sequences);
  builder.add(sequences);
  builder.restrict_to(allowed);
  builder.finish();
  return result;
}

}  // namespace deepinfer::grammar
