#include "grammar/char_dfa.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

/// Drops states that can't be reached or can't reach an accepting one; the start stays.
CharDfa trim(CharDfa dfa) {
  const size_t count = dfa.states.size();
  if (count == 0) return dfa;
  std::vector<std::vector<uint32_t>> back(count);
  for (uint32_t i = 0; i < count; ++i) {
    for (const auto& edge : dfa.states[i].edges) back[edge.to].push_back(i);
  }
  std::vector<bool> useful(count, false);
  std::vector<uint32_t> todo;
  for (uint32_t i = 0; i < count; ++i) {
    if (dfa.states[i].accept) useful[i] = true, todo.push_back(i);
  }
  while (!todo.empty()) {
    const uint32_t state = todo.back();
    todo.pop_back();
    for (const uint32_t from : back[state]) {
      if (!useful[from]) useful[from] = true, todo.push_back(from);
    }
  }
  std::vector<uint32_t> renamed(count, kNone);
  CharDfa out;
  renamed[0] = 0;
  out.states.emplace_back();
  std::vector<uint32_t> order{0};
  for (size_t i = 0; i < order.size(); ++i) {
    const CharDfa::State& from = dfa.states[order[i]];
    std::vector<CharDfa::Edge> edges;
    for (const auto& edge : from.edges) {
      if (!useful[edge.to]) continue;
      if (renamed[edge.to] == kNone) {
        renamed[edge.to] = static_cast<uint32_t>(out.states.size());
        out.states.emplace_back();
        order.push_back(edge.to);
      }
      const uint32_t to = renamed[edge.to];
      if (!edges.empty() && edges.back().to == to && edges.back().range.last + 1 == edge.range.first) {
        edges.back().range.last = edge.range.last;
      } else {
        edges.push_back({edge.range, to});
      }
    }
    out.states[i].accept = from.accept;
    out.states[i].edges = std::move(edges);
  }
  return out;
}

bool too_many(size_t states, Work& work) {
  if (static_cast<int64_t>(states) <= work.limits().dfa_states) return false;
  work.fail(Status::ResourceExhausted("a pattern needs more than {} states of a character automaton", work.limits().dfa_states));
  return true;
}

void close(const CharNfa& nfa, std::vector<uint32_t>& set) {
  std::set<uint32_t> seen(set.begin(), set.end());
  for (size_t i = 0; i < set.size(); ++i) {
    for (const uint32_t to : nfa.nodes[set[i]].empty_moves) {
      if (seen.insert(to).second) set.push_back(to);
    }
  }
  std::sort(set.begin(), set.end());
}

}  // namespace

bool CharDfa::empty() const { return states.empty() || (!states[0].accept && states[0].edges.empty()); }

bool CharDfa::matches(const std::vector<uint32_t>& text) const {
  if (states.empty()) return false;
  uint32_t state = 0;
  for (const uint32_t code : text) {
    const auto& edges = states[state].edges;
    const auto at = std::find_if(edges.begin(), edges.end(),
                                 [code](const Edge& edge) { return edge.range.first <= code && code <= edge.range.last; });
    if (at == edges.end()) return false;
    state = at->to;
  }
  return states[state].accept;
}

CharDfa determinize(const CharNfa& nfa, Work& work) {
  CharDfa out;
  std::map<std::vector<uint32_t>, uint32_t> known;
  std::vector<std::vector<uint32_t>> sets;
  const auto number = [&](std::vector<uint32_t> set) {
    close(nfa, set);
    const auto [at, added] = known.try_emplace(set, static_cast<uint32_t>(sets.size()));
    if (added) {
      sets.push_back(std::move(set));
      out.states.emplace_back();
      out.states.back().accept = std::binary_search(sets.back().begin(), sets.back().end(), nfa.accept);
    }
    return at->second;
  };
  number({nfa.start});
  for (size_t i = 0; i < sets.size(); ++i) {
    // Cut points of all ranges, then one target set per piece.
    std::vector<std::pair<CodeRange, uint32_t>> moves;
    std::vector<uint32_t> cuts;
    for (const uint32_t node : sets[i]) {
      for (const auto& [codes, to] : nfa.nodes[node].moves) {
        for (const CodeRange& range : codes.ranges()) {
          moves.emplace_back(range, to);
          cuts.push_back(range.first);
          cuts.push_back(range.last + 1);
        }
      }
    }
    if (!work.steps(static_cast<int64_t>(moves.size() + sets[i].size()) + 1) || too_many(sets.size(), work)) return {};
    std::sort(moves.begin(), moves.end(), [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<std::pair<CodeRange, uint32_t>> active;
    size_t next = 0;
    std::vector<CharDfa::Edge> edges;
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      for (; next < moves.size() && moves[next].first.first == cuts[c]; ++next) active.push_back(moves[next]);
      std::erase_if(active, [&](const auto& move) { return move.first.last < cuts[c]; });
      if (active.empty()) continue;
      if (!work.steps(static_cast<int64_t>(active.size()))) return {};
      std::vector<uint32_t> targets;
      for (const auto& move : active) targets.push_back(move.second);
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      edges.push_back({{cuts[c], cuts[c + 1] - 1}, number(std::move(targets))});
    }
    out.states[i].edges = std::move(edges);
  }
  return trim(std::move(out));
}

CharDfa intersect(const CharDfa& a, const CharDfa& b, Work& work) {
  if (a.states.empty() || b.states.empty()) return {};
  CharDfa out;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto number = [&](uint32_t x, uint32_t y) {
    const auto [at, added] = known.try_emplace({x, y}, static_cast<uint32_t>(pairs.size()));
    if (added) {
      pairs.emplace_back(x, y);
      out.states.emplace_back();
      out.states.back().accept = a.states[x].accept && b.states[y].accept;
    }
    return at->second;
  };
  number(0, 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& x = a.states[pairs[i].first].edges;
    const auto& y = b.states[pairs[i].second].edges;
    if (!work.steps(static_cast<int64_t>(x.size() + y.size()) + 1) || too_many(pairs.size(), work)) return {};
    std::vector<CharDfa::Edge> edges;
    for (size_t p = 0, q = 0; p < x.size() && q < y.size();) {
      const uint32_t first = std::max(x[p].range.first, y[q].range.first);
      const uint32_t last = std::min(x[p].range.last, y[q].range.last);
      if (first <= last) edges.push_back({{first, last}, number(x[p].to, y[q].to)});
      if (x[p].range.last < y[q].range.last) {
        ++p;
      } else {
        ++q;
      }
    }
    out.states[i].edges = std::move(edges);
  }
  return trim(std::move(out));
}

CharDfa complement(const CharDfa& a, Work& work) {
  CharDfa out = a;
  if (out.states.empty()) out.states.emplace_back();
  const auto sink = static_cast<uint32_t>(out.states.size());
  out.states.emplace_back();
  for (CharDfa::State& state : out.states) {
    state.accept = !state.accept;
    std::vector<CodeRange> used;
    for (const auto& edge : state.edges) used.push_back(edge.range);
    for (const CodeRange& gap : CodeSet::FromRanges(used).complement().ranges()) state.edges.push_back({gap, sink});
    std::sort(state.edges.begin(), state.edges.end(), [](const auto& x, const auto& y) { return x.range.first < y.range.first; });
    if (!work.steps(static_cast<int64_t>(state.edges.size()))) return {};
  }
  return trim(std::move(out));
}

CharDfa dfa_of_words(const std::vector<std::vector<uint32_t>>& words, Work& work) {
  CharDfa out;
  out.states.emplace_back();
  std::vector<std::map<uint32_t, uint32_t>> children(1);
  for (const auto& word : words) {
    uint32_t state = 0;
    if (!work.steps(static_cast<int64_t>(word.size()) + 1)) return {};
    for (const uint32_t code : word) {
      const auto [at, added] = children[state].try_emplace(code, static_cast<uint32_t>(children.size()));
      state = at->second;
      if (added) {
        children.emplace_back();
        out.states.emplace_back();
      }
    }
    out.states[state].accept = true;
  }
  for (size_t i = 0; i < children.size(); ++i) {
    for (const auto& [code, to] : children[i]) out.states[i].edges.push_back({{code, code}, to});
  }
  return out;
}

CharDfa dfa_of_lengths(uint32_t min, uint32_t max, Work& work) {
  CharDfa out;
  const bool bounded = max != kNone;
  const uint64_t count = static_cast<uint64_t>(bounded ? max : min) + 1;
  if (too_many(count, work) || min > max) return {};
  for (uint32_t i = 0; i < count; ++i) {
    CharDfa::State& state = out.states.emplace_back();
    state.accept = i >= min;
    const bool last = i + 1 == count;
    if (last && bounded) continue;
    for (const CodeRange& range : CodeSet::All().ranges()) state.edges.push_back({range, last ? i : i + 1});
  }
  return out;
}

std::vector<bool> open_states(const CharDfa& dfa) {
  const size_t count = dfa.states.size();
  std::vector<bool> open(count);
  std::vector<std::vector<uint32_t>> back(count);
  std::vector<uint32_t> todo;
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<CodeRange> used;
    for (const auto& edge : dfa.states[i].edges) {
      used.push_back(edge.range);
      back[edge.to].push_back(i);
    }
    open[i] = CodeSet::FromRanges(std::move(used)) == CodeSet::All();
    if (!open[i]) todo.push_back(i);
  }
  while (!todo.empty()) {
    const uint32_t state = todo.back();
    todo.pop_back();
    for (const uint32_t from : back[state]) {
      if (open[from]) open[from] = false, todo.push_back(from);
    }
  }
  return open;
}

}  // namespace deepinfer::grammar
