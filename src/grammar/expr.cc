#include "grammar/expr.h"

#include <algorithm>

namespace deepinfer::grammar {

Grammar::Grammar(Work& work) : work_(work) {
  exprs_.push_back({});
  exprs_.push_back({});
  exprs_.back().kind = Expr::Kind::kNever;
}

ExprId Grammar::add(Expr expr) {
  if (!work_.steps(1 + static_cast<int64_t>(expr.parts.size()))) return never();
  exprs_.push_back(std::move(expr));
  return static_cast<ExprId>(exprs_.size() - 1);
}

ExprId Grammar::literal(std::string_view bytes) {
  if (bytes.empty()) return empty();
  if (!work_.steps(static_cast<int64_t>(bytes.size()) / 8)) return never();
  texts_.emplace_back(bytes);
  Expr expr;
  expr.kind = Expr::Kind::kLiteral;
  expr.value = static_cast<uint32_t>(texts_.size() - 1);
  return add(std::move(expr));
}

ExprId Grammar::chars(const CodeSet& set, Spelling spelling) {
  if (set.empty()) return never();
  sets_.push_back(set);
  Expr expr;
  expr.kind = Expr::Kind::kChars;
  expr.spelling = spelling;
  expr.value = static_cast<uint32_t>(sets_.size() - 1);
  return add(std::move(expr));
}

ExprId Grammar::dfa(CharDfa automaton, Spelling spelling) {
  if (automaton.empty()) return never();
  if (!work_.steps(static_cast<int64_t>(automaton.states.size()))) return never();
  dfas_.push_back(std::move(automaton));
  Expr expr;
  expr.kind = Expr::Kind::kDfa;
  expr.spelling = spelling;
  expr.value = static_cast<uint32_t>(dfas_.size() - 1);
  return add(std::move(expr));
}

ExprId Grammar::seq(std::vector<ExprId> parts) {
  std::erase(parts, empty());
  if (std::find(parts.begin(), parts.end(), never()) != parts.end()) return never();
  if (parts.empty()) return empty();
  if (parts.size() == 1) return parts[0];
  Expr expr;
  expr.kind = Expr::Kind::kSeq;
  expr.parts = std::move(parts);
  return add(std::move(expr));
}

ExprId Grammar::alt(std::vector<ExprId> parts) {
  std::erase(parts, never());
  if (parts.empty()) return never();
  if (parts.size() == 1) return parts[0];
  Expr expr;
  expr.kind = Expr::Kind::kAlt;
  expr.parts = std::move(parts);
  return add(std::move(expr));
}

ExprId Grammar::repeat(ExprId child, uint32_t min, uint32_t max) {
  if (max == 0 || child == empty()) return empty();
  if (min > max) return never();
  if (child == never()) return min == 0 ? empty() : never();
  if (min == 1 && max == 1) return child;
  Expr expr;
  expr.kind = Expr::Kind::kRepeat;
  expr.value = child;
  expr.min = min;
  expr.max = max;
  return add(std::move(expr));
}

ExprId Grammar::token(int32_t id) {
  Expr expr;
  expr.kind = Expr::Kind::kToken;
  expr.value = static_cast<uint32_t>(id);
  return add(std::move(expr));
}

ExprId Grammar::members(Members members) {
  if (!work_.steps(static_cast<int64_t>(members.named.size()))) return never();
  members_.push_back(std::move(members));
  Expr expr;
  expr.kind = Expr::Kind::kMembers;
  expr.value = static_cast<uint32_t>(members_.size() - 1);
  return add(std::move(expr));
}

ExprId Grammar::rule(RuleId id) {
  Expr expr;
  expr.kind = Expr::Kind::kRule;
  expr.value = id;
  return add(std::move(expr));
}

RuleId Grammar::new_rule(std::string name) {
  work_.rules();
  bodies_.push_back(never());
  names_.push_back(std::move(name));
  return static_cast<RuleId>(bodies_.size() - 1);
}

}  // namespace deepinfer::grammar
