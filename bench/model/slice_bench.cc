// Decode of one sequence against read bandwidth, prefill against the register-only arithmetic rate, over a slice of layers at
// true V4.1 dimensions (common/slice_model.h).

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/json_line.h"
#include "common/ceilings.h"
#include "common/slice_model.h"

namespace {

template <typename T>
void must(const deepinfer::Result<T>& r) {
  if (r) return;
  std::fprintf(stderr, "slice_bench: %s\n", r.error().message().c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace deepinfer;
  using namespace deepinfer::bench;
  CLI::App app("Decode and prefill of a slice of layers at true V4.1 dimensions");
  int threads = available_threads();
  int64_t experts = 64;
  int rounds = 7;
  int64_t context = 1024;
  int64_t prefill = 512;
  std::string directory = (std::filesystem::temp_directory_path() / "deepinfer-slice").string();
  bool keep = false;
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_option("--experts", experts, "routed experts per layer (released: 384; 0.094 GB each for the five layers)")
      ->check(CLI::Range(6, 384));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--context", context, "tokens before decoding")->check(CLI::Range(1, 1 << 20));
  app.add_option("--prefill", prefill, "tokens of the prefill figure")->check(CLI::Range(1, 4096));
  app.add_option("--dir", directory, "where the random checkpoint is written");
  app.add_flag("--keep", keep, "keep the random checkpoint for the next run");
  CLI11_PARSE(app, argc, argv);

  const SliceModel slice = make_slice_model(directory, experts, threads);
  ThreadPool& pool = *slice.pool;
  Model* const model = slice.model.get();
  const auto& checkpoint = slice.checkpoint;
  const auto& backend = slice.backend;
  const ModelConfig& config = model->config();
  Ceilings ceilings(&pool, backend->name());

  std::mt19937_64 rng(7);
  const auto random_tokens = [&](int64_t n) {
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(config.vocab_size));
    return ids;
  };
  const auto step = [&](SequenceState& state, std::span<const int32_t> ids) {
    const StepSequence sequence{&state, static_cast<int64_t>(ids.size())};
    StepBatch batch;
    batch.tokens = ids;
    batch.sequences = {&sequence, 1};
    must(model->forward(batch));
  };
  BenchConditions conditions = {{"backend", backend->name()},
                                {"threads", std::to_string(threads)},
                                {"layers", kSliceLayers},
                                {"experts", std::to_string(experts) + " of 384"},
                                {"checkpoint_bytes", std::to_string(checkpoint->total_bytes())},
                                {"not_measured", "head, embedding table"},
                                {"rounds", std::to_string(rounds)}};

  // Layer weights without the head: what a decoded token must read.
  const double layer_bytes = static_cast<double>(model->active_weight_bytes() - config.vocab_size * config.hidden_size * 2);
  double layer_macs = 0;  // per prefilled token: every active weight once, attention and indexer apart
  {
    const double d = static_cast<double>(config.hidden_size);
    const double q = static_cast<double>(config.q_lora_rank);
    const double qo = static_cast<double>(config.num_attention_heads * config.head_dim);
    const double lora = static_cast<double>(config.o_groups * config.o_lora_rank);
    const double expert = 3 * d * static_cast<double>(config.moe_intermediate_size);
    layer_macs = d * q + q * qo + d * static_cast<double>(config.head_dim) + qo / static_cast<double>(config.o_groups) * lora +
                 lora * d + expert * static_cast<double>(config.num_experts_per_tok + 1);
  }
  const double keys = static_cast<double>(config.sliding_window + config.index_topk);
  const double attention_macs = 2 * static_cast<double>(config.num_attention_heads * config.head_dim) * keys;

  {  // Prefill of a fresh sequence.
    std::vector<std::pair<double, std::pair<double, double>>> figures;
    for (int r = 0; r < std::max(1, rounds / 2); ++r) {
      auto state = model->new_sequence();
      const std::vector<int32_t> ids = random_tokens(prefill);
      const double ceiling = ceilings.peak_flops();
      const double start = now();
      step(*state, ids);
      const double seconds = now() - start;
      // Attention of a fresh sequence: about half the window and the growing list of compressed rows; counted as what was
      // computed at most, the products alone are the figure.
      const double flops = 2 * layer_macs * 5 * static_cast<double>(prefill);
      figures.push_back({flops / seconds / ceiling, {flops / seconds, ceiling}});
    }
    std::sort(figures.begin(), figures.end());
    const auto& mid = figures[figures.size() / 2].second;
    BenchConditions c = conditions;
    c.push_back({"tokens", std::to_string(prefill)});
    c.push_back(
        {"counted", "matrix products of the five layers; attention, indexer, Engram and hyper-connections are in the time only"});
    c.push_back({"peak", ceilings.peak_kind()});
    print_bench_line(stdout, "slice_prefill", mid.first / 1e9, "GFLOP/s", mid.second / 1e9, c);
    print_bench_line(stdout, "slice_prefill_tokens", mid.first / (2 * layer_macs * 5), "token/s", std::nullopt, c);
  }
  {  // Decode at batch 1.
    auto state = model->new_sequence();
    for (int64_t done = 0; done < context; done += 512) step(*state, random_tokens(std::min<int64_t>(512, context - done)));
    std::vector<std::pair<double, std::pair<double, double>>> figures;
    constexpr int kTokens = 8;
    for (int r = 0; r < rounds; ++r) {
      const double before = ceilings.read_bandwidth();
      const double start = now();
      for (int i = 0; i < kTokens; ++i) step(*state, random_tokens(1));
      const double seconds = (now() - start) / kTokens;
      const double ceiling = 0.5 * (before + ceilings.read_bandwidth());
      figures.push_back({layer_bytes / seconds / ceiling, {layer_bytes / seconds, ceiling}});
    }
    std::sort(figures.begin(), figures.end());
    const auto& mid = figures[figures.size() / 2].second;
    BenchConditions c = conditions;
    c.push_back({"context", std::to_string(context)});
    c.push_back({"weight_bytes_per_token", std::to_string(static_cast<int64_t>(layer_bytes))});
    c.push_back({"attention_macs_per_token_layer", std::to_string(static_cast<int64_t>(attention_macs))});
    print_bench_line(stdout, "slice_decode", mid.first / 1e9, "GB/s", mid.second / 1e9, c);
    print_bench_line(stdout, "slice_decode_step", 1e3 * layer_bytes / mid.first, "ms", std::nullopt, c);
  }
  if (!keep) std::filesystem::remove_all(directory);
  return 0;
}
