#include <algorithm>

#include "grammar/regex.h"
#include "grammar/regex_anchors.h"

namespace deepinfer::grammar {
namespace {

using Kind = RegexNode::Kind;

constexpr uint32_t kMaxCount = 1000000;
constexpr uint32_t kNoCode = 0xFFFFFFFF;

const CodeSet& digits() {
  static const CodeSet set({{'0', '9'}});
  return set;
}
const CodeSet& word() {
  static const CodeSet set({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}});
  return set;
}
const CodeSet& space() {
  static const CodeSet set({{9, 13},
                            {' ', ' '},
                            {0xA0, 0xA0},
                            {0x1680, 0x1680},
                            {0x2000, 0x200A},
                            {0x2028, 0x2029},
                            {0x202F, 0x202F},
                            {0x205F, 0x205F},
                            {0x3000, 0x3000},
                            {0xFEFF, 0xFEFF}});
  return set;
}
const CodeSet& line_end() {
  static const CodeSet set({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
  return set;
}

Regex make(Kind kind) {
  auto node = std::make_shared<RegexNode>();
  node->kind = kind;
  return node;
}

class Parser {
 public:
  Parser(const std::vector<uint32_t>& text, const CompileLimits& limits) : text_(text), limits_(limits) {}

  Result<Regex> parse() {
    Regex out = alternatives(0);
    if (ok() && at_ < text_.size()) fail("unmatched \")\"");
    if (!ok()) return Err(error_);
    return out;
  }

 private:
  bool ok() const { return error_.ok(); }
  bool more() const { return ok() && at_ < text_.size(); }
  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : kNoCode; }
  bool take(uint32_t code) {
    if (peek() != code) return false;
    ++at_;
    return true;
  }
  Regex fail(std::string_view reason) {
    if (ok()) error_ = Status::InvalidArgument("pattern, position {}: {}", at_, reason);
    return make(Kind::kNever);
  }
  Regex chars(CodeSet set) const {
    if (ignore_case_) set = with_other_case(set);
    auto node = std::make_shared<RegexNode>();
    node->kind = Kind::kChars;
    node->chars = std::move(set);
    return node;
  }

  Regex alternatives(int64_t depth) {
    if (depth > limits_.depth) return fail("groups are nested too deep");
    auto node = std::make_shared<RegexNode>();
    node->kind = Kind::kAlt;
    do {
      node->parts.push_back(sequence(depth));
    } while (ok() && take('|'));
    return node->parts.size() == 1 ? node->parts[0] : node;
  }

  Regex sequence(int64_t depth) {
    auto node = std::make_shared<RegexNode>();
    node->kind = Kind::kSeq;
    while (more() && peek() != '|' && peek() != ')') node->parts.push_back(quantified(depth));
    return node->parts.size() == 1 ? node->parts[0] : node;
  }

  Regex quantified(int64_t depth) {
    Regex item = atom(depth);
    while (more()) {
      uint32_t min = 0;
      uint32_t max = kUnbounded;
      if (take('*')) {
      } else if (take('+')) {
        min = 1;
      } else if (take('?')) {
        max = 1;
      } else if (peek() == '{' && counts(min, max)) {
      } else {
        break;
      }
      if (!ok()) break;
      if (min > max) return fail("the counts of a quantifier are out of order");
      take('?');
      if (++quantifiers_ > 100000) return fail("too many quantifiers");
      auto node = std::make_shared<RegexNode>();
      node->kind = Kind::kRepeat;
      node->min = min;
      node->max = max;
      node->parts.push_back(std::move(item));
      item = std::move(node);
      if (peek() == '*' || peek() == '+' || peek() == '?') return fail("a quantifier follows a quantifier");
    }
    return item;
  }

  /// "{2}", "{2,}", "{2,5}"; anything else is a literal brace.
  bool counts(uint32_t& min, uint32_t& max) {
    size_t i = at_ + 1;
    const auto number = [&](uint32_t& value) {
      const size_t begin = i;
      uint64_t read = 0;
      for (; i < text_.size() && text_[i] >= '0' && text_[i] <= '9'; ++i)
        read = std::min<uint64_t>(read * 10 + (text_[i] - '0'), kMaxCount + 1);
      value = static_cast<uint32_t>(read);
      return i > begin;
    };
    if (!number(min)) return false;
    max = min;
    if (i < text_.size() && text_[i] == ',') {
      ++i;
      if (!number(max)) max = kUnbounded;
    }
    if (i >= text_.size() || text_[i] != '}') return false;
    if (min > kMaxCount || (max != kUnbounded && max > kMaxCount)) fail("a count above 1000000");
    at_ = i + 1;
    return true;
  }

  Regex atom(int64_t depth) {
    const uint32_t code = text_[at_];
    switch (code) {
      case '(':
        return group(depth);
      case '[':
        return chars(bracket());
      case '.':
        ++at_;
        return chars(line_end().complement());
      case '^':
        ++at_;
        return make(Kind::kStart);
      case '$':
        ++at_;
        return make(Kind::kEnd);
      case '*':
      case '+':
      case '?':
        return fail("nothing to repeat");
      case '\\':
        return escape_atom();
      default:
        ++at_;
        return chars(CodeSet::One(code));
    }
  }

  Regex group(int64_t depth) {
    ++at_;
    const bool outer_case = ignore_case_;
    if (take('?')) {
      if (peek() == '=' || peek() == '!') return fail("look-ahead is not supported");
      if (peek() == '<' && (peek(1) == '=' || peek(1) == '!')) return fail("look-behind is not supported");
      if (peek() == '>') return fail("atomic groups are not supported");
      if (peek() == 'P' && peek(1) == '<') ++at_;
      if (take('<')) {
        while (more() && peek() != '>') ++at_;
        if (!take('>')) return fail("a group name without \">\"");
      } else if (take('i')) {
        ignore_case_ = true;
        if (take(')')) return make(Kind::kEmpty);  // to the end of the enclosing group
        if (!take(':')) return fail("unknown group flags");
      } else if (!take(':')) {
        return fail("unknown group syntax");
      }
    }
    Regex inner = alternatives(depth + 1);
    if (ok() && !take(')')) return fail("a group without \")\"");
    ignore_case_ = outer_case;
    return inner;
  }

  Regex escape_atom() {
    const uint32_t next = peek(1);
    if (next == 'b' || next == 'B') return fail("word boundaries are not supported");
    if ((next >= '1' && next <= '9') || next == 'k') return fail("back-references are not supported");
    if (next == 'A') return at_ += 2, make(Kind::kStart);
    if (next == 'z' || next == 'Z') return at_ += 2, make(Kind::kEnd);
    CodeSet set;
    const uint32_t code = escape(set);
    return chars(code == kNoCode ? set : CodeSet::One(code));
  }

  /// Behind a backslash: a single character, or kNoCode and a set.
  uint32_t escape(CodeSet& set) {
    ++at_;
    if (!more()) return fail("a backslash at the end"), kNoCode;
    const uint32_t code = text_[at_++];
    switch (code) {
      case 'd':
        set = digits();
        return kNoCode;
      case 'D':
        set = digits().complement();
        return kNoCode;
      case 'w':
        set = word();
        return kNoCode;
      case 'W':
        set = word().complement();
        return kNoCode;
      case 's':
        set = space();
        return kNoCode;
      case 'S':
        set = space().complement();
        return kNoCode;
      case 'p':
      case 'P':
        set = property(code == 'P');
        return kNoCode;
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1B;
      case '0':
        return 0;
      case 'x':
        return hex(2);
      case 'u':
        return unicode_escape();
      case 'c': {
        const uint32_t letter = peek() | 0x20;
        if (letter < 'a' || letter > 'z') return fail("\\c without a letter"), kNoCode;
        ++at_;
        return letter & 0x1F;
      }
      default:
        break;
    }
    const bool alphanumeric = (code >= '0' && code <= '9') || (code >= 'A' && code <= 'Z') || (code >= 'a' && code <= 'z');
    if (alphanumeric) return --at_, fail("an unknown escape"), kNoCode;
    return code;
  }

  uint32_t hex(int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) {
      const uint32_t code = peek();
      const uint32_t lower = code | 0x20;
      if (code >= '0' && code <= '9') {
        value = value * 16 + (code - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + (lower - 'a' + 10);
      } else {
        return fail("hexadecimal digits expected"), uint32_t{0};
      }
      ++at_;
    }
    return value;
  }

  uint32_t unicode_escape() {
    if (take('{')) {
      uint32_t value = 0;
      if (peek() == '}') fail("hexadecimal digits expected");
      while (more() && peek() != '}') value = std::min(value * 16 + hex(1), 0x110000u);
      take('}');
      if (value > 0x10FFFF) fail("a code point above 10FFFF");
      return value;
    }
    uint32_t value = hex(4);
    if (value >= 0xD800 && value < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
      at_ += 2;
      const uint32_t low = hex(4);
      if (low < 0xDC00 || low > 0xDFFF) return fail("a broken pair of surrogates"), value;
      value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
    return value;
  }

  CodeSet property(bool negated) {
    std::string name;
    if (take('{')) {
      if (take('^')) negated = !negated;
      while (more() && peek() != '}') append_utf8(name, text_[at_++]);
      if (!take('}')) fail("\\p{ without \"}\"");
    } else if (more()) {
      append_utf8(name, text_[at_++]);
    }
    auto set = unicode_property(name);
    if (!set) return fail(set.error().message()), CodeSet();
    return negated ? set->complement() : *set;
  }

  CodeSet bracket() {
    ++at_;
    const bool negated = take('^');
    std::vector<CodeRange> ranges;
    const auto add = [&](const CodeSet& set) { ranges.insert(ranges.end(), set.ranges().begin(), set.ranges().end()); };
    while (more() && peek() != ']') {
      if (peek() == '[' && peek(1) == ':') {
        add(posix());
        continue;
      }
      CodeSet set;
      const uint32_t first = bracket_char(set);
      if (first == kNoCode) {
        add(set);
        continue;
      }
      if (peek() != '-' || peek(1) == ']' || peek(1) == kNoCode) {
        ranges.push_back({first, first});
        continue;
      }
      ++at_;
      const uint32_t last = bracket_char(set);
      if (last == kNoCode) {  // [a-\d]: three members
        ranges.insert(ranges.end(), {{first, first}, {'-', '-'}});
        add(set);
      } else if (last < first) {
        fail("a range out of order");
      } else {
        ranges.push_back({first, last});
      }
    }
    if (!take(']')) fail("a class without \"]\"");
    CodeSet set = CodeSet::FromRanges(std::move(ranges));
    if (ignore_case_) set = with_other_case(set);
    return negated ? set.complement() : set;
  }

  uint32_t bracket_char(CodeSet& set) {
    if (peek() != '\\') return text_[at_++];
    if (peek(1) == 'b') return at_ += 2, '\b';
    return escape(set);
  }

  CodeSet posix() {
    std::string name;
    size_t i = at_ + 2;
    for (; i < text_.size() && text_[i] != ':' && name.size() < 10; ++i) append_utf8(name, text_[i]);
    if (i + 1 >= text_.size() || text_[i] != ':' || text_[i + 1] != ']') return ++at_, CodeSet::One('[');
    at_ = i + 2;
    if (name == "alpha") return CodeSet({{'a', 'z'}, {'A', 'Z'}});
    if (name == "digit") return digits();
    if (name == "alnum") return CodeSet({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}});
    if (name == "upper") return CodeSet({{'A', 'Z'}});
    if (name == "lower") return CodeSet({{'a', 'z'}});
    if (name == "space") return CodeSet({{9, 13}, {' ', ' '}});
    if (name == "xdigit") return CodeSet({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
    if (name == "word") return word();
    if (name == "punct") return CodeSet({{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}});
    return fail("an unknown class name"), CodeSet();
  }

  const std::vector<uint32_t>& text_;
  const CompileLimits& limits_;
  size_t at_ = 0;
  int quantifiers_ = 0;
  bool ignore_case_ = false;
  Status error_;
};

}  // namespace

Result<Regex> parse_regex(std::string_view pattern, RegexScope scope, const CompileLimits& limits) {
  if (static_cast<int64_t>(pattern.size()) > limits.source_bytes) {
    return Err(Status::ResourceExhausted("a pattern of {} bytes, the limit is {}", pattern.size(), limits.source_bytes));
  }
  auto text = decode_utf8(pattern);
  if (!text) return Err(text.error().with_context("pattern"));
  DI_ASSIGN_OR_RETURN(const Regex parsed, Parser(*text, limits).parse());
  return resolve_anchors(parsed, scope);
}

}  // namespace deepinfer::grammar
