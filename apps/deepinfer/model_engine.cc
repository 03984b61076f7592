#include "model_engine.h"

#include "base/status.h"
#include "progress.h"

namespace deepinfer::cli {

Result<EngineOptions> exact_options() {
  EngineOptions options;
  DI_RETURN_IF_ERROR(options.apply_environment());
  options.replay = ReplayMode::kExact;
  return options;
}

Result<std::unique_ptr<Engine>> create_engine(EngineOptions options) {
  ProgressLine progress;
  options.load_progress = [&progress](int64_t done, int64_t total) {
    progress.update("loading", static_cast<double>(done), static_cast<double>(total));
  };
  auto engine = Engine::Create(options);
  progress.clear();
  return engine;
}

}  // namespace deepinfer::cli
