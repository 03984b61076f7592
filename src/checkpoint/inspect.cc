#include "checkpoint/inspect.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_files.h"

namespace deepinfer {
namespace {

constexpr int64_t kKeepProblems = 300;

bool is_scale(const CatalogueEntry& e) { return e.dtype == DType::kF8E8M0; }

int64_t parameters_of(const CatalogueEntry& e) {
  if (is_scale(e)) return 0;
  const int64_t elements = e.bytes() / dtype_bytes(e.dtype);
  return e.dtype == DType::kI8 ? 2 * elements : elements;  // two FP4 codes a byte
}

void summarize_layers(const ModelConfig& c, Inspection* out) {
  for (int64_t l = 0; l < c.num_hidden_layers + c.num_nextn_predict_layers; ++l) {
    LayerSummary s;
    s.layer = l;
    s.ratio = c.compress_ratio(l);
    s.mode = layer_mode(c, l);
    s.kv_source = c.kv_source_of(l);
    s.index_source = c.index_source_of(l);
    s.engram = c.engram_slot(l) >= 0;
    s.candidate_source = l == c.candidate_source_layer_id;
    s.draft = l >= c.num_hidden_layers;
    out->layers.push_back(s);
  }
}

void summarize_sizes(const std::vector<CatalogueEntry>& catalogue, Inspection* out) {
  for (const CatalogueEntry& e : catalogue) {
    auto at = std::find_if(out->groups.begin(), out->groups.end(), [&](const GroupSummary& g) { return g.group == e.group; });
    if (at == out->groups.end()) at = out->groups.insert(at, GroupSummary{e.group, 0, 0, 0});
    const int64_t parameters = parameters_of(e);
    ++at->tensors;
    at->bytes += e.bytes();
    at->parameters += parameters;
    ++out->tensors;
    out->bytes += e.bytes();
    out->parameters += parameters;
  }
  std::stable_sort(out->groups.begin(), out->groups.end(),
                   [](const GroupSummary& a, const GroupSummary& b) { return a.bytes > b.bytes; });
}

void summarize_state(const ModelConfig& c, Inspection* out) {
  out->kv_bytes_per_token = c.kv_bytes_per_token();
  out->window_bytes = c.num_hidden_layers * c.sliding_window * c.window_row_bytes();
  out->draft_window_bytes = c.num_nextn_predict_layers * c.sliding_window * c.window_row_bytes();
  // An unfinished group holds up to ratio-1 tokens of two fp32 projections (spec §7.2).
  for (const int64_t layer : c.kv_source_layer_ids) out->tail_bytes += (c.compress_ratio(layer) - 1) * 2 * c.head_dim * 4;
}

std::string with_commas(int64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string human_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double x = static_cast<double>(bytes);
  size_t unit = 0;
  while (x >= 1024 && unit + 1 < std::size(units)) {
    x /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", x, units[unit]);
}

std::string source_text(int64_t source, int64_t layer) {
  return source < 0 ? "-" : source == layer ? "itself" : std::to_string(source);
}

void append_architecture(const ModelConfig& c, std::string* out) {
  *out += fmt::format(
      "model         deepseek_v41: {} layers + {} draft stages, hidden {}, vocabulary {}\n"
      "attention     {} heads x {} (rope {}), q rank {}, o rank {} in {} groups, window {}\n"
      "global KV     index {} heads x {}, top {} entries\n"
      "experts       {} routed ({} active) + {} shared, intermediate {}; draft {} ({} active)\n",
      c.num_hidden_layers, c.num_nextn_predict_layers, c.hidden_size, c.vocab_size, c.num_attention_heads, c.head_dim,
      c.qk_rope_head_dim, c.q_lora_rank, c.o_lora_rank, c.o_groups, c.sliding_window, c.index_n_heads, c.index_head_dim,
      c.index_topk, c.n_routed_experts, c.num_experts_per_tok, c.n_shared_experts, c.moe_intermediate_size,
      c.dspark_n_routed_experts, c.dspark_num_experts_per_tok);
  *out += fmt::format("engram        layers [{}], rows [{}] x {}\n", fmt::join(c.engram_layer_ids, ", "),
                      fmt::join(c.engram_num_embeddings, ", "), c.engram_head_dim);
  if (c.has_vision) {
    *out += fmt::format("vision        {} layers, hidden {}, patch {}, at most {} tokens an image\n", c.vision_num_hidden_layers,
                        c.vision_hidden_size, c.vision_patch_size, c.vision_max_image_tokens);
  } else {
    *out += "vision        none\n";
  }
}

void append_layers(const Inspection& in, std::string* out) {
  *out += "\nlayer  ratio  mode     KV from  index from  notes\n";
  for (const LayerSummary& s : in.layers) {
    std::string notes;
    if (s.draft) notes = "draft";
    if (s.engram) notes += notes.empty() ? "engram" : ", engram";
    if (s.candidate_source) notes += notes.empty() ? "candidate source" : ", candidate source";
    std::string line = fmt::format("{:>5}  {:>5}  {:<7}  {:>7}  {:>10}  {}", s.layer, s.ratio, layer_mode_name(s.mode),
                                   source_text(s.kv_source, s.layer), source_text(s.index_source, s.layer), notes);
    line.erase(line.find_last_not_of(' ') + 1);
    *out += line + "\n";
  }
}

void append_sizes(const Inspection& in, std::string* out) {
  *out += "\ngroup               tensors              bytes   share        parameters\n";
  const auto row = [&](std::string_view name, int64_t tensors, int64_t bytes, int64_t parameters) {
    const double share = in.bytes > 0 ? 100.0 * static_cast<double>(bytes) / static_cast<double>(in.bytes) : 0;
    *out += fmt::format("{:<17}  {:>8}  {:>17}  {:>5.1f}%  {:>16}\n", name, with_commas(tensors), with_commas(bytes), share,
                        with_commas(parameters));
  };
  for (const GroupSummary& g : in.groups) row(g.group, g.tensors, g.bytes, g.parameters);
  row("total", in.tensors, in.bytes, in.parameters);
  *out += fmt::format(
      "\nKV cache      {} bytes a token\n"
      "per sequence  window {} bytes (+ {} draft), compressor tails {} bytes, {} token ids of history\n",
      in.kv_bytes_per_token, with_commas(in.window_bytes), with_commas(in.draft_window_bytes), with_commas(in.tail_bytes),
      in.config.engram_layer_ids.empty() ? 0 : in.config.engram_max_ngram_size - 1);
}

void append_findings(const Inspection& in, std::string* out) {
  if (!in.weights_present) {
    *out += fmt::format("\nfiles         absent: {} has neither {} nor {}; this is the plan only\n", in.directory,
                        internal::kIndexFile, internal::kSingleFile);
    return;
  }
  *out += "\nfiles\n";
  for (const FileSummary& f : in.files) {
    *out += fmt::format("  {}  {} ({} tensors)\n", f.name, human_bytes(f.bytes), with_commas(f.tensors));
  }
  const auto list = [&](std::string_view title, const std::vector<std::string>& lines, int64_t count) {
    if (count == 0) return;
    *out += fmt::format("\n{} ({})\n", title, count);
    for (const std::string& line : lines) *out += "  " + line + "\n";
    const int64_t more = count - static_cast<int64_t>(lines.size());
    if (more > 0) *out += fmt::format("  ... and {} more\n", more);
  };
  list("warnings", in.warnings, in.warning_count);
  list("problems", in.problems, in.problem_count);
  if (in.problem_count == 0) *out += fmt::format("\nsound (verified: {})\n", verify_level_name(in.verify));
}

}  // namespace

std::string_view layer_mode_name(LayerMode mode) {
  switch (mode) {
    case LayerMode::kWindow:
      return "SWA";
    case LayerMode::kFull:
      return "Full";
    case LayerMode::kReindex:
      return "Reindex";
    case LayerMode::kReuse:
      return "Reuse";
  }
  return "?";
}

LayerMode layer_mode(const ModelConfig& config, int64_t layer) {
  if (config.compress_ratio(layer) == 0) return LayerMode::kWindow;
  if (config.is_kv_source(layer)) return LayerMode::kFull;
  return config.is_index_source(layer) ? LayerMode::kReindex : LayerMode::kReuse;
}

std::string_view verify_level_name(VerifyLevel level) {
  return level == VerifyLevel::kHeaders ? "headers" : level == VerifyLevel::kScales ? "scales" : "full";
}

Result<VerifyLevel> parse_verify_level(std::string_view name) {
  for (const VerifyLevel level : {VerifyLevel::kHeaders, VerifyLevel::kScales, VerifyLevel::kFull}) {
    if (name == verify_level_name(level)) return level;
  }
  return Err(Status::InvalidArgument("verify is \"{}\", it must be headers, scales or full", name));
}

Result<Inspection> inspect_checkpoint(const std::string& directory, const Checkpoint::Options& options) {
  Inspection out;
  out.directory = directory;
  out.verify = options.verify;
  DI_ASSIGN_OR_RETURN(out.config, ModelConfig::Load(directory + "/config.json"));
  const std::vector<CatalogueEntry> catalogue = make_catalogue(out.config);
  summarize_layers(out.config, &out);
  summarize_sizes(catalogue, &out);
  summarize_state(out.config, &out);
  out.weights_present = internal::has_weights(directory);
  if (!out.weights_present) return out;

  internal::Problems problems(kKeepProblems);
  const internal::CheckpointFiles files = internal::load_files(directory, problems);
  internal::compare_with_catalogue(catalogue, files, problems);
  internal::verify_values(catalogue, files, options.verify, options.progress, problems);
  for (size_t i = 0; i < files.files.size(); ++i) {
    const MappedFile& file = files.files[i];
    out.files.push_back({std::filesystem::path(file.path()).filename().string(), file.size(), files.tensors_per_file[i]});
  }
  for (const Status& status : problems.kept()) out.problems.push_back(status.message());
  out.problem_count = problems.count();
  out.warnings = problems.warnings();
  out.warning_count = problems.warning_count();
  return out;
}

std::string format_inspection(const Inspection& inspection) {
  std::string out = fmt::format("checkpoint    {}\n", inspection.directory);
  append_architecture(inspection.config, &out);
  append_layers(inspection, &out);
  append_sizes(inspection, &out);
  append_findings(inspection, &out);
  return out;
}

std::string inspection_json(const Inspection& in) {
  using Json = nlohmann::ordered_json;
  const ModelConfig& c = in.config;
  Json json;
  json["directory"] = in.directory;
  json["model_type"] = "deepseek_v41";
  json["num_hidden_layers"] = c.num_hidden_layers;
  json["num_nextn_predict_layers"] = c.num_nextn_predict_layers;
  json["hidden_size"] = c.hidden_size;
  json["vocab_size"] = c.vocab_size;
  json["n_routed_experts"] = c.n_routed_experts;
  json["has_vision"] = c.has_vision;
  json["tensors"] = in.tensors;
  json["bytes"] = in.bytes;
  json["parameters"] = in.parameters;
  json["kv_bytes_per_token"] = in.kv_bytes_per_token;
  json["sequence_bytes"] = {
      {"window", in.window_bytes}, {"draft_window", in.draft_window_bytes}, {"compressor_tails", in.tail_bytes}};
  json["layers"] = Json::array();
  for (const LayerSummary& s : in.layers) {
    Json layer = {{"layer", s.layer}, {"ratio", s.ratio}, {"mode", layer_mode_name(s.mode)}};
    layer["kv_source"] = s.kv_source < 0 ? Json(nullptr) : Json(s.kv_source);
    layer["index_source"] = s.index_source < 0 ? Json(nullptr) : Json(s.index_source);
    layer["engram"] = s.engram;
    layer["candidate_source"] = s.candidate_source;
    layer["draft"] = s.draft;
    json["layers"].push_back(std::move(layer));
  }
  json["groups"] = Json::array();
  for (const GroupSummary& g : in.groups) {
    json["groups"].push_back({{"group", g.group}, {"tensors", g.tensors}, {"bytes", g.bytes}, {"parameters", g.parameters}});
  }
  json["weights_present"] = in.weights_present;
  json["files"] = Json::array();
  for (const FileSummary& f : in.files) json["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"tensors", f.tensors}});
  json["verify"] = verify_level_name(in.verify);
  json["sound"] = in.sound();
  json["problem_count"] = in.problem_count;
  json["problems"] = in.problems;
  json["warning_count"] = in.warning_count;
  json["warnings"] = in.warnings;
  // A directory name need not be UTF-8: replace instead of throwing.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace deepinfer
