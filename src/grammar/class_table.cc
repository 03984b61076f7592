#include "grammar/class_table.h"

#include <algorithm>

#include "grammar/token_vocabulary.h"

namespace deepinfer::grammar {
namespace {

struct At {
  uint16_t state = 0;
  uint32_t characters = 0;  ///< started ones
};

/// Calls inside(token, characters) for tokens of the class and leave(node index) where a path leaves it.
template <typename Inside, typename Leave>
void walk(const TokenTrie& trie, const CharClass& chars, Inside&& inside, Leave&& leave) {
  std::vector<At> path(trie.max_depth() + 1);
  const auto nodes = trie.nodes();
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const At& from = path[node.depth - 1u];
    const uint16_t next = chars.step(from.state, node.byte);
    if (next == CharClass::kDead) {
      if (from.state == 0) leave(i);
      i = node.end;
      continue;
    }
    At& to = path[node.depth];
    to.state = next == CharClass::kDone ? uint16_t{0} : next;
    to.characters = from.characters + (from.state == 0 ? 1 : 0);
    if (node.token >= 0) inside(node.token, to.characters);
    ++i;
  }
}

}  // namespace

std::shared_ptr<const ClassTable> ClassTable::Make(const TokenVocabulary& vocabulary, const CharClass& chars) {
  const TokenTrie& trie = vocabulary.trie();
  std::vector<std::pair<uint32_t, int32_t>> inside;
  walk(
      trie, chars, [&](int32_t token, uint32_t characters) { inside.emplace_back(characters, token); }, [](size_t) {});
  if (inside.size() < kWideTokens) return nullptr;
  for (const auto& [token, twin] : trie.twins()) {
    const auto at =
        std::find_if(inside.begin(), inside.end(), [token = token](const auto& entry) { return entry.second == token; });
    if (at != inside.end()) inside.emplace_back(at->first, twin);
  }
  std::sort(inside.begin(), inside.end());

  auto table = std::make_shared<ClassTable>();
  table->vocabulary_ = &vocabulary;
  std::vector<uint32_t> mask(vocabulary.mask_words(), 0);
  table->up_to_.push_back(mask);
  size_t next = 0;
  for (size_t n = 1; n <= kCounted; ++n) {
    for (; next < inside.size() && inside[next].first <= n; ++next) {
      mask[static_cast<size_t>(inside[next].second) / 32] |= 1u << (inside[next].second % 32);
    }
    table->up_to_.push_back(mask);
  }
  table->longer_.assign(inside.begin() + static_cast<std::ptrdiff_t>(next), inside.end());
  for (const auto& [characters, token] : table->longer_) mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  table->up_to_.push_back(std::move(mask));

  const auto nodes = trie.nodes();
  walk(
      trie, chars, [](int32_t, uint32_t) {},
      [&](size_t i) {
        auto& list = table->leaving_tokens_[nodes[i].byte];
        for (size_t k = i; k < nodes[i].end; ++k) {
          if (nodes[k].token >= 0) list.push_back(nodes[k].token);
        }
      });
  for (const auto& [token, twin] : trie.twins()) {
    for (auto& list : table->leaving_tokens_) {
      if (std::find(list.begin(), list.end(), token) != list.end()) list.push_back(twin);
    }
  }
  for (const auto& list : table->leaving_tokens_) table->leaving_count_ += list.size();
  return table;
}

void ClassTable::add_tokens(uint64_t characters, std::span<uint32_t> mask) const {
  const bool all = longer_.empty() ? characters >= kCounted : characters >= longer_.back().first;
  const auto& base = all ? up_to_.back() : up_to_[std::min<uint64_t>(characters, kCounted)];
  for (size_t i = 0; i < base.size(); ++i) mask[i] |= base[i];
  if (all || characters <= kCounted) return;
  for (const auto& [count, token] : longer_) {
    if (count > characters) break;
    mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  }
}

const TokenTrie& ClassTable::leaving(uint8_t byte) const {
  const std::lock_guard lock(mutex_);
  auto& trie = leaving_[byte];
  if (trie == nullptr) {
    std::vector<std::pair<std::string_view, int32_t>> list;
    for (const int32_t token : leaving_tokens_[byte]) list.emplace_back(vocabulary_->bytes(token), token);
    trie = std::make_unique<TokenTrie>(std::move(list));
  }
  return *trie;
}

const TokenTrie* ClassTable::all_leaving() const {
  if (leaving_count_ > kManyLeaving) return nullptr;
  const std::lock_guard lock(mutex_);
  if (all_leaving_ == nullptr) {
    std::vector<std::pair<std::string_view, int32_t>> list;
    for (const auto& tokens : leaving_tokens_) {
      for (const int32_t token : tokens) list.emplace_back(vocabulary_->bytes(token), token);
    }
    all_leaving_ = std::make_unique<TokenTrie>(std::move(list));
  }
  return all_leaving_.get();
}

}  // namespace deepinfer::grammar
