#include "tokenizer/tokenizer_file.h"

#include <initializer_list>
#include <unordered_map>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using Kind = TokenizerFile::Kind;

/// An object of the file together with its path, for messages.
class Object {
 public:
  static Result<Object> Make(const json& value, std::string path, std::string_view source) {
    if (!value.is_object()) return Err(Status::InvalidArgument("{}: {} is not an object", source, path));
    return Object(value, std::move(path), source);
  }

  const json* find(const char* name) const {
    const auto it = value_->find(name);
    return it == value_->end() ? nullptr : &*it;
  }
  std::string name(std::string_view field) const { return path_.empty() ? std::string(field) : path_ + "." + std::string(field); }

  /// Every field is one of `known`: one that we never heard of may change the ids.
  Status check_known(std::initializer_list<std::string_view> known) const {
    for (const auto& item : value_->items()) {
      bool found = false;
      for (const std::string_view k : known) found = found || k == item.key();
      if (!found) return Status::Unimplemented("{}: unknown field {}", source_, show_text(name(item.key())));
    }
    return Status::Ok();
  }
  /// The field is absent, null or equal to `wanted`.
  Status check_default(const char* field, const json& wanted) const {
    const json* found = find(field);
    if (found == nullptr || found->is_null() || *found == wanted) return Status::Ok();
    return unsupported(field, *found, wanted);
  }
  /// The field is present and equal to `wanted`.
  Status check_equal(const char* field, const json& wanted) const {
    const json* found = find(field);
    if (found == nullptr) return Status::InvalidArgument("{}: {} is missing", source_, name(field));
    return *found == wanted ? Status::Ok() : unsupported(field, *found, wanted);
  }
  /// The field is absent or a boolean.
  Status check_boolean(const char* field) const {
    const json* found = find(field);
    if (found == nullptr || found->is_boolean()) return Status::Ok();
    return Status::InvalidArgument("{}: {} is not a boolean", source_, name(field));
  }
  Result<std::string> string(const char* field) const {
    const json* found = find(field);
    if (found == nullptr || !found->is_string()) {
      return Err(Status::InvalidArgument("{}: {} is {}", source_, name(field), found == nullptr ? "missing" : "not a string"));
    }
    return found->get<std::string>();
  }
  Result<bool> boolean(const char* field) const {
    DI_RETURN_IF_ERROR(check_boolean(field));
    const json* found = find(field);
    return found != nullptr && found->get<bool>();
  }
  Result<Object> object(const char* field) const {
    const json* found = find(field);
    if (found == nullptr) return Err(Status::InvalidArgument("{}: {} is missing", source_, name(field)));
    return Make(*found, name(field), source_);
  }
  Result<const json*> array(const char* field) const {
    const json* found = find(field);
    if (found == nullptr || !found->is_array()) {
      return Err(Status::InvalidArgument("{}: {} is {}", source_, name(field), found == nullptr ? "missing" : "not an array"));
    }
    return found;
  }

 private:
  Object(const json& value, std::string path, std::string_view source)
      : value_(&value), path_(std::move(path)), source_(source) {}

  Status unsupported(const char* field, const json& found, const json& wanted) const {
    const auto show = [](const json& v) {
      if (v.is_structured()) return std::string(v.is_array() ? "an array" : "an object");
      return v.is_string() ? show_text(v.get_ref<const std::string&>()) : v.dump();
    };
    return Status::Unimplemented("{}: {} = {}, only {} is supported", source_, name(field), show(found), show(wanted));
  }

  const json* value_;
  std::string path_;
  std::string_view source_;
};

Status check_normalizer(const Object& top, std::string_view source) {
  const json* found = top.find("normalizer");
  if (found == nullptr || found->is_null()) return Status::Ok();
  DI_ASSIGN_OR_RETURN(const Object normalizer, top.object("normalizer"));
  DI_RETURN_IF_ERROR(normalizer.check_equal("type", "Sequence"));
  DI_RETURN_IF_ERROR(normalizer.check_known({"type", "normalizers"}));
  DI_ASSIGN_OR_RETURN(const json* list, normalizer.array("normalizers"));
  if (list->empty()) return Status::Ok();
  return Status::Unimplemented("{}: normalizer.normalizers has {} entries, only an empty list is supported", source,
                               list->size());
}

Status check_split(const Object& split, int stage, std::string_view source) {
  DI_RETURN_IF_ERROR(split.check_equal("type", "Split"));
  DI_RETURN_IF_ERROR(split.check_known({"type", "pattern", "behavior", "invert"}));
  DI_RETURN_IF_ERROR(split.check_equal("behavior", "Isolated"));
  DI_RETURN_IF_ERROR(split.check_equal("invert", false));
  DI_ASSIGN_OR_RETURN(const Object pattern, split.object("pattern"));
  DI_RETURN_IF_ERROR(pattern.check_known({"Regex"}));
  DI_ASSIGN_OR_RETURN(const std::string regex, pattern.string("Regex"));
  if (recognise_split(regex) == stage) return Status::Ok();
  return Status::Unimplemented("{}: {} = {} is not the DeepSeek pattern of stage {}", source, pattern.name("Regex"),
                               show_text(regex), stage + 1);
}

Status check_pre_tokenizer(const Object& top, std::string_view source) {
  DI_ASSIGN_OR_RETURN(const Object pre, top.object("pre_tokenizer"));
  DI_RETURN_IF_ERROR(pre.check_equal("type", "Sequence"));
  DI_RETURN_IF_ERROR(pre.check_known({"type", "pretokenizers"}));
  DI_ASSIGN_OR_RETURN(const json* list, pre.array("pretokenizers"));
  if (list->size() != 4) {
    return Status::Unimplemented("{}: pre_tokenizer.pretokenizers has {} entries, only three Split and a ByteLevel are supported",
                                 source, list->size());
  }
  for (int stage = 0; stage < 4; ++stage) {
    DI_ASSIGN_OR_RETURN(const Object entry, Object::Make((*list)[static_cast<size_t>(stage)],
                                                         fmt::format("pre_tokenizer.pretokenizers[{}]", stage), source));
    if (stage < 3) {
      DI_RETURN_IF_ERROR(check_split(entry, stage, source));
      continue;
    }
    DI_RETURN_IF_ERROR(entry.check_equal("type", "ByteLevel"));
    DI_RETURN_IF_ERROR(entry.check_known({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    DI_RETURN_IF_ERROR(entry.check_equal("add_prefix_space", false));
    DI_RETURN_IF_ERROR(entry.check_equal("use_regex", false));
    DI_RETURN_IF_ERROR(entry.check_boolean("trim_offsets"));  // about offsets, which we do not report
  }
  return Status::Ok();
}

/// A ByteLevel decoder or post-processor: none of its options changes ids or bytes.
Status check_byte_level(const Object& top, const char* field) {
  DI_ASSIGN_OR_RETURN(const Object stage, top.object(field));
  DI_RETURN_IF_ERROR(stage.check_equal("type", "ByteLevel"));
  DI_RETURN_IF_ERROR(stage.check_known({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  for (const char* option : {"add_prefix_space", "trim_offsets", "use_regex"}) DI_RETURN_IF_ERROR(stage.check_boolean(option));
  return Status::Ok();
}

Status check_model_options(const Object& model) {
  DI_RETURN_IF_ERROR(model.check_equal("type", "BPE"));
  DI_RETURN_IF_ERROR(model.check_known({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                        "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  DI_RETURN_IF_ERROR(model.check_default("dropout", nullptr));
  DI_RETURN_IF_ERROR(model.check_default("unk_token", nullptr));
  DI_RETURN_IF_ERROR(model.check_default("continuing_subword_prefix", ""));
  DI_RETURN_IF_ERROR(model.check_default("end_of_word_suffix", ""));
  DI_RETURN_IF_ERROR(model.check_default("byte_fallback", false));
  DI_RETURN_IF_ERROR(model.check_default("ignore_merges", false));
  return model.check_boolean("fuse_unk");  // without an unknown token it has nothing to fuse
}

/// The bytes that a string of the byte alphabet stands for; false if a character is outside of the alphabet.
bool alphabet_to_bytes(std::string_view text, std::string& bytes) {
  static const std::array<int16_t, 0x144> kBytes = [] {
    std::array<int16_t, 0x144> table{};
    table.fill(-1);
    for (int b = 0; b < 256; ++b) table[byte_to_alphabet(static_cast<uint8_t>(b))] = static_cast<int16_t>(b);
    return table;
  }();
  bytes.clear();
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(reinterpret_cast<const uint8_t*>(text.data()) + i, text.size() - i);
    if (step.kind != Utf8Kind::kValid || step.code_point >= kBytes.size() || kBytes[step.code_point] < 0) return false;
    bytes += static_cast<char>(kBytes[step.code_point]);
    i += step.length;
  }
  return true;
}

class Builder {
 public:
  Builder(TokenizerFile& file, const TokenizerJson& raw, std::string_view source) : file_(file), raw_(raw), source_(source) {}

  Status add_vocabulary() {
    ids_.reserve(raw_.vocabulary.size());
    for (const auto& [text, id] : raw_.vocabulary) {
      if (!ids_.emplace(text, id).second)
        return Status::InvalidArgument("{}: model.vocab has {} twice", source_, show_text(text));
      if (text.empty()) return Status::InvalidArgument("{}: model.vocab has an empty token, id {}", source_, id);
      grow(id);
      if (owner_[index(id)] != nullptr) {
        return Status::InvalidArgument("{}: model.vocab gives id {} to {} and to {}", source_, id, show_text(*owner_[index(id)]),
                                       show_text(text));
      }
      owner_[index(id)] = &text;
    }
    return Status::Ok();
  }

  Status add_added_token(const Object& token) {
    DI_RETURN_IF_ERROR(token.check_known({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    DI_ASSIGN_OR_RETURN(const std::string content, token.string("content"));
    const json* id_field = token.find("id");
    if (id_field == nullptr || !id_field->is_number_unsigned() ||
        id_field->get<uint64_t>() >= static_cast<uint64_t>(TokenizerFile::kMaxVocabulary)) {
      return Status::OutOfRange("{}: {} = {}, an id is in [0, {})", source_, token.name("id"),
                                id_field == nullptr     ? "missing"
                                : id_field->is_number() ? id_field->dump()
                                                        : id_field->type_name(),
                                TokenizerFile::kMaxVocabulary);
    }
    const auto id = static_cast<int32_t>(id_field->get<uint64_t>());
    if (content.empty() || content.size() > TokenizerFile::kMaxTokenBytes) {
      return Status::OutOfRange("{}: {} has {} bytes, allowed are 1 to {}", source_, token.name("content"), content.size(),
                                TokenizerFile::kMaxTokenBytes);
    }
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) DI_RETURN_IF_ERROR(token.check_default(flag, false));
    DI_RETURN_IF_ERROR(token.check_boolean("normalized"));  // there is no normalizer that would make a difference
    DI_ASSIGN_OR_RETURN(const bool special, token.boolean("special"));
    grow(id);
    if (file_.kinds[index(id)] != Kind::kNone) {
      return Status::InvalidArgument("{}: {} = {} is already the id of {}", source_, token.name("id"), id,
                                     show_text(file_.tokens[index(id)]));
    }
    if (owner_[index(id)] != nullptr && *owner_[index(id)] != content) {
      return Status::InvalidArgument("{}: {} = {} is the id of {} in model.vocab", source_, token.name("id"), id,
                                     show_text(*owner_[index(id)]));
    }
    const auto [known, fresh] = ids_.emplace(content, id);
    if (!fresh && known->second != id) {
      return Status::InvalidArgument("{}: {} = {} has id {} here and {} elsewhere", source_, token.name("content"),
                                     show_text(content), id, known->second);
    }
    file_.kinds[index(id)] = special ? Kind::kSpecial : Kind::kAdded;
    file_.tokens[index(id)] = content;
    return Status::Ok();
  }

  /// After the added tokens: what is left of the vocabulary is ordinary and must be spelled in the byte alphabet.
  Status decode_vocabulary() {
    file_.byte_ids.fill(-1);
    std::string bytes;
    size_t total = 0;
    for (size_t id = 0; id < owner_.size(); ++id) {
      if (owner_[id] == nullptr || file_.kinds[id] != Kind::kNone) continue;
      if (!alphabet_to_bytes(*owner_[id], bytes)) {
        return Status::InvalidArgument("{}: model.vocab: {} (id {}) has a character outside of the byte alphabet", source_,
                                       show_text(*owner_[id]), id);
      }
      total += bytes.size();
      if (bytes.size() > TokenizerFile::kMaxTokenBytes || total > TokenizerFile::kMaxTotalTokenBytes) {
        return Status::OutOfRange("{}: model.vocab: {} (id {}) has {} bytes, the limit is {} ({} for all)", source_,
                                  show_text(*owner_[id]), id, bytes.size(), TokenizerFile::kMaxTokenBytes,
                                  TokenizerFile::kMaxTotalTokenBytes);
      }
      file_.kinds[id] = Kind::kOrdinary;
      file_.tokens[id] = bytes;
      if (bytes.size() == 1) file_.byte_ids[static_cast<uint8_t>(bytes[0])] = static_cast<int32_t>(id);
    }
    for (size_t b = 0; b < 256; ++b) {
      if (file_.byte_ids[b] < 0) return Status::InvalidArgument("{}: model.vocab has no token for the byte 0x{:02x}", source_, b);
    }
    return Status::Ok();
  }

  Status add_merges() {
    std::unordered_map<uint64_t, size_t> seen;
    seen.reserve(raw_.merges.size());
    file_.merges.reserve(raw_.merges.size());
    for (const auto& [left_text, right_text] : raw_.merges) {
      TokenizerFile::Merge merge{};
      DI_ASSIGN_OR_RETURN(merge.left, merge_part(left_text));
      DI_ASSIGN_OR_RETURN(merge.right, merge_part(right_text));
      DI_ASSIGN_OR_RETURN(merge.merged, merge_part(left_text + right_text));
      const uint64_t key = static_cast<uint64_t>(merge.left) << 32 | static_cast<uint64_t>(merge.right);
      const auto [first, fresh] = seen.emplace(key, file_.merges.size());
      if (!fresh) {
        return Status::InvalidArgument("{}: model.merges[{}] repeats model.merges[{}]", source_, file_.merges.size(),
                                       first->second);
      }
      file_.merges.push_back(merge);
    }
    return Status::Ok();
  }

 private:
  static size_t index(int32_t id) { return static_cast<size_t>(id); }
  void grow(int32_t id) {
    if (index(id) < owner_.size()) return;
    owner_.resize(index(id) + 1);
    file_.tokens.resize(index(id) + 1);
    file_.kinds.resize(index(id) + 1, Kind::kNone);
  }

  Result<int32_t> merge_part(const std::string& text) const {
    const auto it = ids_.find(text);
    if (it == ids_.end()) {
      return Err(Status::InvalidArgument("{}: model.merges[{}] names {}, which is not in model.vocab", source_,
                                         file_.merges.size(), show_text(text)));
    }
    // Ordinary text must never turn into an added token, whatever the file says (spec/protocol §5).
    if (file_.kinds[index(it->second)] != Kind::kOrdinary) {
      return Err(Status::InvalidArgument("{}: model.merges[{}] names the added token {}", source_, file_.merges.size(),
                                         show_text(text)));
    }
    return it->second;
  }

  TokenizerFile& file_;
  const TokenizerJson& raw_;
  std::string_view source_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<const std::string*> owner_;  // by id: the entry of model.vocab
};

}  // namespace

uint32_t byte_to_alphabet(uint8_t byte) {
  const auto printable = [](uint32_t b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  if (printable(byte)) return byte;
  uint32_t stand_in = 256;
  for (uint32_t b = 0; b < byte; ++b) stand_in += printable(b) ? 0 : 1;
  return stand_in;
}

Result<TokenizerFile> TokenizerFile::Parse(std::string_view text, std::string_view source) {
  DI_ASSIGN_OR_RETURN(const TokenizerJson raw, TokenizerJson::Read(text, source));
  DI_ASSIGN_OR_RETURN(const Object top, Object::Make(raw.rest, "", source));
  DI_RETURN_IF_ERROR(top.check_known(
      {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}));
  DI_RETURN_IF_ERROR(top.check_equal("version", "1.0"));
  DI_RETURN_IF_ERROR(top.check_default("truncation", nullptr));
  DI_RETURN_IF_ERROR(top.check_default("padding", nullptr));
  DI_ASSIGN_OR_RETURN(const Object model, top.object("model"));
  DI_RETURN_IF_ERROR(check_model_options(model));
  if (!raw.has_vocabulary) return Err(Status::InvalidArgument("{}: model.vocab is missing or not an object", source));
  if (!raw.has_merges) return Err(Status::InvalidArgument("{}: model.merges is missing or not an array", source));
  DI_RETURN_IF_ERROR(check_normalizer(top, source));
  DI_RETURN_IF_ERROR(check_pre_tokenizer(top, source));
  const json* post = top.find("post_processor");
  if (post != nullptr && !post->is_null()) DI_RETURN_IF_ERROR(check_byte_level(top, "post_processor"));
  DI_RETURN_IF_ERROR(check_byte_level(top, "decoder"));

  TokenizerFile file;
  Builder builder(file, raw, source);
  DI_RETURN_IF_ERROR(builder.add_vocabulary());
  const json* added = top.find("added_tokens");
  if (added != nullptr && !added->is_null()) {
    DI_ASSIGN_OR_RETURN(const json* list, top.array("added_tokens"));
    if (list->size() > kMaxAddedTokens) {
      return Err(Status::OutOfRange("{}: added_tokens has {} entries, the limit is {}", source, list->size(), kMaxAddedTokens));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      DI_ASSIGN_OR_RETURN(const Object token, Object::Make((*list)[i], fmt::format("added_tokens[{}]", i), source));
      DI_RETURN_IF_ERROR(builder.add_added_token(token));
    }
  }
  DI_RETURN_IF_ERROR(builder.decode_vocabulary());
  DI_RETURN_IF_ERROR(builder.add_merges());
  return file;
}

}  // namespace deepinfer
