// Masks: which tokens can follow a state.

#include <algorithm>

#include "grammar/class_table.h"
#include "grammar/machine.h"

namespace deepinfer::grammar {
namespace {

using Kind = Node::Kind;

void set_bit(std::span<uint32_t> mask, int32_t token) { mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32); }

}  // namespace

int64_t Machine::walk(const TokenTrie& trie, StateId state, std::span<uint32_t> mask) {
  const auto nodes = trie.nodes();
  if (state == kDeadState || nodes.empty()) return 1;
  if (path_.size() <= trie.max_depth()) path_.resize(trie.max_depth() + 1);
  path_[0] = state;
  int64_t visited = 0;
  const size_t count = nodes.size();
  for (size_t i = 0; i < count;) {
    const TokenTrie::Node& node = nodes[i];
    ++visited;
    const StateId next = step(path_[node.depth - 1u], node.byte);
    if (next == kDeadState) {
      i = node.end;
      continue;
    }
    path_[node.depth] = next;
    if (node.token >= 0) set_bit(mask, node.token);
    ++i;
  }
  for (const auto& [token, twin] : trie.twins()) {
    if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) set_bit(mask, twin);
  }
  return visited;
}

/// Tokens from a place that takes up to `limit` characters of a wide class, `inside`, with `behind` what follows them: the tokens
/// of the class are a copy, the walk is left with those that leave it. `done` is false where a walk over all tokens is as good.
int64_t Machine::add_wide(const ClassTable& table, const CharClass& chars, uint64_t limit, StateId inside, StateId behind,
                          std::span<uint32_t> mask, bool& done) {
  const ByteSet exits = first_bytes(behind);
  done = true;
  if ((exits & chars.live_bytes(0)).any()) {
    // What follows may begin with a character of the class: a token can have left at any character before.
    const TokenTrie* leaving = table.all_leaving();
    done = leaving != nullptr;
    if (!done) return 0;
    table.add_tokens(limit, mask);
    return walk(*leaving, inside, mask);
  }
  table.add_tokens(limit, mask);
  int64_t visited = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (exits[byte]) visited += walk(table.leaving(static_cast<uint8_t>(byte)), inside, mask);
  }
  return visited;
}

int64_t Machine::add_tokens(StateId state, const TokenVocabulary& vocabulary, std::span<uint32_t> mask) {
  // The tokens of a state are those of its places, each by itself: places in wide classes are taken out of the walk.
  const std::vector<Place> all(places(state).begin(), places(state).end());
  std::vector<bool> taken(all.size(), false);
  int64_t work = 0;
  bool any_taken = false;
  const auto take = [&](size_t i) {
    taken[i] = true;
    any_taken = true;
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const Place& place = all[i];
    const Node& node = program_->node(place.node);
    bool done = false;
    if (node.kind == Kind::kOpen) {
      take(i);
      const ClassTable* table = program_->table(node.value);
      if (table == nullptr) continue;
      std::vector<Place> group;
      std::vector<size_t> members;
      for (size_t k = 0; k < all.size(); ++k) {
        const bool member = all[k].frame == place.frame && all[k].inner == 0 &&
                            program_->node(all[k].node).kind == Kind::kChars && program_->node(all[k].node).owner == place.node;
        if (member) group.push_back(all[k]), members.push_back(k);
      }
      const StateId inside = intern_places(group);
      work += 500 + add_wide(*table, program_->chars(node.value), ~uint64_t{0}, inside, state_behind(node.owner, place.frame),
                             mask, done);
      if (done) {
        for (const size_t k : members) take(k);
      }
    } else if (node.kind == Kind::kChars && node.owner != kNoNode && place.inner == 0 &&
               program_->node(node.owner).kind == Kind::kLoop) {
      const ClassTable* table = program_->table(node.value);
      if (table == nullptr) continue;
      const Node& loop_node = program_->node(node.owner);
      const Loop& loop = program_->loop(loop_node);
      const uint64_t limit = loop.max == kUnbounded ? ~uint64_t{0} : loop.max - place.count;
      const StateId inside = intern_places({&place, 1});
      work += 500 +
              add_wide(*table, program_->chars(node.value), limit, inside, state_behind(loop_node.next, place.frame), mask, done);
      if (done) take(i);
    }
  }
  if (!any_taken) return work + walk(vocabulary.trie(), state, mask);
  std::vector<Place> rest;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!taken[i]) rest.push_back(all[i]);
  }
  return work + walk(vocabulary.trie(), intern_places(rest), mask);
}

}  // namespace deepinfer::grammar
