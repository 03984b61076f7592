#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "base/mapped_file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

using Kind = TokenizerFile::Kind;

bool is_added_kind(Kind kind) { return kind == Kind::kAdded || kind == Kind::kSpecial; }

/// The added tokens, sorted by their bytes: those with a common start are neighbours, so a longest match narrows a range byte
/// by byte. At most kMaxTokenBytes steps per position, and only where the first byte begins a token at all.
class AddedTokens {
 public:
  explicit AddedTokens(const TokenizerFile& file) {
    for (size_t id = 0; id < file.tokens.size(); ++id) {
      if (is_added_kind(file.kinds[id])) sorted_.emplace_back(file.tokens[id], static_cast<int32_t>(id));
    }
    std::sort(sorted_.begin(), sorted_.end());
    for (size_t i = 0; i < sorted_.size(); ++i) {
      Range& range = by_first_byte_[first_byte(sorted_[i].first)];
      if (range.begin == range.end) range.begin = i;
      range.end = i + 1;
    }
  }

  std::optional<int32_t> find(std::string_view literal) const {
    const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), literal,
                                     [](const auto& entry, std::string_view text) { return entry.first < text; });
    if (it == sorted_.end() || it->first != literal) return std::nullopt;
    return it->second;
  }

  struct Match {
    int32_t id = -1;
    size_t length = 0;
  };
  /// The longest token that `text` starts with.
  Match longest(std::string_view text) const {
    Match match;
    if (text.empty()) return match;
    auto [begin, end] = by_first_byte_[first_byte(text)];
    for (size_t length = 1; begin < end; ++length) {
      if (sorted_[begin].first.size() == length) match = {sorted_[begin++].second, length};
      if (length == text.size()) break;
      const auto byte = static_cast<uint8_t>(text[length]);
      const auto at = [&](size_t i) { return static_cast<uint8_t>(sorted_[i].first[length]); };
      begin = partition(begin, end, [&](size_t i) { return at(i) < byte; });
      end = partition(begin, end, [&](size_t i) { return at(i) == byte; });
    }
    return match;
  }

 private:
  struct Range {
    size_t begin = 0, end = 0;
  };
  static uint8_t first_byte(std::string_view text) { return static_cast<uint8_t>(text[0]); }

  /// First index of [begin, end) for which `before` no longer holds.
  template <typename Before>
  static size_t partition(size_t begin, size_t end, Before before) {
    while (begin < end) {
      const size_t middle = begin + (end - begin) / 2;
      if (before(middle)) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }

  std::vector<std::pair<std::string, int32_t>> sorted_;
  std::array<Range, 256> by_first_byte_{};
};

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile&& file) : bpe(file), added(file), tokens(std::move(file.tokens)), kinds(std::move(file.kinds)) {}

  void encode_span(std::string_view valid, std::vector<int32_t>& out) const {
    PreTokenizer pre(valid);
    std::string_view piece;
    while (pre.next(piece)) bpe.encode(piece, out);
  }

  bool known(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < tokens.size(); }
  Kind kind(int32_t id) const { return known(id) ? kinds[static_cast<size_t>(id)] : Kind::kNone; }

  Bpe bpe;
  AddedTokens added;
  std::vector<std::string> tokens;
  std::vector<Kind> kinds;
};

namespace {

/// `text` itself, or `storage` with its repaired copy.
std::string_view repair(std::string_view text, std::string& storage) {
  const size_t valid = utf8_valid_prefix(text);
  if (valid == text.size()) return text;
  storage.reserve(text.size() + 16);
  storage.append(text.substr(0, valid));
  utf8_append_lossy(text.substr(valid), /*last=*/true, storage);
  return storage;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, TokenizerFile::kMaxFileBytes));
  return Parse(text, path);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::Parse(std::string_view json, std::string_view source) {
  DI_ASSIGN_OR_RETURN(TokenizerFile file, TokenizerFile::Parse(json, source));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::make_unique<Impl>(std::move(file))));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::string storage;
  const std::string_view valid = repair(text, storage);
  std::vector<int32_t> ids;
  ids.reserve(valid.size() / 3 + 8);
  impl_->encode_span(valid, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_with_added_tokens(std::string_view text) const {
  std::string storage;
  const std::string_view valid = repair(text, storage);
  std::vector<int32_t> ids;
  ids.reserve(valid.size() / 3 + 8);
  size_t begin = 0;
  for (size_t i = 0; i < valid.size();) {
    const AddedTokens::Match match = impl_->added.longest(valid.substr(i));
    if (match.length == 0) {
      ++i;
      continue;
    }
    impl_->encode_span(valid.substr(begin, i - begin), ids);
    ids.push_back(match.id);
    begin = i += match.length;
  }
  impl_->encode_span(valid.substr(begin), ids);
  return ids;
}

std::optional<int32_t> Tokenizer::added_token(std::string_view literal) const { return impl_->added.find(literal); }
bool Tokenizer::is_added(int32_t id) const { return is_added_kind(impl_->kind(id)); }
bool Tokenizer::is_special(int32_t id) const { return impl_->kind(id) == Kind::kSpecial; }

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return impl_->known(id) ? std::string_view(impl_->tokens[static_cast<size_t>(id)]) : std::string_view();
}

std::string Tokenizer::token_string(int32_t id) const {
  const std::string_view bytes = token_bytes(id);
  if (is_added(id)) return std::string(bytes);
  std::string text;
  for (const char c : bytes) utf8_append(byte_to_alphabet(static_cast<uint8_t>(c)), text);
  return text;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes.append(token_bytes(id));
  }
  if (utf8_valid_prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  utf8_append_lossy(bytes, /*last=*/true, text);
  return text;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->tokens.size()); }

}  // namespace deepinfer
