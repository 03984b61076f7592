#include "grammar/token_vocabulary.h"

#include <algorithm>

#include "grammar/class_table.h"

namespace deepinfer::grammar {
namespace {

constexpr int32_t kMaxVocabulary = 1 << 21;
constexpr size_t kMaxTables = 64;     // at most about 1 MB each
constexpr size_t kMaxClasses = 1024;  // mostly a few KB, at most about 200
constexpr size_t kMaxTokenBytes = 4096;

}  // namespace

TokenVocabulary::~TokenVocabulary() = default;

std::string TokenVocabulary::marker(int32_t id) {
  const auto value = static_cast<uint32_t>(id);
  return {'\xFF', static_cast<char>(value >> 14 & 0x7F), static_cast<char>(value >> 7 & 0x7F), static_cast<char>(value & 0x7F)};
}

Result<std::shared_ptr<const TokenVocabulary>> TokenVocabulary::Make(const Tokenizer& tokenizer, std::vector<int32_t> stop_ids) {
  std::vector<std::string> tokens;
  std::vector<int32_t> added;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.emplace_back(tokenizer.token_bytes(id));
    if (tokenizer.is_added(id)) added.push_back(id);
  }
  return Make(std::move(tokens), std::move(added), std::move(stop_ids));
}

Result<std::shared_ptr<const TokenVocabulary>> TokenVocabulary::Make(std::vector<std::string> tokens, std::vector<int32_t> added,
                                                                     std::vector<int32_t> stop_ids) {
  if (tokens.empty() || tokens.size() > static_cast<size_t>(kMaxVocabulary)) {
    return Err(Status::OutOfRange("vocabulary of {} tokens, 1 to {} are supported", tokens.size(), kMaxVocabulary));
  }
  const auto known = [&](int32_t id) { return id >= 0 && id < static_cast<int32_t>(tokens.size()); };
  std::shared_ptr<TokenVocabulary> out(new TokenVocabulary());
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
  for (std::string& token : tokens) {
    // A token that long, or with a byte that UTF-8 never has, is no text.
    if (token.size() > kMaxTokenBytes || token.find('\xFF') != std::string::npos) token.clear();
  }
  for (const int32_t id : added) {
    if (!known(id)) return Err(Status::OutOfRange("added token {} of a vocabulary of {}", id, tokens.size()));
    std::string& token = tokens[static_cast<size_t>(id)];
    if (token.empty()) continue;
    out->added_.emplace(token, id);
    token = marker(id);
  }
  for (const int32_t id : stop_ids) {
    if (!known(id)) return Err(Status::OutOfRange("stop token {} of a vocabulary of {}", id, tokens.size()));
    tokens[static_cast<size_t>(id)].clear();
  }
  out->tokens_ = std::move(tokens);
  out->stop_ids_ = std::move(stop_ids);
  std::vector<std::pair<std::string_view, int32_t>> list;
  for (size_t id = 0; id < out->tokens_.size(); ++id) {
    list.emplace_back(out->tokens_[id], static_cast<int32_t>(id));
    if (out->tokens_[id].size() == 1) out->spelled_.set(static_cast<uint8_t>(out->tokens_[id][0]));
  }
  out->trie_ = TokenTrie(std::move(list));
  return std::shared_ptr<const TokenVocabulary>(std::move(out));
}

bool TokenVocabulary::is_stop(int32_t id) const { return std::binary_search(stop_ids_.begin(), stop_ids_.end(), id); }

std::optional<int32_t> TokenVocabulary::added_token(std::string_view literal) const {
  const auto at = added_.find(literal);
  if (at == added_.end() || is_stop(at->second)) return std::nullopt;
  return at->second;
}

namespace {

template <typename Map>
void drop_oldest(Map& map, size_t limit) {
  if (map.size() <= limit) return;
  map.erase(std::min_element(map.begin(), map.end(), [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
}

}  // namespace

std::shared_ptr<const CharClass> TokenVocabulary::char_class(const CodeSet& set, Spelling spelling) const {
  const std::lock_guard lock(mutex_);
  const auto [at, added] = classes_.try_emplace(CharClass::KeyOf(set, spelling));
  at->second.used = ++clock_;
  if (!added) return at->second.value;
  auto made = CharClass::Make(set, spelling, spelled_);
  at->second.value = made;
  drop_oldest(classes_, kMaxClasses);
  return made;
}

std::shared_ptr<const ClassTable> TokenVocabulary::class_table(const CharClass& chars) const {
  const std::lock_guard lock(mutex_);
  const auto [at, added] = tables_.try_emplace(chars.key());
  at->second.used = ++clock_;
  if (!added) return at->second.value;
  auto made = ClassTable::Make(*this, chars);
  at->second.value = made;
  drop_oldest(tables_, kMaxTables);
  return made;
}

}  // namespace deepinfer::grammar
