#include "model_options.h"

#include "progress.h"

namespace deepinfer::cli {

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
  ProgressLine progress;
  auto loaded = deepinfer::load_model(options.model, options.backend, options.threads, [&](int64_t done, int64_t total) {
    progress.update("loading", static_cast<double>(done), static_cast<double>(total));
  });
  progress.clear();
  return loaded;
}

}  // namespace deepinfer::cli
