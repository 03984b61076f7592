#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/inspect.h"
#include "checkpoint/model_config.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using Json = nlohmann::json;

std::string data(const std::string& name) { return testing::source_dir() + "/tests/data/" + name; }

Json released_json() {
  std::ifstream file(data("released_config.json"));
  return Json::parse(file);
}

ModelConfig load(const std::string& path) {
  auto config = ModelConfig::Load(path);
  EXPECT_TRUE(config.has_value()) << config.error().message();
  return config ? *config : ModelConfig{};
}

std::string error_of(const std::string& text) {
  const auto config = ModelConfig::Parse(text, "config.json");
  return config ? "no error" : config.error().message();
}

TEST(ModelConfig, BytesPerToken) {
  const ModelConfig c = load(data("released_config.json"));
  EXPECT_EQ(c.kv_bytes_per_token(), 890.0);  // spec/backbone §7.1
  EXPECT_EQ(c.main_row_bytes(), 288);
  EXPECT_EQ(c.index_row_bytes(), 68);
  EXPECT_EQ(c.window_row_bytes() * c.sliding_window, 67584);  // §7.2
  EXPECT_EQ(c.engram_columns(), 24);
}

TEST(ModelConfig, NestedAndFlatAgree) {
  const ModelConfig a = load(data("released_config.json")), b = load(data("released_config_flat.json"));
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.num_hidden_layers, b.num_hidden_layers);
  EXPECT_EQ(a.moe_intermediate_size, b.moe_intermediate_size);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.routed_scaling_factor, b.routed_scaling_factor);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(a.original_max_position_embeddings, b.original_max_position_embeddings);
  EXPECT_EQ(a.rope_factor, b.rope_factor);
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_EQ(a.compress_rope_theta, b.compress_rope_theta);
  EXPECT_EQ(a.compress_ratios, b.compress_ratios);
  EXPECT_EQ(a.kv_source_layer_ids, b.kv_source_layer_ids);
  EXPECT_EQ(a.index_source_layer_ids, b.index_source_layer_ids);
  EXPECT_EQ(a.candidate_source_layer_id, b.candidate_source_layer_id);
  EXPECT_EQ(a.num_nextn_predict_layers, b.num_nextn_predict_layers);
  EXPECT_EQ(a.dspark_num_experts_per_tok, b.dspark_num_experts_per_tok);
  EXPECT_EQ(a.engram_pad_token_id, b.engram_pad_token_id);
  EXPECT_EQ(a.image_token_id, b.image_token_id);
  EXPECT_EQ(a.vision_hidden_size, b.vision_hidden_size);
  EXPECT_EQ(a.vision_max_image_tokens, b.vision_max_image_tokens);
  EXPECT_EQ(a.vision_min_pixels, b.vision_min_pixels);
  EXPECT_EQ(b.rms_norm_eps, 1e-20f);
  EXPECT_EQ(b.max_position_embeddings, 1048576);
}

TEST(ModelConfig, ReleasedLayerModes) {
  // The table of spec/backbone §3.6.
  const ModelConfig c = load(data("released_config.json"));
  for (int64_t l = 0; l < 43; ++l) {
    SCOPED_TRACE(l);
    const bool none = l < 2 || l >= 40;
    EXPECT_EQ(c.compress_ratio(l), none ? 0 : l < 20 ? 2 : 1);
    EXPECT_EQ(c.kv_source_of(l), none ? -1 : l < 8 ? 2 : l < 14 ? 8 : l < 20 ? 14 : 20);
    EXPECT_EQ(c.index_source_of(l), none ? -1 : l < 20 ? c.kv_source_of(l) : l < 24 ? 20 : l / 4 * 4);
    const bool full = l == 2 || l == 8 || l == 14 || l == 20;
    const bool reindex = l == 24 || l == 28 || l == 32 || l == 36;
    EXPECT_EQ(layer_mode(c, l), none      ? LayerMode::kWindow
                                : full    ? LayerMode::kFull
                                : reindex ? LayerMode::kReindex
                                          : LayerMode::kReuse);
    EXPECT_EQ(c.engram_slot(l), l == 1 ? 0 : l == 14 ? 1 : -1);
  }
}

TEST(ModelConfig, EveryErrorNamesItsField) {
  std::ifstream table(data("config_errors.tsv"));
  std::string line;
  int cases = 0;
  while (std::getline(table, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string pointer, value, words;
    ASSERT_TRUE(std::getline(fields, pointer, '\t') && std::getline(fields, value, '\t') && std::getline(fields, words)) << line;
    Json json = released_json();
    const Json::json_pointer at(pointer);
    if (value == "-") {
      json[at.parent_pointer()].erase(at.back());
    } else {
      json[at] = Json::parse(value);
    }
    const std::string error = error_of(json.dump());
    EXPECT_NE(error.find(words), std::string::npos) << line << "\n  gives: " << error;
    EXPECT_TRUE(error.starts_with("config.json: ")) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    ++cases;
  }
  EXPECT_GT(cases, 120);
}

TEST(ModelConfig, FlatErrors) {
  struct Case {
    const char* field;
    const char* value;
    const char* words;
  };
  for (const Case& c : {Case{"dim", "-", "dim is missing"}, Case{"kv_source_layers", "-", "kv_source_layers is missing"},
                        Case{"dtype", "\"bf16\"", "dtype is \"bf16\""}, Case{"dtype", "-", "dtype is missing"},
                        Case{"expert_dtype", "-", "expert_dtype is missing"}, Case{"model_type", "\"deepseek_v4\"", "model_type"},
                        Case{"vision_dim", "-", "vision_dim is missing"}, Case{"window_size", "0", "sliding_window is 0"},
                        Case{"score_func", "\"sigmoid\"", "scoring_func is \"sigmoid\""}}) {
    std::ifstream file(data("released_config_flat.json"));
    Json json = Json::parse(file);
    if (std::string(c.value) == "-") {
      json.erase(c.field);
    } else {
      json[c.field] = Json::parse(c.value);
    }
    const std::string error = error_of(json.dump());
    EXPECT_NE(error.find(c.words), std::string::npos) << c.field << ": " << error;
  }
}

TEST(ModelConfig, ToleratedForms) {
  Json json = released_json();
  json["text_config"]["compress_ratios"].erase(json["text_config"]["compress_ratios"].end() - 3,
                                               json["text_config"]["compress_ratios"].end());
  auto config = ModelConfig::Parse(json.dump(), "x");
  ASSERT_TRUE(config.has_value()) << config.error().message();
  EXPECT_EQ(config->compress_ratios.size(), 43u);

  json = released_json();
  json.erase("vision_config");
  config = ModelConfig::Parse(json.dump(), "x");
  ASSERT_TRUE(config.has_value()) << config.error().message();
  EXPECT_FALSE(config->has_vision);

  json = released_json();
  json["text_config"]["kv_source_layers"] = json["text_config"]["kv_source_layer_ids"];
  json["text_config"].erase("kv_source_layer_ids");
  json["text_config"]["hidden_size"] = 5120.0;
  config = ModelConfig::Parse(json.dump(), "x");
  ASSERT_TRUE(config.has_value()) << config.error().message();

  json = released_json();
  json["text_config"].erase("candidate_source_layer_id");
  json["text_config"].erase("candidate_topk_blocks");
  config = ModelConfig::Parse(json.dump(), "x");
  ASSERT_TRUE(config.has_value()) << config.error().message();
  EXPECT_EQ(config->candidate_source_layer_id, -1);

  // Duplicate keys: the last one counts.
  std::string text = released_json().dump();
  text.insert(1, "\"bos_token_id\":-7,");
  config = ModelConfig::Parse(text, "x");
  ASSERT_TRUE(config.has_value()) << config.error().message();
  EXPECT_EQ(config->bos_token_id, 0);
}

TEST(ModelConfig, NotJson) {
  for (const std::string text :
       {"", "{", "[]", "3", "null", "\"x\"", "{}", "nan", "{\"a\":}", "{\"model_type\":\"deepseek_v41\"}", "\xff\xfe"}) {
    EXPECT_NE(error_of(text), "no error") << text;
  }
  EXPECT_NE(error_of(std::string(100000, '[')).find("nesting limit"), std::string::npos);
  EXPECT_NE(error_of("{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}").find("nesting limit"), std::string::npos);
  EXPECT_NE(error_of(std::string((4 << 20) + 1, ' ')).find("limit"), std::string::npos);
  // A truncated file is an error at every length.
  const std::string whole = released_json().dump();
  for (size_t n = 0; n < whole.size(); n += 7) EXPECT_NE(error_of(whole.substr(0, n)), "no error");
}

}  // namespace
}  // namespace deepinfer
