// The nano checkpoint end to end: tokens a second of prefill and decode, load time, memory.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/json_line.h"
#include "common/ceilings.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace {

template <typename T>
T must(deepinfer::Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "nano_bench: %s\n", r.error().message().c_str());
  std::exit(1);
}

double resident_mib(const char* field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(field, 0) == 0) return std::stod(line.substr(line.find(':') + 1)) / 1024;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace deepinfer;
  using namespace deepinfer::bench;
  CLI::App app("Prefill and decode of the nano checkpoint");
  int threads = available_threads();
  std::string directory = std::string(DEEPINFER_SOURCE_DIR) + "/models/nano";
  std::string backend_name = "cpu";
  int rounds = 5;
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_option("--model", directory);
  app.add_option("--backend", backend_name)->check(CLI::IsMember({"cpu", "reference"}));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);

  const double load_start = now();
  ThreadPool pool(threads);
  const auto backend = backend_name == "cpu" ? make_cpu_backend(&pool) : make_reference_backend(&pool);
  const auto tokenizer = must(Tokenizer::Load(directory + "/tokenizer.json"));
  const auto checkpoint = must(Checkpoint::Open(directory));
  const auto model = must(Model::Create(checkpoint, make_engram_token_map(*tokenizer).map, backend.get()));
  const double load_seconds = now() - load_start;
  const int64_t vocab = model->config().vocab_size;

  std::mt19937_64 rng(1);
  const BenchConditions conditions = {
      {"backend", backend->name()}, {"threads", std::to_string(threads)}, {"rounds", std::to_string(rounds)}};
  print_bench_line(stdout, "nano_load", 1e3 * load_seconds, "ms", std::nullopt, conditions);
  std::vector<double> prefill, decode, batched;
  for (int r = 0; r < rounds; ++r) {
    auto state = model->new_sequence();
    const auto run = [&](int64_t count) {
      std::vector<int32_t> ids(static_cast<size_t>(count));
      for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
      const StepSequence sequence{state.get(), count};
      const auto last = static_cast<int32_t>(count - 1);
      StepBatch batch;
      batch.tokens = ids;
      batch.sequences = {&sequence, 1};
      batch.logit_rows = {&last, 1};
      must(model->forward(batch));
    };
    double start = now();
    for (int i = 0; i < 2; ++i) run(512);
    prefill.push_back(1024 / (now() - start));
    start = now();
    for (int i = 0; i < 200; ++i) run(1);
    decode.push_back(200 / (now() - start));
  }
  for (int r = 0; r < rounds; ++r) {  // 16 sequences decoding together
    std::vector<std::unique_ptr<SequenceState>> states;
    std::vector<StepSequence> sequences;
    std::vector<int32_t> rows;
    for (int32_t s = 0; s < 16; ++s) {
      states.push_back(model->new_sequence());
      sequences.push_back({states.back().get(), 1});
      rows.push_back(s);
    }
    const auto run = [&] {
      std::vector<int32_t> ids(16);
      for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
      StepBatch batch;
      batch.tokens = ids;
      batch.sequences = sequences;
      batch.logit_rows = rows;
      must(model->forward(batch));
    };
    for (int i = 0; i < 64; ++i) run();
    const double start = now();
    for (int i = 0; i < 64; ++i) run();
    batched.push_back(64 * 16 / (now() - start));
  }
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  print_bench_line(stdout, "nano_prefill", median(prefill), "token/s", std::nullopt, conditions);
  print_bench_line(stdout, "nano_decode", median(decode), "token/s", std::nullopt, conditions);
  print_bench_line(stdout, "nano_decode_16", median(batched), "token/s", std::nullopt, conditions);
  print_bench_line(stdout, "nano_resident_peak", resident_mib("VmHWM"), "MiB", std::nullopt, conditions);
  print_bench_line(stdout, "nano_weights", static_cast<double>(checkpoint->total_bytes()) / (1 << 20), "MiB", std::nullopt,
                   conditions);
  return 0;
}
