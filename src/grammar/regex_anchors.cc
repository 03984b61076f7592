#include "grammar/regex_anchors.h"

#include <array>

namespace deepinfer::grammar {
namespace {

using Kind = RegexNode::Kind;

/// One expression in four parts, by what it asks of its place: [0] nothing, [1] the text starts where it starts, [2] the text
/// ends where it ends, [3] both. Null: no such part. None has anchors inside.
using Variants = std::array<Regex, 4>;
constexpr size_t kStarts = 1;
constexpr size_t kEnds = 2;

Regex make(Kind kind, std::vector<Regex> parts = {}) {
  auto node = std::make_shared<RegexNode>();
  node->kind = kind;
  node->parts = std::move(parts);
  return node;
}

Regex repeat(const Regex& part, uint32_t min, uint32_t max) {
  auto node = std::make_shared<RegexNode>();
  node->kind = Kind::kRepeat;
  node->parts = {part};
  node->min = min;
  node->max = max;
  return node;
}

void add(Regex& to, Regex part) { to = to == nullptr ? std::move(part) : make(Kind::kAlt, {to, std::move(part)}); }

bool matches_empty(const RegexNode& node) {
  switch (node.kind) {
    case Kind::kEmpty:
      return true;
    case Kind::kSeq:
      for (const auto& part : node.parts) {
        if (!matches_empty(*part)) return false;
      }
      return true;
    case Kind::kAlt:
      for (const auto& part : node.parts) {
        if (matches_empty(*part)) return true;
      }
      return false;
    case Kind::kRepeat:
      return node.min == 0 || matches_empty(*node.parts[0]);
    default:
      return false;
  }
}

Variants join(const Variants& first, const Variants& second) {
  Variants out;
  for (size_t a = 0; a < 4; ++a) {
    if (first[a] == nullptr) continue;
    for (size_t b = 0; b < 4; ++b) {
      if (second[b] == nullptr) continue;
      // A text that starts at the second part has nothing in the first, and the other way round.
      const bool first_empty = (b & kStarts) != 0;
      const bool second_empty = (a & kEnds) != 0;
      if ((first_empty && !matches_empty(*first[a])) || (second_empty && !matches_empty(*second[b]))) continue;
      std::vector<Regex> parts;
      if (!first_empty) parts.push_back(first[a]);
      if (!second_empty) parts.push_back(second[b]);
      add(out[a | b], make(Kind::kSeq, std::move(parts)));
    }
  }
  return out;
}

Result<Variants> variants(const Regex& node) {
  Variants out;
  switch (node->kind) {
    case Kind::kStart:
      out[kStarts] = make(Kind::kEmpty);
      return out;
    case Kind::kEnd:
      out[kEnds] = make(Kind::kEmpty);
      return out;
    case Kind::kSeq: {
      out[0] = make(Kind::kEmpty);
      std::vector<Regex> plain;  // a run without anchors stays one flat sequence
      const auto flush = [&] {
        if (plain.empty()) return;
        Variants run;
        run[0] = make(Kind::kSeq, std::move(plain));
        plain.clear();
        out = join(out, run);
      };
      for (const auto& part : node->parts) {
        DI_ASSIGN_OR_RETURN(const Variants next, variants(part));
        if (next[0] != nullptr && next[1] == nullptr && next[2] == nullptr && next[3] == nullptr) {
          plain.push_back(next[0]);
          continue;
        }
        flush();
        out = join(out, next);
      }
      flush();
      return out;
    }
    case Kind::kAlt: {
      std::array<std::vector<Regex>, 4> lists;
      for (const auto& part : node->parts) {
        DI_ASSIGN_OR_RETURN(const Variants next, variants(part));
        for (size_t i = 0; i < 4; ++i) {
          if (next[i] != nullptr) lists[i].push_back(next[i]);
        }
      }
      for (size_t i = 0; i < 4; ++i) {
        if (!lists[i].empty()) out[i] = make(Kind::kAlt, std::move(lists[i]));
      }
      return out;
    }
    case Kind::kRepeat: {
      DI_ASSIGN_OR_RETURN(const Variants inner, variants(node->parts[0]));
      if (inner[1] == nullptr && inner[2] == nullptr && inner[3] == nullptr) {
        out[0] = repeat(inner[0] == nullptr ? make(Kind::kNever) : inner[0], node->min, node->max);
        return out;
      }
      if (node->min > 1) return Err(Status::Unimplemented("pattern: an anchor in a group that is repeated {} times", node->min));
      // Zero times, or a first, some between, and a last one; only the first can start the text, only the last can end it.
      const Regex between = inner[0] == nullptr ? make(Kind::kEmpty)
                                                : repeat(inner[0], 0,
                                                         node->max < 2             ? 0
                                                         : node->max == kUnbounded ? kUnbounded
                                                                                   : node->max - 2);
      Variants middle;
      middle[0] = between;
      out = inner;
      if (node->max >= 2) {
        const Variants more = join(join(inner, middle), inner);
        for (size_t i = 0; i < 4; ++i) {
          if (more[i] != nullptr) add(out[i], more[i]);
        }
      }
      if (node->min == 0) add(out[0], make(Kind::kEmpty));
      return out;
    }
    default:
      out[0] = node;
      return out;
  }
}

}  // namespace

Result<Regex> resolve_anchors(const Regex& regex, RegexScope scope) {
  DI_ASSIGN_OR_RETURN(const Variants parts, variants(regex));
  auto any = std::make_shared<RegexNode>();
  any->kind = Kind::kChars;
  any->chars = CodeSet::All();
  const Regex anything = repeat(any, 0, kUnbounded);
  Regex out;
  for (size_t i = 0; i < 4; ++i) {
    if (parts[i] == nullptr) continue;
    std::vector<Regex> sequence;
    if (scope == RegexScope::kSearch && (i & kStarts) == 0) sequence.push_back(anything);
    sequence.push_back(parts[i]);
    if (scope == RegexScope::kSearch && (i & kEnds) == 0) sequence.push_back(anything);
    add(out, make(Kind::kSeq, std::move(sequence)));
  }
  return out == nullptr ? make(Kind::kNever) : out;
}

}  // namespace deepinfer::grammar
