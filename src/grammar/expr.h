#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_class.h"
#include "grammar/char_dfa.h"
#include "grammar/limits.h"

namespace deepinfer::grammar {

using ExprId = uint32_t;
using RuleId = uint32_t;
constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

/// What every front end lowers to: rules, whose bodies are regular expressions over bytes, characters and rules.
struct Expr {
  enum class Kind : uint8_t {
    kEmpty,    ///< the empty text
    kNever,    ///< nothing
    kLiteral,  ///< bytes
    kChars,    ///< one character of a set, in a spelling
    kDfa,      ///< a text of a character automaton, each character in a spelling
    kSeq,
    kAlt,
    kRepeat,  ///< child, min to max times
    kRule,
    kToken,    ///< an added token
    kMembers,  ///< the members of an object (see Members)
  };
  Kind kind = Kind::kEmpty;
  Spelling spelling = Spelling::kText;
  uint32_t value = 0;  ///< index of the text, set or automaton; the rule; the token; the child of a repetition
  uint32_t min = 0;
  uint32_t max = 0;
  std::vector<ExprId> parts;
};

/// Named members in order, each at most once, then any number of others; separators between those that are there.
struct Members {
  struct Member {
    ExprId text;
    bool required;
  };
  std::vector<Member> named;
  ExprId others = 1;  ///< one other member; never() if there are none
  ExprId separator = 0;
  uint32_t min = 0;  ///< members of both kinds
  uint32_t max = kUnbounded;
};

/// Owner of expressions and rules. Small simplifications happen at once: a sequence with a kNever is a kNever, and so on.
class Grammar {
 public:
  explicit Grammar(Work& work);

  ExprId empty() const { return 0; }
  ExprId never() const { return 1; }
  ExprId literal(std::string_view bytes);
  ExprId chars(const CodeSet& set, Spelling spelling);
  ExprId dfa(CharDfa automaton, Spelling spelling);
  ExprId seq(std::vector<ExprId> parts);
  ExprId alt(std::vector<ExprId> parts);
  ExprId repeat(ExprId child, uint32_t min, uint32_t max);
  ExprId optional(ExprId child) { return alt({child, empty()}); }
  ExprId token(int32_t id);
  ExprId members(Members members);
  ExprId rule(RuleId id);

  /// A rule whose body comes later, so that rules can refer to each other.
  RuleId new_rule(std::string name);
  void set_body(RuleId rule, ExprId body) { bodies_[rule] = body; }

  const Expr& at(ExprId id) const { return exprs_[id]; }
  const std::string& text(uint32_t index) const { return texts_[index]; }
  const CodeSet& set(uint32_t index) const { return sets_[index]; }
  const Members& member_list(uint32_t index) const { return members_[index]; }
  const CharDfa& automaton(uint32_t index) const { return dfas_[index]; }
  size_t rule_count() const { return bodies_.size(); }
  ExprId body(RuleId rule) const { return bodies_[rule]; }
  const std::string& rule_name(RuleId rule) const { return names_[rule]; }
  Work& work() { return work_; }

  RuleId root = 0;

 private:
  ExprId add(Expr expr);

  Work& work_;
  std::vector<Expr> exprs_;
  std::vector<std::string> texts_;
  std::vector<CodeSet> sets_;
  std::vector<CharDfa> dfas_;
  std::vector<Members> members_;
  std::vector<ExprId> bodies_;
  std::vector<std::string> names_;
};

}  // namespace deepinfer::grammar
