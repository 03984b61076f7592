#include "loaded_model.h"

#include <chrono>
#include <future>

#include "progress.h"

namespace deepinfer::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct TokenizerWithMap {
  std::shared_ptr<const Tokenizer> tokenizer;
  EngramTokenMap map;
  double seconds = 0;
};

Result<TokenizerWithMap> load_tokenizer(const std::string& path) {
  const auto start = Clock::now();
  TokenizerWithMap out;
  DI_ASSIGN_OR_RETURN(out.tokenizer, Tokenizer::Load(path));
  out.map = make_engram_token_map(*out.tokenizer);
  out.seconds = seconds_since(start);
  return out;
}

}  // namespace

void ModelOptions::add_to(CLI::App& command) {
  command.add_option("-m,--model", model, "Checkpoint folder: config.json, tokenizer.json, safetensors")
      ->required()
      ->type_name("DIR")
      ->group("Model");
  command.add_option("--backend", backend, "cpu, or reference: plain loops, slow")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->type_name("NAME")
      ->group("Model");
  command.add_option("-t,--threads", threads, "Threads (default: all that the process may use)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->group("Model");
}

Result<LoadedModel> load_model(const ModelOptions& options) {
  const auto start = Clock::now();
  // The tokenizer needs nothing of the weights, so both are read at once.
  auto tokenizer = std::async(std::launch::async, [&] { return load_tokenizer(options.model + "/tokenizer.json"); });

  LoadedModel out;
  ProgressLine progress;
  Checkpoint::Options checkpoint_options;
  checkpoint_options.progress = [&](int64_t done, int64_t total) {
    progress.update("loading", static_cast<double>(done), static_cast<double>(total));
  };
  DI_ASSIGN_OR_RETURN(out.checkpoint, Checkpoint::Open(options.model, checkpoint_options));
  out.times.checkpoint = seconds_since(start);
  progress.clear();

  DI_ASSIGN_OR_RETURN(TokenizerWithMap read, tokenizer.get());
  out.tokenizer = std::move(read.tokenizer);
  out.times.tokenizer = read.seconds;

  const auto model_start = Clock::now();
  out.pool = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : available_threads());
  out.backend = options.backend == "reference" ? make_reference_backend(out.pool.get()) : make_cpu_backend(out.pool.get());
  DI_ASSIGN_OR_RETURN(out.model, Model::Create(out.checkpoint, std::move(read.map.map), out.backend.get()));
  out.times.model = seconds_since(model_start);
  out.times.total = seconds_since(start);
  return out;
}

}  // namespace deepinfer::cli
