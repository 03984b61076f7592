#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/code_set.h"
#include "grammar/limits.h"

namespace deepinfer::grammar {

/// A deterministic automaton over characters, for what a regular expression can't say directly: intersection and complement.
/// Every state but the start can reach an accepting one.
struct CharDfa {
  struct Edge {
    CodeRange range;
    uint32_t to;
  };
  struct State {
    bool accept = false;
    std::vector<Edge> edges;  ///< sorted, disjoint
  };
  std::vector<State> states;  ///< the start is 0

  /// No text at all.
  bool empty() const;
  bool matches(const std::vector<uint32_t>& text) const;
};

/// Nondeterministic, with empty moves: the way from a regular expression to a CharDfa.
struct CharNfa {
  struct Node {
    std::vector<uint32_t> empty_moves;
    std::vector<std::pair<CodeSet, uint32_t>> moves;
  };
  std::vector<Node> nodes;
  uint32_t start = 0;
  uint32_t accept = 0;

  uint32_t add() {
    nodes.emplace_back();
    return static_cast<uint32_t>(nodes.size() - 1);
  }
};

/// All of these return an empty automaton after `work` has failed. States are counted against limits().dfa_states.
CharDfa determinize(const CharNfa& nfa, Work& work);
CharDfa intersect(const CharDfa& a, const CharDfa& b, Work& work);
CharDfa complement(const CharDfa& a, Work& work);
/// Exactly these texts.
CharDfa dfa_of_words(const std::vector<std::vector<uint32_t>>& words, Work& work);
/// Any text of min to max characters (kUnbounded: no upper bound).
CharDfa dfa_of_lengths(uint32_t min, uint32_t max, Work& work);

/// Per state: whether any character may follow, for ever, with the text still completable. Then only where the text ends matters.
std::vector<bool> open_states(const CharDfa& dfa);

}  // namespace deepinfer::grammar
