#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

using Kind = RegexNode::Kind;

/// Appends the expression between two nodes of the NFA; counts are written out.
void build(const RegexNode& node, uint32_t from, uint32_t to, CharNfa& nfa, Work& work) {
  if (!work.steps()) return;
  if (static_cast<int64_t>(nfa.nodes.size()) > 16 * work.limits().dfa_states) {
    work.fail(
        Status::ResourceExhausted("a pattern needs more than {} states of a character automaton", work.limits().dfa_states));
    return;
  }
  switch (node.kind) {
    case Kind::kChars:
      nfa.nodes[from].moves.emplace_back(node.chars, to);
      return;
    case Kind::kSeq: {
      uint32_t at = from;
      for (const auto& part : node.parts) {
        const uint32_t next = nfa.add();
        build(*part, at, next, nfa, work);
        at = next;
      }
      nfa.nodes[at].empty_moves.push_back(to);
      return;
    }
    case Kind::kAlt:
      for (const auto& part : node.parts) {
        const uint32_t begin = nfa.add();
        nfa.nodes[from].empty_moves.push_back(begin);
        build(*part, begin, to, nfa, work);
      }
      return;
    case Kind::kRepeat: {
      uint32_t at = from;
      for (uint32_t i = 0; i < node.min && work.ok(); ++i) {
        const uint32_t next = nfa.add();
        build(*node.parts[0], at, next, nfa, work);
        at = next;
      }
      if (node.max == kUnbounded) {
        const uint32_t loop = nfa.add();
        nfa.nodes[at].empty_moves.push_back(loop);
        const uint32_t end = nfa.add();
        build(*node.parts[0], loop, end, nfa, work);
        nfa.nodes[end].empty_moves.push_back(loop);
        nfa.nodes[loop].empty_moves.push_back(to);
        return;
      }
      for (uint32_t i = node.min; i < node.max && work.ok(); ++i) {
        nfa.nodes[at].empty_moves.push_back(to);
        const uint32_t next = nfa.add();
        build(*node.parts[0], at, next, nfa, work);
        at = next;
      }
      nfa.nodes[at].empty_moves.push_back(to);
      return;
    }
    case Kind::kNever:
      return;
    default:
      nfa.nodes[from].empty_moves.push_back(to);
      return;
  }
}

}  // namespace

ExprId lower_regex(const Regex& regex, Spelling spelling, Grammar& grammar) {
  if (!grammar.work().steps()) return grammar.never();
  switch (regex->kind) {
    case Kind::kNever:
      return grammar.never();
    case Kind::kChars:
      return grammar.chars(regex->chars, spelling);
    case Kind::kSeq:
    case Kind::kAlt: {
      std::vector<ExprId> parts;
      for (const auto& part : regex->parts) parts.push_back(lower_regex(part, spelling, grammar));
      return regex->kind == Kind::kSeq ? grammar.seq(std::move(parts)) : grammar.alt(std::move(parts));
    }
    case Kind::kRepeat:
      return grammar.repeat(lower_regex(regex->parts[0], spelling, grammar), regex->min, regex->max);
    default:
      return grammar.empty();
  }
}

CharDfa dfa_of_regex(const Regex& regex, Work& work) {
  CharNfa nfa;
  nfa.start = nfa.add();
  nfa.accept = nfa.add();
  build(*regex, nfa.start, nfa.accept, nfa, work);
  if (!work.ok()) return {};
  return determinize(nfa, work);
}

}  // namespace deepinfer::grammar
