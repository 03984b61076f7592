#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

/// Byte-level BPE of a DeepSeek tokenizer.json (spec/protocol §2). Immutable after loading; any thread may use it.
class Tokenizer {
 public:
  /// Limits on the file are checked; errors name the file and field.
  static Result<std::shared_ptr<const Tokenizer>> Load(const std::string& path);
  static Result<std::shared_ptr<const Tokenizer>> Parse(std::string_view json, std::string_view source);

  ~Tokenizer();

  /// Ids of plain text: added tokens spelled in it are ordinary bytes. Invalid UTF-8 is replaced by U+FFFD, as HF does.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Ids of trusted text: added tokens are matched (leftmost, longest).
  std::vector<int32_t> encode_with_added_tokens(std::string_view text) const;

  /// Id of an added token by its literal text, for example "<｜User｜>".
  std::optional<int32_t> added_token(std::string_view literal) const;
  bool is_added(int32_t id) const;
  /// Added and flagged special in the file: what a decode for people leaves out.
  bool is_special(int32_t id) const;

  /// Bytes of one token: an ordinary token's bytes, an added token's literal text. Empty for an id without a token.
  std::string_view token_bytes(int32_t id) const;
  /// One token as the file spells it: an ordinary token in the byte alphabet ("Ġthe"), an added token's literal text.
  std::string token_string(int32_t id) const;
  /// Concatenated bytes; invalid UTF-8 replaced by U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  /// One more than the largest id.
  int32_t vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Turns a stream of ids into a stream of valid UTF-8: bytes of an unfinished character are held back until it is complete,
/// broken ones become U+FFFD. The concatenation of all pieces and `finish()` equals Tokenizer::decode of all ids.
class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = false);
  std::string push(int32_t id);
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string pending_;
};

/// The Engram token-compression map (spec/backbone §5.1): for every id in [0, vocab_size) the number of its key, keys numbered
/// in order of first appearance.
struct EngramTokenMap {
  std::vector<int32_t> map;
  int32_t compressed_vocab_size = 0;
};
EngramTokenMap make_engram_token_map(const Tokenizer& tokenizer);

}  // namespace deepinfer
