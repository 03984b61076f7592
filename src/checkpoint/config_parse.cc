// config.json -> ModelConfig. Reading only: ranges and relations are validate()'s (model_config.cc).

#include <simdjson.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/mapped_file.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/text_util.h"

namespace deepinfer {
namespace {

using internal::IntField;
using internal::needed;
using internal::printable;
namespace dom = simdjson::dom;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxListEntries = 4096;

/// An object of the file and how it is called in errors.
struct Section {
  dom::object object;
  std::string prefix;  ///< "text_config."
};

std::string short_json(const dom::element& value) { return printable(simdjson::to_string(value)); }

/// Reads fields by name. The first error stays; later calls then do nothing.
class Reader {
 public:
  const Status& status() const { return status_; }

  /// The value under either name; nullopt if absent or null. Of duplicate keys the last one counts, as in Python's json.
  std::optional<dom::element> find(const Section& section, std::string_view name, std::string_view alias = "") {
    std::optional<dom::element> by_name, by_alias;
    for (const dom::key_value_pair field : section.object) {
      if (field.key == name) by_name = field.value;
      if (!alias.empty() && field.key == alias) by_alias = field.value;
    }
    if (by_name && by_name->is_null()) by_name.reset();
    if (by_alias && by_alias->is_null()) by_alias.reset();
    if (by_name && by_alias && simdjson::to_string(*by_name) != simdjson::to_string(*by_alias)) {
      fail(Status::InvalidArgument("{}{} is {} but {}{} is {}; they are two names of one field", section.prefix, name,
                                   short_json(*by_name), section.prefix, alias, short_json(*by_alias)));
    }
    return by_name ? by_name : by_alias;
  }

  /// True if the field was there.
  bool integer(const Section& section, std::string_view name, std::string_view alias, int64_t* out) {
    const auto value = find(section, name, alias);
    if (!value) return false;
    if (!to_integer(*value, out)) wrong_type(section, name, *value, "an integer");
    return true;
  }

  bool number(const Section& section, std::string_view name, std::string_view alias, float* out) {
    const auto value = find(section, name, alias);
    if (!value) return false;
    double x = 0;
    int64_t whole = 0;
    if (to_integer(*value, &whole)) {
      x = static_cast<double>(whole);
    } else if (value->get_double().get(x) != simdjson::SUCCESS) {
      wrong_type(section, name, *value, "a number");
      return true;
    }
    // A cast of a larger double to float would be undefined.
    if (!(std::fabs(x) <= static_cast<double>(std::numeric_limits<float>::max()))) {
      fail(Status::OutOfRange("{}{} is {}, which is not a finite fp32", section.prefix, name, short_json(*value)));
      return true;
    }
    *out = static_cast<float>(x);
    return true;
  }

  bool boolean(const Section& section, std::string_view name, bool* out) {
    const auto value = find(section, name);
    if (!value) return false;
    if (value->get_bool().get(*out) != simdjson::SUCCESS) wrong_type(section, name, *value, "true or false");
    return true;
  }

  bool integers(const Section& section, std::string_view name, std::string_view alias, std::vector<int64_t>* out) {
    const auto value = find(section, name, alias);
    if (!value) return false;
    dom::array array;
    if (value->get_array().get(array) != simdjson::SUCCESS) {
      wrong_type(section, name, *value, "a list of integers");
      return true;
    }
    out->clear();
    for (const dom::element entry : array) {
      if (out->size() == kMaxListEntries) {
        fail(Status::OutOfRange("{}{} has more than {} entries", section.prefix, name, kMaxListEntries));
        return true;
      }
      int64_t x = 0;
      if (!to_integer(entry, &x)) {
        wrong_type(section, name, *value, "a list of integers");
        return true;
      }
      out->push_back(x);
    }
    return true;
  }

  std::optional<Section> object(const Section& section, std::string_view name) {
    const auto value = find(section, name);
    if (!value) return std::nullopt;
    Section inner;
    if (value->get_object().get(inner.object) != simdjson::SUCCESS) {
      wrong_type(section, name, *value, "an object");
      return std::nullopt;
    }
    inner.prefix = section.prefix + std::string(name) + ".";
    return inner;
  }

  /// The string must be `expected` where it is given; it must be given if `required`.
  void expect(const Section& section, std::string_view name, std::string_view alias, std::string_view expected, bool required) {
    const auto value = find(section, name, alias);
    if (!value) {
      if (required) missing(section, name);
      return;
    }
    std::string_view text;
    if (value->get_string().get(text) != simdjson::SUCCESS || text != expected) {
      fail(Status::InvalidArgument("{}{} is {}, only \"{}\" is supported", section.prefix, name, short_json(*value), expected));
    }
  }

  void missing(const Section& section, std::string_view name) {
    fail(Status::InvalidArgument("{}{} is missing", section.prefix, name));
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  static bool to_integer(const dom::element& value, int64_t* out) {
    if (value.get_int64().get(*out) == simdjson::SUCCESS) return true;
    double x = 0;
    if (!value.is_double() || value.get_double().get(x) != simdjson::SUCCESS) return false;
    if (!(std::fabs(x) < 0x1p53) || x != std::trunc(x)) return false;
    *out = static_cast<int64_t>(x);
    return true;
  }
  void wrong_type(const Section& section, std::string_view name, const dom::element& value, std::string_view what) {
    fail(Status::InvalidArgument("{}{} is {}, not {}", section.prefix, name, short_json(value), what));
  }

  Status status_;
};

void read_int_fields(Reader& r, const Section& section, std::span<const IntField> fields, bool flat_names_only, ModelConfig* c) {
  for (const IntField& f : fields) {
    const bool there =
        flat_names_only ? r.integer(section, f.alias, "", &(c->*f.member)) : r.integer(section, f.name, f.alias, &(c->*f.member));
    if (there || !needed(f.need, *c)) continue;
    const bool flat = section.prefix.empty() && f.alias[0] != '\0';
    r.missing(section, flat ? f.alias : f.name);
  }
}

/// We compute what the released quantisation says and nothing else: refuse anything that would be read wrongly.
void read_quantization(Reader& r, const Section& root, bool nested) {
  const auto quant = r.object(root, "quantization_config");
  if (!quant) {
    if (nested) r.missing(root, "quantization_config");
    r.expect(root, "dtype", "", "fp8", !nested);
    r.expect(root, "expert_dtype", "", "fp4", !nested);
    r.expect(root, "scale_fmt", "", "ue8m0", false);
    return;
  }
  r.expect(*quant, "quant_method", "", "fp8", true);
  r.expect(*quant, "activation_scheme", "", "dynamic", false);
  r.expect(*quant, "scale_fmt", "", "ue8m0", true);
  r.expect(*quant, "expert_dtype", "", "fp4", true);
  std::vector<int64_t> block;
  if (!r.integers(*quant, "weight_block_size", "", &block)) r.missing(*quant, "weight_block_size");
  if (block != std::vector<int64_t>{32, 32}) {
    r.fail(Status::InvalidArgument("quantization_config.weight_block_size is [{}], only [32, 32] is supported",
                                   fmt::join(block, ", ")));
  }
}

void read_rope(Reader& r, const Section& text, bool nested, ModelConfig* c) {
  if (!r.number(text, "rope_theta", "", &c->rope_theta)) r.missing(text, "rope_theta");
  if (!r.number(text, "compress_rope_theta", "", &c->compress_rope_theta)) {
    if (needed(internal::Need::kCompressed, *c)) r.missing(text, "compress_rope_theta");
  }
  if (const auto yarn = r.object(text, "rope_scaling")) {
    r.expect(*yarn, "rope_type", "type", "yarn", true);
    if (!r.number(*yarn, "factor", "", &c->rope_factor)) r.missing(*yarn, "factor");
    r.number(*yarn, "beta_fast", "", &c->beta_fast);
    r.number(*yarn, "beta_slow", "", &c->beta_slow);
    if (!r.integer(*yarn, "original_max_position_embeddings", "", &c->original_max_position_embeddings)) {
      r.missing(*yarn, "original_max_position_embeddings");
    }
  } else if (!nested) {
    r.number(text, "rope_factor", "", &c->rope_factor);
    r.number(text, "beta_fast", "", &c->beta_fast);
    r.number(text, "beta_slow", "", &c->beta_slow);
    r.integer(text, "original_max_position_embeddings", "original_seq_len", &c->original_max_position_embeddings);
  }
  if (r.integer(text, "max_position_embeddings", "", &c->max_position_embeddings)) return;
  // The inference config has only a run-time `max_seq_len`; the length that YaRN stretches to is the model's own limit.
  const double stretched = static_cast<double>(c->original_max_position_embeddings) * static_cast<double>(c->rope_factor);
  if (!nested && stretched >= 1 && stretched <= 0x1p40) {
    c->max_position_embeddings = static_cast<int64_t>(stretched);
  } else if (nested || !r.integer(text, "max_seq_len", "", &c->max_position_embeddings)) {
    r.missing(text, "max_position_embeddings");
  }
}

void read_text(Reader& r, const Section& text, bool nested, ModelConfig* c) {
  // What decides which other fields are needed comes first.
  struct ListField {
    const char* name;
    const char* alias;
    std::vector<int64_t> ModelConfig::*member;
  };
  for (const ListField& f : {ListField{"compress_ratios", "", &ModelConfig::compress_ratios},
                             ListField{"kv_source_layer_ids", "kv_source_layers", &ModelConfig::kv_source_layer_ids},
                             ListField{"index_source_layer_ids", "index_source_layers", &ModelConfig::index_source_layer_ids},
                             ListField{"engram_layer_ids", "", &ModelConfig::engram_layer_ids}}) {
    if (!r.integers(text, f.name, f.alias, &(c->*f.member))) r.missing(text, nested || f.alias[0] == '\0' ? f.name : f.alias);
  }
  r.integer(text, "candidate_source_layer_id", "candidate_source_layer", &c->candidate_source_layer_id);
  if (!r.integer(text, "num_nextn_predict_layers", "n_mtp_layers", &c->num_nextn_predict_layers)) {
    r.missing(text, "num_nextn_predict_layers");
  }
  read_int_fields(r, text, internal::text_int_fields(), false, c);
  if (!r.integers(text, "engram_num_embeddings", "", &c->engram_num_embeddings) && needed(internal::Need::kEngram, *c)) {
    r.missing(text, "engram_num_embeddings");
  }
  if (!r.integers(text, "dspark_target_layer_ids", "", &c->dspark_target_layer_ids) && needed(internal::Need::kDraft, *c)) {
    r.missing(text, "dspark_target_layer_ids");
  }
  read_rope(r, text, nested, c);

  if (!r.number(text, "swiglu_limit", "", &c->swiglu_limit)) r.missing(text, "swiglu_limit");
  if (!r.number(text, "rms_norm_eps", "norm_eps", &c->rms_norm_eps)) r.missing(text, "rms_norm_eps");
  if (!r.number(text, "hc_eps", "", &c->hc_eps)) r.missing(text, "hc_eps");
  if (!r.number(text, "routed_scaling_factor", "route_scale", &c->routed_scaling_factor))
    r.missing(text, "routed_scaling_factor");
  r.number(text, "gate_temp", "", &c->gate_temp);
  r.boolean(text, "norm_topk_prob", &c->norm_topk_prob);

  r.expect(text, "scoring_func", "score_func", "sqrtsoftplus", true);
  r.expect(text, "topk_method", "", "noaux_tc", false);
  r.expect(text, "hidden_act", "", "silu", false);
  int64_t kv_heads = 1;
  r.integer(text, "num_key_value_heads", "", &kv_heads);
  if (kv_heads != 1) r.fail(Status::InvalidArgument("{}num_key_value_heads is {}, only 1 is supported", text.prefix, kv_heads));
  for (const char* name : {"attention_bias", "tie_word_embeddings"}) {
    bool on = false;
    r.boolean(text, name, &on);
    if (on) r.fail(Status::InvalidArgument("{}{} is true, only false is supported", text.prefix, name));
  }
}

void read_vision(Reader& r, const Section& root, bool nested, ModelConfig* c) {
  Section section = root;
  bool flat = !nested;
  if (const auto vision = r.object(root, "vision_config")) {
    section = *vision;
    flat = false;
  } else if (nested) {
    return;
  }
  int64_t layers = 0;
  r.integer(section, flat ? "vision_n_layers" : "num_hidden_layers", flat ? "" : "vision_n_layers", &layers);
  if (layers == 0) return;  // 0 turns vision off (vision.md §2)
  c->has_vision = true;
  read_int_fields(r, section, internal::vision_int_fields(), flat, c);
  if (!r.number(section, flat ? "vision_rope_theta" : "rope_theta", flat ? "" : "vision_rope_theta", &c->vision_rope_theta)) {
    r.missing(section, flat ? "vision_rope_theta" : "rope_theta");
  }
  r.number(section, flat ? "vision_max_wh_ratio" : "max_wh_ratio", flat ? "" : "vision_max_wh_ratio", &c->vision_max_wh_ratio);
}

void read_root(Reader& r, const Section& root, ModelConfig* c) {
  const auto text = r.object(root, "text_config");
  const bool nested = text.has_value();
  // Equal, not a prefix: deepseek_v4 is another architecture (trap 9.22). The flat inference config has no model_type.
  r.expect(root, "model_type", "", "deepseek_v41", nested);
  if (nested) r.expect(*text, "model_type", "", "deepseek_v41_text", false);
  read_quantization(r, root, nested);
  read_text(r, nested ? *text : root, nested, c);
  r.integer(root, "bos_token_id", "", &c->bos_token_id);
  r.integer(root, "eos_token_id", "", &c->eos_token_id);
  r.integer(root, "pad_token_id", "", &c->pad_token_id);
  r.integer(root, "image_token_id", "", &c->image_token_id);
  read_vision(r, root, nested, c);
}

/// Fills in what the file may leave out.
void normalize(ModelConfig* c) {
  if (c->dspark_n_routed_experts == 0) c->dspark_n_routed_experts = c->n_routed_experts;
  if (c->dspark_num_experts_per_tok == 0) c->dspark_num_experts_per_tok = c->num_experts_per_tok;
  const auto given = static_cast<int64_t>(c->compress_ratios.size());
  if (given == c->num_hidden_layers && c->num_nextn_predict_layers > 0 && c->num_nextn_predict_layers <= 64) {
    c->compress_ratios.resize(static_cast<size_t>(given + c->num_nextn_predict_layers), 0);
  }
}

}  // namespace

Result<ModelConfig> ModelConfig::Parse(std::string_view json, std::string_view source) {
  const std::string where = internal::printable_path(source);
  if (static_cast<int64_t>(json.size()) > internal::kMaxConfigBytes) {
    return Err(Status::OutOfRange("{}: {} bytes, the limit is {}", where, json.size(), internal::kMaxConfigBytes));
  }
  dom::parser parser;
  if (parser.allocate(json.size() + 1, kMaxDepth) != simdjson::SUCCESS) {
    return Err(Status::ResourceExhausted("{}: no memory to parse {} bytes", where, json.size()));
  }
  dom::element document;
  const simdjson::padded_string padded(json);
  if (const auto error = parser.parse(padded).get(document)) {
    return Err(
        Status::InvalidArgument("{}: not valid JSON (nesting limit {}): {}", where, kMaxDepth, simdjson::error_message(error)));
  }
  Section root;
  if (document.get_object().get(root.object) != simdjson::SUCCESS) {
    return Err(Status::InvalidArgument("{}: the file holds {}, not an object", where, short_json(document)));
  }
  Reader reader;
  ModelConfig config;
  read_root(reader, root, &config);
  if (!reader.status().ok()) return Err(reader.status().with_context(where));
  normalize(&config);
  if (Status status = config.validate(); !status.ok()) return Err(status.with_context(where));
  return config;
}

Result<ModelConfig> ModelConfig::Load(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, internal::kMaxConfigBytes));
  return Parse(text, path);
}

}  // namespace deepinfer
