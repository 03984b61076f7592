// Masks: which tokens can follow a state.

#include <algorithm>
#include <tuple>

#include "grammar/class_table.h"
#include "grammar/machine.h"

namespace deepinfer::grammar {
namespace {

using Kind = Node::Kind;

constexpr size_t kSmallSubtree = 8;     ///< nodes that are as soon stepped through
constexpr int64_t kNodesOfOneStep = 4;  ///< taken without a step, they cost that much less

void set_bit(std::span<uint32_t> mask, int32_t token) { mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32); }

}  // namespace

ByteGroups Machine::own_bytes(StateId state) {
  if (state >= own_bytes_.size()) own_bytes_.resize(std::max<size_t>(states_.size(), state + size_t{1}), kOtherBytes);
  if (own_bytes_[state] != kOtherBytes) return own_bytes_[state];
  ByteGroups own = kWordBytes | kSpaceByte | kJoiners | kDot | kSlash | kMarkBytes;
  for (unsigned byte = ' '; byte < 0x7F && own != 0; ++byte) {
    const ByteGroups group = byte_group(static_cast<uint8_t>(byte));
    if ((own & group) != 0 && step(state, static_cast<uint8_t>(byte)) != state) own &= static_cast<ByteGroups>(~group);
  }
  if (own != 0 && owns_other_characters(state)) own |= kBeyondAscii;
  return own_bytes_[state] = own;
}

bool Machine::owns_other_characters(StateId state) {
  // States inside a character are few: many first bytes share them.
  std::vector<std::pair<StateId, int>> inside;  // and how many bytes are still to come behind the next one
  const auto add = [&](StateId next, int more) {
    if (std::find(inside.begin(), inside.end(), std::pair(next, more)) == inside.end()) inside.emplace_back(next, more);
  };
  const auto follow = [&](StateId from, unsigned low, unsigned high, int more) {
    for (unsigned byte = low; byte <= high; ++byte) {
      const StateId next = step(from, static_cast<uint8_t>(byte));
      if (more == 0 ? next != state : next == kDeadState) return false;
      if (more > 0) add(next, more - 1);
    }
    return true;
  };
  std::vector<std::tuple<StateId, uint8_t, int>> begun;  // state, least second byte, bytes behind it
  for (unsigned first = 0x80; first <= 0xFF; ++first) {
    const Utf8Range range = utf8_range(static_cast<uint8_t>(first));
    if (range.low > range.high) continue;
    const StateId next = step(state, static_cast<uint8_t>(first));
    const std::tuple key(next, static_cast<uint8_t>(range.low ^ range.high), range.more);
    if (next == kDeadState) return false;
    if (std::find(begun.begin(), begun.end(), key) != begun.end()) continue;
    begun.push_back(key);
    if (!follow(next, range.low, range.high, range.more)) return false;
  }
  for (size_t i = 0; i < inside.size(); ++i) {
    const auto [from, more] = inside[i];
    if (!follow(from, 0x80, 0xBF, more)) return false;
  }
  return true;
}

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
    // Where nothing below leads away from the state, everything below is allowed.
    if (node.end - i < kSmallSubtree || (node.below & kOtherBytes) != 0 || (node.below & ~own_bytes(next)) != 0) continue;
    visited += static_cast<int64_t>(node.end - i) / kNodesOfOneStep;
    for (; i < node.end; ++i) {
      if (nodes[i].token >= 0) set_bit(mask, nodes[i].token);
    }
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
