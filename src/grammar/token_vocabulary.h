#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/char_class.h"
#include "grammar/token_trie.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer::grammar {

class ClassTable;

/// What grammars need to know of a tokenizer: the bytes of every token as a tree, built once, and per class of characters the
/// tokens that consist of them. Immutable but for that cache, which is behind a mutex; any thread may use it.
///
/// Added tokens never match text. A grammar may ask for one by id; it then stands in the tree as the byte 0xFF, which no UTF-8
/// text has, and three bytes of the id. Ordinary tokens with a byte 0xFF are never allowed.
class TokenVocabulary {
 public:
  /// `stop_ids`: tokens that end the output where the grammar can end.
  static Result<std::shared_ptr<const TokenVocabulary>> Make(const Tokenizer& tokenizer, std::vector<int32_t> stop_ids);
  /// From the bytes of each id; ids in `added` are added tokens with that literal text.
  static Result<std::shared_ptr<const TokenVocabulary>> Make(std::vector<std::string> tokens, std::vector<int32_t> added,
                                                             std::vector<int32_t> stop_ids);
  ~TokenVocabulary();

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  /// Words of a mask.
  size_t mask_words() const { return (tokens_.size() + 31) / 32; }
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  bool is_stop(int32_t id) const;
  /// How a token looks to a grammar; empty for ids that no grammar allows.
  std::string_view bytes(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  const TokenTrie& trie() const { return trie_; }
  /// Bytes that exist as tokens by themselves, so that any text of them can be spelled.
  const ByteSet& spelled_bytes() const { return spelled_; }
  std::optional<int32_t> added_token(std::string_view literal) const;
  /// The bytes that stand for an added token.
  static std::string marker(int32_t id);

  /// The automaton of a class, without characters that need a byte which is no token. Kept for later grammars.
  std::shared_ptr<const CharClass> char_class(const CodeSet& set, Spelling spelling) const;
  /// The table of a class, made at first use; null for a class so narrow that a walk is as good.
  std::shared_ptr<const ClassTable> class_table(const CharClass& chars) const;

 private:
  TokenVocabulary() = default;

  std::vector<std::string> tokens_;
  std::vector<int32_t> stop_ids_;
  std::map<std::string, int32_t, std::less<>> added_;
  TokenTrie trie_;
  ByteSet spelled_;

  template <typename T>
  struct Entry {
    std::shared_ptr<const T> value;
    uint64_t used = 0;
  };
  template <typename T>
  using Cache = std::map<std::string, Entry<T>>;
  mutable std::mutex mutex_;
  mutable Cache<ClassTable> tables_;
  mutable Cache<CharClass> classes_;
  mutable uint64_t clock_ = 0;
};

}  // namespace deepinfer::grammar
