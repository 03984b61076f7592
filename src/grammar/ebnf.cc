#include "grammar/ebnf.h"

#include <algorithm>
#include <map>

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kNoCode = 0xFFFFFFFF;
constexpr uint32_t kMaxCount = 1000000;

bool is_name(uint32_t code) {
  return (code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || code == '_' ||
         code == '-' || code == '.';
}

class Parser {
 public:
  Parser(const std::vector<uint32_t>& text, Grammar& grammar) : text_(text), grammar_(grammar) {}

  Result<ExprId> parse() {
    skip();
    while (more()) rule();
    if (grammar_.work().ok() && !defined_.contains("root")) fail("no rule \"root\"");
    for (const auto& [name, where] : first_use_) {
      if (!defined_.contains(name) && grammar_.work().ok()) at_ = where, fail(fmt::format("rule \"{}\" is not defined", name));
    }
    if (!grammar_.work().ok()) return Err(grammar_.work().status());
    return grammar_.rule(rules_["root"]);
  }

 private:
  struct Body {
    std::vector<std::vector<ExprId>> alternatives;
  };

  bool more() const { return grammar_.work().ok() && at_ < text_.size(); }
  uint32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : kNoCode; }
  bool take(uint32_t code) {
    if (peek() != code) return false;
    ++at_;
    return true;
  }
  ExprId fail(std::string_view reason) {
    size_t line = 1;
    size_t column = 1;
    for (size_t i = 0; i < std::min(at_, text_.size()); ++i) text_[i] == '\n' ? (++line, column = 1) : ++column;
    grammar_.work().fail(Status::InvalidArgument("grammar, line {}, column {}: {}", line, column, reason));
    return grammar_.never();
  }
  void skip() {
    while (at_ < text_.size()) {
      const uint32_t code = text_[at_];
      if (code == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (code == ' ' || code == '\t' || code == '\n' || code == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }
  std::string name() {
    std::string out;
    while (at_ < text_.size() && is_name(text_[at_])) out.push_back(static_cast<char>(text_[at_++]));
    return out;
  }
  RuleId rule_id(const std::string& rule) {
    const auto [at, added] = rules_.try_emplace(rule, 0);
    if (added) at->second = grammar_.new_rule(rule);
    return at->second;
  }
  /// "name ::=" starts here.
  bool at_definition() {
    const size_t saved = at_;
    const bool named = !name().empty();
    while (peek() == ' ' || peek() == '\t') ++at_;
    const bool out = named && peek() == ':' && peek(1) == ':' && peek(2) == '=';
    at_ = saved;
    return out;
  }

  void rule() {
    if (!at_definition()) return void(fail("a rule (name ::= ...) expected"));
    const size_t start = at_;
    const std::string rule = name();
    if (!defined_.insert({rule, true}).second) return at_ = start, void(fail(fmt::format("rule \"{}\" is defined twice", rule)));
    const RuleId id = rule_id(rule);
    while (peek() != '=') ++at_;
    ++at_;
    const Body body = alternatives(0);
    std::vector<ExprId> plain;
    std::vector<ExprId> tails;
    for (const auto& parts : body.alternatives) {
      const bool left = !parts.empty() && grammar_.at(parts[0]).kind == Expr::Kind::kRule && grammar_.at(parts[0]).value == id;
      std::vector<ExprId> rest(parts.begin() + (left ? 1 : 0), parts.end());
      (left ? tails : plain).push_back(grammar_.seq(std::move(rest)));
    }
    ExprId expr = grammar_.alt(std::move(plain));
    std::erase(tails, grammar_.empty());
    if (!tails.empty()) expr = grammar_.seq({expr, grammar_.repeat(grammar_.alt(std::move(tails)), 0, kUnbounded)});
    grammar_.set_body(id, expr);
    skip();
  }

  Body alternatives(int64_t depth) {
    Body out;
    if (depth > grammar_.work().limits().depth) return fail("parentheses are nested too deep"), out;
    do {
      out.alternatives.push_back(sequence(depth));
      skip();
    } while (more() && take('|'));
    return out;
  }

  std::vector<ExprId> sequence(int64_t depth) {
    std::vector<ExprId> parts;
    while (true) {
      skip();
      const uint32_t code = peek();
      if (!more() || code == '|' || code == ')' || (is_name(code) && code != '.' && at_definition())) return parts;
      parts.push_back(quantified(depth));
    }
  }

  ExprId quantified(int64_t depth) {
    ExprId item = atom(depth);
    while (more()) {
      if (take('*')) {
        item = grammar_.repeat(item, 0, kUnbounded);
      } else if (take('+')) {
        item = grammar_.repeat(item, 1, kUnbounded);
      } else if (take('?')) {
        item = grammar_.optional(item);
      } else if (take('{')) {
        item = counted(item);
      } else {
        break;
      }
    }
    return item;
  }

  ExprId counted(ExprId item) {
    const auto number = [&](uint32_t otherwise) {
      skip();
      if (peek() < '0' || peek() > '9') return otherwise;
      uint64_t value = 0;
      for (; peek() >= '0' && peek() <= '9'; ++at_) value = std::min<uint64_t>(value * 10 + (peek() - '0'), kMaxCount + 1);
      if (value > kMaxCount) fail("a count above 1000000");
      skip();
      return static_cast<uint32_t>(value);
    };
    const uint32_t min = number(0);
    const uint32_t max = take(',') ? number(kUnbounded) : min;
    if (!take('}')) return fail("\"}\" expected");
    if (min > max) return fail("the counts are out of order");
    return grammar_.repeat(item, min, max);
  }

  ExprId atom(int64_t depth) {
    const uint32_t code = peek();
    if (code == '"') return string();
    if (code == '[') return bracket();
    if (code == '.') return ++at_, grammar_.chars(CodeSet::All(), Spelling::kText);
    if (take('(')) {
      const Body body = alternatives(depth + 1);
      if (grammar_.work().ok() && !take(')')) return fail("\")\" expected");
      std::vector<ExprId> parts;
      for (const auto& sequence : body.alternatives) parts.push_back(grammar_.seq(sequence));
      return grammar_.alt(std::move(parts));
    }
    if (is_name(code)) {
      const size_t where = at_;
      const std::string rule = name();
      first_use_.try_emplace(rule, where);
      return grammar_.rule(rule_id(rule));
    }
    return fail("a string, a class, a rule or \"(\" expected");
  }

  uint32_t hex(int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) {
      const uint32_t code = peek();
      const uint32_t lower = code | 0x20;
      const bool digit = code >= '0' && code <= '9';
      if (!digit && (lower < 'a' || lower > 'f')) return fail("hexadecimal digits expected"), 0;
      value = value * 16 + (digit ? code - '0' : lower - 'a' + 10);
      ++at_;
    }
    return value;
  }

  uint32_t character() {
    const uint32_t code = text_[at_++];
    if (code != '\\') return code;
    if (!more()) return fail("a backslash at the end"), 0;
    const uint32_t escaped = text_[at_++];
    switch (escaped) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case '0':
        return 0;
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        break;
    }
    if (is_name(escaped) && escaped != '-' && escaped != '.' && escaped != '_') fail("an unknown escape");
    return escaped;
  }

  ExprId string() {
    ++at_;
    std::string bytes;
    while (more() && peek() != '"') {
      const uint32_t code = character();
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return fail("not a character");
      append_utf8(bytes, code);
    }
    if (!take('"')) return fail("a string without its end");
    return grammar_.literal(bytes);
  }

  ExprId bracket() {
    ++at_;
    const bool negated = take('^');
    std::vector<CodeRange> ranges;
    while (more() && peek() != ']') {
      const uint32_t first = character();
      uint32_t last = first;
      if (peek() == '-' && peek(1) != ']' && peek(1) != kNoCode) {
        ++at_;
        last = character();
        if (last < first) return fail("a range out of order");
      }
      ranges.push_back({first, last});
    }
    if (!take(']')) return fail("a class without \"]\"");
    const CodeSet set = CodeSet::FromRanges(std::move(ranges));
    return grammar_.chars(negated ? set.complement() : set, Spelling::kText);
  }

  const std::vector<uint32_t>& text_;
  Grammar& grammar_;
  size_t at_ = 0;
  std::map<std::string, RuleId> rules_;
  std::map<std::string, bool> defined_;
  std::map<std::string, size_t> first_use_;
};

}  // namespace

Result<ExprId> lower_ebnf(std::string_view text, Grammar& grammar) {
  const int64_t limit = grammar.work().limits().source_bytes;
  if (static_cast<int64_t>(text.size()) > limit)
    return Err(Status::ResourceExhausted("grammar: {} bytes, the limit is {}", text.size(), limit));
  const auto codes = decode_utf8(text);
  if (!codes) return Err(codes.error().with_context("grammar"));
  return Parser(*codes, grammar).parse();
}

}  // namespace deepinfer::grammar
