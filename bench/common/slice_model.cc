#include "common/slice_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/random_checkpoint.h"

namespace deepinfer::bench {
namespace {

namespace fs = std::filesystem;

std::string slice_config(int64_t experts, int64_t draft_stages) {
  std::ifstream file(std::string(DEEPINFER_SOURCE_DIR) + "/tests/data/released_config.json");
  auto json = nlohmann::ordered_json::parse(file);
  auto& t = json["text_config"];
  json.erase("vision_config");
  json["image_token_id"] = 4095;
  t["num_hidden_layers"] = 5;
  t["compress_ratios"] = {0, 2, 1, 1, 1};
  t["kv_source_layer_ids"] = {1, 2};
  t["index_source_layer_ids"] = {1, 2, 3};
  t["candidate_source_layer_id"] = 2;
  t["engram_layer_ids"] = {0};
  t["engram_vocab_size"] = 100000;
  t["vocab_size"] = 4096;
  t["engram_compressed_vocab_size"] = 4096;
  t["num_nextn_predict_layers"] = draft_stages;
  t["dspark_noise_token_id"] = 0;
  t["dspark_target_layer_ids"] = nlohmann::ordered_json::array();
  if (draft_stages > 0) t["dspark_target_layer_ids"] = {2, 3, 4};
  for (int64_t s = 0; s < draft_stages; ++s) t["compress_ratios"].push_back(0);
  if (draft_stages > 0) t["dspark_n_routed_experts"] = std::min<int64_t>(experts, 128);
  t["n_routed_experts"] = experts;
  // The table has the sum of the first primes from engram_vocab_size on as rows (spec/backbone §5.2).
  ModelConfig primes;
  primes.engram_layer_ids = {0};
  primes.engram_vocab_size = 100000;
  primes.engram_max_ngram_size = t["engram_max_ngram_size"];
  primes.engram_n_heads = t["engram_n_heads"];
  int64_t rows = 0;
  for (const int64_t prime : internal::engram_bucket_primes(primes)) rows += prime;
  t["engram_num_embeddings"] = {rows};
  return json.dump(2);
}

template <typename T>
T must(Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "slice: %s\n", r.error().message().c_str());
  std::exit(1);
}

}  // namespace

SliceModel make_slice_model(const std::string& directory, int64_t experts, int threads, int64_t draft_stages) {
  const std::string config_text = slice_config(experts, draft_stages);
  const ModelConfig config = must(ModelConfig::Parse(config_text, "slice"));
  const auto existing = read_text_file(directory + "/config.json", 1 << 20);
  if (!existing || *existing != config_text) {
    std::fprintf(stderr, "writing the random checkpoint to %s\n", directory.c_str());
    fs::remove_all(directory);
    if (const Status s = write_random_checkpoint(config, config_text, directory); !s.ok()) {
      std::fprintf(stderr, "slice: %s\n", s.message().c_str());
      std::exit(1);
    }
  }
  SliceModel slice;
  slice.pool = std::make_unique<ThreadPool>(threads);
  slice.backend = make_cpu_backend(slice.pool.get());
  slice.checkpoint = must(Checkpoint::Open(directory));
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<int32_t>(i);
  slice.model = must(Model::Create(slice.checkpoint, map, slice.backend.get()));
  return slice;
}

}  // namespace deepinfer::bench
