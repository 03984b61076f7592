#include "grammar/program.h"

#include <algorithm>

#include "grammar/class_table.h"
#include "grammar/program_builder.h"

namespace deepinfer::grammar {
namespace {

using Kind = Node::Kind;
constexpr uint32_t kEndNode = 0;
constexpr uint32_t kAcceptNode = 1;
constexpr uint32_t kDeadNode = 2;  // a split without targets

}  // namespace

uint32_t ProgramBuilder::add(Node node) {
  if (!work_.nodes()) return kDeadNode;
  program_->nodes_.push_back(node);
  return static_cast<uint32_t>(program_->nodes_.size() - 1);
}

uint32_t ProgramBuilder::split(const std::vector<uint32_t>& targets) {
  if (!work_.nodes(static_cast<int64_t>(targets.size()))) return kDeadNode;
  Node node;
  node.kind = Kind::kSplit;
  node.next = static_cast<uint32_t>(program_->targets_.size());
  node.value = static_cast<uint32_t>(targets.size());
  program_->targets_.insert(program_->targets_.end(), targets.begin(), targets.end());
  return add(node);
}

uint32_t ProgramBuilder::char_class(const CodeSet& set, Spelling spelling) {
  const auto [at, added] =
      class_numbers_.try_emplace(CharClass::KeyOf(set, spelling), static_cast<uint32_t>(program_->classes_.size()));
  if (added) {
    work_.steps(static_cast<int64_t>(set.ranges().size()) * 16 + 64);
    program_->classes_.push_back(vocabulary_.char_class(set, spelling));
  }
  return at->second;
}

uint32_t ProgramBuilder::lower_literal(std::string_view bytes, bool marker, uint32_t next) {
  for (size_t i = bytes.size(); i-- > 0;) {
    Node node;
    node.kind = Kind::kByte;
    node.marker = marker;
    node.byte = static_cast<uint8_t>(bytes[i]);
    node.next = next;
    next = add(node);
  }
  return next;
}

uint32_t ProgramBuilder::lower(ExprId id, uint32_t next) {
  if (!work_.steps()) return kDeadNode;
  const Expr& expr = grammar_.at(id);
  switch (expr.kind) {
    case Expr::Kind::kEmpty:
      return next;
    case Expr::Kind::kNever:
      return kDeadNode;
    case Expr::Kind::kLiteral:
      return lower_literal(grammar_.text(expr.value), false, next);
    case Expr::Kind::kToken:
      return lower_literal(TokenVocabulary::marker(static_cast<int32_t>(expr.value)), true, next);
    case Expr::Kind::kChars: {
      Node node;
      node.kind = Kind::kChars;
      node.value = char_class(grammar_.set(expr.value), expr.spelling);
      node.next = next;
      return add(node);
    }
    case Expr::Kind::kDfa:
      return lower_dfa(expr, next);
    case Expr::Kind::kSeq:
      for (size_t i = expr.parts.size(); i-- > 0;) next = lower(expr.parts[i], next);
      return next;
    case Expr::Kind::kAlt: {
      std::vector<uint32_t> targets;
      for (const ExprId part : expr.parts) targets.push_back(lower(part, next));
      return split(targets);
    }
    case Expr::Kind::kRepeat:
      return lower_repeat(expr, next);
    case Expr::Kind::kMembers:
      return lower_members(expr, next);
    case Expr::Kind::kRule: {
      Node node;
      node.kind = Kind::kCall;
      node.value = expr.value;
      node.next = next;
      return add(node);
    }
  }
  return kDeadNode;
}

uint32_t ProgramBuilder::lower_repeat(const Expr& expr, uint32_t next) {
  const Expr& child = grammar_.at(expr.value);
  if (expr.min == 0 && expr.max == 1) return split({lower(expr.value, next), next});
  const bool chars = child.kind == Expr::Kind::kChars;
  if (!chars && expr.max == kUnbounded && expr.min <= 1) {
    const uint32_t loop = split({kDeadNode, next});
    const uint32_t body = lower(expr.value, loop);
    if (!work_.ok()) return kDeadNode;
    program_->targets_[program_->nodes_[loop].next] = body;
    return expr.min == 0 ? loop : body;
  }
  Node loop;
  loop.kind = Kind::kLoop;
  loop.value = static_cast<uint32_t>(program_->loops_.size());
  loop.next = next;
  const uint32_t loop_node = add(loop);
  Node back;
  back.kind = Kind::kBack;
  back.next = loop_node;
  Node body;
  body.next = add(back);
  if (chars) {
    body.kind = Kind::kChars;
    body.value = char_class(grammar_.set(child.value), child.spelling);
    body.owner = loop_node;
  } else {
    body.kind = Kind::kCall;
    if (child.kind == Expr::Kind::kRule) {
      body.value = child.value;
    } else {
      work_.rules();
      body.value = static_cast<uint32_t>(program_->starts_.size());
      program_->starts_.push_back(kDeadNode);
      rule_names_.emplace_back("(repeated group)");
      pending_.emplace_back(body.value, expr.value);
    }
  }
  program_->loops_.push_back({expr.min, expr.max, add(body)});
  return work_.ok() ? loop_node : kDeadNode;
}

uint32_t ProgramBuilder::lower_members(const Expr& expr, uint32_t next) {
  const Members& members = grammar_.member_list(expr.value);
  const bool bounded = members.max != kUnbounded;
  if (bounded && members.max < members.min) return kDeadNode;
  // A place is (members decided about, members there); counts beyond `top` make no difference.
  const uint64_t top = std::max<uint64_t>(1, bounded ? members.max : members.min);
  const size_t count = members.named.size();
  const uint64_t places = (top + 1) * (count + 1);
  if (places > static_cast<uint64_t>(work_.limits().nodes) || !work_.nodes(static_cast<int64_t>(places) / 4)) {
    work_.nodes(work_.limits().nodes);
    return kDeadNode;
  }
  const auto more = [&](uint64_t there) { return !bounded || there < members.max; };
  const auto with_separator = [&](ExprId text, uint64_t there, uint32_t behind) {
    const uint32_t body = lower(text, behind);
    return there == 0 ? body : lower(members.separator, body);
  };
  std::vector<std::vector<bool>> reached(count + 1, std::vector<bool>(top + 1, false));
  reached[0][0] = true;
  for (size_t i = 0; i < count; ++i) {
    for (uint64_t there = 0; there <= top; ++there) {
      if (!reached[i][there]) continue;
      if (!members.named[i].required) reached[i + 1][there] = true;
      if (more(there)) reached[i + 1][std::min(there + 1, top)] = true;
    }
  }
  // Behind the named ones.
  std::vector<uint32_t> after(top + 1, kDeadNode);
  const bool others = members.others != grammar_.never();
  uint64_t lowest = 0;
  while (lowest < top && !reached[count][lowest]) ++lowest;
  for (uint64_t there = top + 1; there-- > lowest && work_.ok();) {
    after[there] = split({kDeadNode, there >= members.min ? next : kDeadNode});
    if (!others || !more(there)) continue;
    const uint32_t other = with_separator(members.others, there, after[std::min(there + 1, top)]);
    if (work_.ok()) program_->targets_[program_->nodes_[after[there]].next] = other;
  }
  for (size_t i = count; i-- > 0;) {
    std::vector<uint32_t> before(top + 1, kDeadNode);
    for (uint64_t there = 0; there <= top && work_.ok(); ++there) {
      if (!reached[i][there]) continue;
      std::vector<uint32_t> targets;
      if (more(there)) targets.push_back(with_separator(members.named[i].text, there, after[std::min(there + 1, top)]));
      if (!members.named[i].required) targets.push_back(after[there]);
      before[there] = targets.size() == 1 ? targets[0] : split(targets);
    }
    after = std::move(before);
  }
  return work_.ok() ? after[0] : kDeadNode;
}

uint32_t ProgramBuilder::lower_dfa(const Expr& expr, uint32_t next) {
  const CharDfa& dfa = grammar_.automaton(expr.value);
  const std::vector<bool> open = open_states(dfa);
  std::vector<uint32_t> entries(dfa.states.size());
  std::vector<uint32_t> splits(dfa.states.size());
  for (size_t i = 0; i < dfa.states.size(); ++i) {
    splits[i] = split({});
    entries[i] = splits[i];
    if (!open[i]) continue;
    Node node;
    node.kind = Kind::kOpen;
    node.value = char_class(CodeSet::All(), expr.spelling);
    node.next = splits[i];
    node.owner = next;
    entries[i] = add(node);
  }
  for (size_t i = 0; i < dfa.states.size() && work_.ok(); ++i) {
    std::map<uint32_t, std::vector<CodeRange>> by_target;
    for (const auto& edge : dfa.states[i].edges) by_target[edge.to].push_back(edge.range);
    std::vector<uint32_t> targets;
    for (auto& [to, ranges] : by_target) {
      Node node;
      node.kind = Kind::kChars;
      node.value = char_class(CodeSet::FromRanges(std::move(ranges)), expr.spelling);
      node.next = entries[to];
      if (open[i]) node.owner = entries[i];
      targets.push_back(add(node));
    }
    if (dfa.states[i].accept) targets.push_back(next);
    if (!work_.nodes(static_cast<int64_t>(targets.size()))) return kDeadNode;
    Node& node = program_->nodes_[splits[i]];
    node.next = static_cast<uint32_t>(program_->targets_.size());
    node.value = static_cast<uint32_t>(targets.size());
    program_->targets_.insert(program_->targets_.end(), targets.begin(), targets.end());
  }
  return work_.ok() ? entries[0] : kDeadNode;
}

Result<std::shared_ptr<const Program>> ProgramBuilder::build() {
  Node node;
  add(node);  // kEndNode
  node.kind = Kind::kAccept;
  add(node);
  node.kind = Kind::kSplit;
  node.next = 0;
  add(node);
  program_->accept_node_ = kAcceptNode;
  program_->root_ = grammar_.root;
  program_->starts_.assign(grammar_.rule_count(), kDeadNode);
  for (RuleId rule = 0; rule < grammar_.rule_count(); ++rule) rule_names_.push_back(grammar_.rule_name(rule));
  for (RuleId rule = 0; rule < grammar_.rule_count() && work_.ok(); ++rule) {
    program_->starts_[rule] = lower(grammar_.body(rule), kEndNode);
  }
  for (size_t i = 0; i < pending_.size() && work_.ok(); ++i) {
    const auto [rule, expr] = pending_[i];
    program_->starts_[rule] = lower(expr, kEndNode);
  }
  DI_RETURN_IF_ERROR(work_.status());
  find_nullable();
  DI_RETURN_IF_ERROR(find_live());
  DI_RETURN_IF_ERROR(rank_rules());
  classify_bytes();
  DI_RETURN_IF_ERROR(work_.status());
  // Tables only where masks use them: bodies of loops, and open places.
  program_->tables_.resize(program_->classes_.size());
  for (const Node& at : program_->nodes_) {
    const bool loop = at.kind == Kind::kChars && at.owner != kNoNode && program_->nodes_[at.owner].kind == Kind::kLoop;
    if (!at.live || (!loop && at.kind != Kind::kOpen)) continue;
    auto& table = program_->tables_[at.value];
    if (table == nullptr) table = vocabulary_.class_table(*program_->classes_[at.value]);
  }
  return std::shared_ptr<const Program>(program_);
}

Result<std::shared_ptr<const Program>> Program::Make(Grammar& grammar, const TokenVocabulary& vocabulary) {
  return ProgramBuilder(grammar, vocabulary, grammar.work()).build();
}

size_t Program::bytes() const {
  return nodes_.capacity() * sizeof(Node) + targets_.capacity() * sizeof(uint32_t) + loops_.capacity() * sizeof(Loop) +
         starts_.capacity() * 9;
}

}  // namespace deepinfer::grammar
