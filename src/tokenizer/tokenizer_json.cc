#include "tokenizer/tokenizer_json.h"

#include "tokenizer/tokenizer_file.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxTreeNodes = 2'000'000;
// In the byte alphabet a byte takes up to two bytes of UTF-8; a merge holds two tokens and a blank.
constexpr size_t kMaxTokenString = 2 * TokenizerFile::kMaxTokenBytes;
constexpr size_t kMaxMergeString = 2 * kMaxTokenString + 1;

class Reader : public nlohmann::json_sax<json> {
 public:
  Reader(TokenizerJson& out, std::string_view source) : out_(out), source_(source) {}

  Status take_error() { return std::move(error_); }

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_float(double v, const std::string&) override { return value(v); }
  bool binary(binary_t&) override { return fail(Status::InvalidArgument("{}: unexpected binary value", source_)); }

  bool number_integer(int64_t v) override {
    if (mode_ == Mode::kVocabulary) return bad_id(std::to_string(v));
    return value(v);
  }

  bool number_unsigned(uint64_t v) override {
    if (mode_ != Mode::kVocabulary) return value(v);
    if (v >= static_cast<uint64_t>(TokenizerFile::kMaxVocabulary)) return bad_id(std::to_string(v));
    out_.vocabulary.emplace_back(std::move(key_), static_cast<int32_t>(v));
    return true;
  }

  bool string(std::string& v) override {
    if (mode_ == Mode::kMerges) return merge_string(v);
    if (mode_ == Mode::kMergePair) {
      if (pair_.size() == 2) return fail(bad_merge("has more than two strings"));
      if (v.size() > kMaxTokenString) return fail(bad_merge("is longer than a token may be"));
      pair_.push_back(std::move(v));
      return true;
    }
    return value(std::move(v));
  }

  bool start_object(size_t) override {
    if (depth_ == 2 && in_model_ && key_ == "vocab") {
      if (!value(true)) return false;
      out_.has_vocabulary = true;
      mode_ = Mode::kVocabulary;
      ++depth_;
      return true;
    }
    return open(json::object());
  }

  bool key(std::string& v) override {
    if (mode_ == Mode::kVocabulary) {
      if (static_cast<int64_t>(out_.vocabulary.size()) >= TokenizerFile::kMaxVocabulary) {
        return fail(Status::OutOfRange("{}: model.vocab has more than {} entries", source_, TokenizerFile::kMaxVocabulary));
      }
      if (v.size() > kMaxTokenString) {
        return fail(Status::OutOfRange("{}: model.vocab: {} has {} bytes, the limit is {}", source_, show_text(v), v.size(),
                                       kMaxTokenString));
      }
    } else {
      if (stack_.back()->contains(v)) return fail(Status::InvalidArgument("{}: key {} appears twice", source_, show_text(v)));
      if (depth_ == 1) in_model_ = v == "model";
    }
    key_ = std::move(v);
    return true;
  }

  bool end_object() override {
    --depth_;
    if (mode_ == Mode::kVocabulary) {
      mode_ = Mode::kTree;
    } else {
      stack_.pop_back();
    }
    return true;
  }

  bool start_array(size_t) override {
    if (mode_ == Mode::kMerges) {
      pair_.clear();
      mode_ = Mode::kMergePair;
      ++depth_;
      return true;
    }
    if (mode_ == Mode::kTree && depth_ == 2 && in_model_ && key_ == "merges") {
      if (!value(true)) return false;
      out_.has_merges = true;
      mode_ = Mode::kMerges;
      ++depth_;
      return true;
    }
    return open(json::array());
  }

  bool end_array() override {
    --depth_;
    if (mode_ == Mode::kMergePair) {
      mode_ = Mode::kMerges;
      if (pair_.size() != 2) return fail(bad_merge("is not a pair of strings"));
      return merge(std::move(pair_[0]), std::move(pair_[1]));
    }
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kTree;
    } else {
      stack_.pop_back();
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(Status::DataLoss("{}: not valid JSON at byte {}", source_, position));
  }

 private:
  enum class Mode { kTree, kVocabulary, kMerges, kMergePair };

  bool fail(Status status) {
    if (error_.ok()) error_ = std::move(status);
    return false;
  }
  bool bad_id(const std::string& what) {
    return fail(Status::OutOfRange("{}: model.vocab[{}] = {}, an id is in [0, {})", source_, show_text(key_), what,
                                   TokenizerFile::kMaxVocabulary));
  }
  Status bad_merge(std::string_view why) const {
    return Status::InvalidArgument("{}: model.merges[{}] {}", source_, out_.merges.size(), why);
  }

  bool merge(std::string left, std::string right) {
    if (static_cast<int64_t>(out_.merges.size()) >= TokenizerFile::kMaxMerges) {
      return fail(Status::OutOfRange("{}: model.merges has more than {} entries", source_, TokenizerFile::kMaxMerges));
    }
    out_.merges.emplace_back(std::move(left), std::move(right));
    return true;
  }

  bool merge_string(const std::string& v) {
    if (v.size() > kMaxMergeString) return fail(bad_merge("is longer than two tokens may be"));
    const size_t blank = v.find(' ');
    if (blank == std::string::npos || v.find(' ', blank + 1) != std::string::npos) {
      return fail(bad_merge(fmt::format("= {} is not two tokens with one blank between them", show_text(v))));
    }
    return merge(v.substr(0, blank), v.substr(blank + 1));
  }

  template <typename T>
  bool value(T&& v) {
    if (mode_ == Mode::kVocabulary) {
      return fail(Status::InvalidArgument("{}: model.vocab[{}] is not an integer", source_, show_text(key_)));
    }
    if (mode_ != Mode::kTree) return fail(bad_merge("is neither a string nor a pair of strings"));
    return add(json(std::forward<T>(v))) != nullptr;
  }

  json* add(json v) {
    if (++nodes_ > kMaxTreeNodes) {
      fail(Status::OutOfRange("{}: more than {} values outside of model.vocab and model.merges", source_, kMaxTreeNodes));
      return nullptr;
    }
    if (stack_.empty()) {
      out_.rest = std::move(v);
      return &out_.rest;
    }
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    json& member = parent[key_];
    member = std::move(v);
    return &member;
  }

  bool open(json container) {
    if (mode_ == Mode::kVocabulary) {
      return fail(Status::InvalidArgument("{}: model.vocab[{}] is not an integer", source_, show_text(key_)));
    }
    if (mode_ != Mode::kTree) return fail(bad_merge("is neither a string nor a pair of strings"));
    if (depth_ >= kMaxDepth) return fail(Status::OutOfRange("{}: JSON nested deeper than {}", source_, kMaxDepth));
    json* added = add(std::move(container));
    if (added == nullptr) return false;
    stack_.push_back(added);
    ++depth_;
    return true;
  }

  TokenizerJson& out_;
  std::string_view source_;
  Status error_;
  Mode mode_ = Mode::kTree;
  size_t depth_ = 0;
  size_t nodes_ = 0;
  bool in_model_ = false;  // the open member of the top level is "model"
  std::string key_;
  std::vector<std::string> pair_;
  std::vector<json*> stack_;  // open containers of the tree; only the innermost one grows, so the pointers stay good
};

}  // namespace

std::string show_text(std::string_view text) {
  constexpr size_t kShown = 60;
  const bool cut = text.size() > kShown;
  std::string valid;
  utf8_append_lossy(text.substr(0, kShown), /*last=*/!cut, valid);
  std::string out = "\"";
  for (const char c : valid) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + (cut ? "...\"" : "\"");
}

Result<TokenizerJson> TokenizerJson::Read(std::string_view text, std::string_view source) {
  if (static_cast<int64_t>(text.size()) > TokenizerFile::kMaxFileBytes) {
    return Err(Status::OutOfRange("{}: {} bytes, the limit is {}", source, text.size(), TokenizerFile::kMaxFileBytes));
  }
  TokenizerJson out;
  Reader reader(out, source);
  try {
    if (!json::sax_parse(text.begin(), text.end(), &reader)) {
      Status error = reader.take_error();
      if (error.ok()) error = Status::DataLoss("{}: not valid JSON", source);
      return Err(std::move(error));
    }
  } catch (const json::exception& e) {
    return Err(Status::DataLoss("{}: not valid JSON: {}", source, e.what()));
  }
  if (!out.rest.is_object()) return Err(Status::InvalidArgument("{}: the top level is not an object", source));
  return out;
}

}  // namespace deepinfer
