#include "engine/loaded_model.h"

#include <chrono>
#include <future>

#include "ops/cpu/kernels.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/traced_backend.h"

namespace deepinfer {
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

Result<std::unique_ptr<Backend>> make_backend(const std::string& name, ThreadPool* pool, const CudaFeatures& features) {
  if (name == "reference") return make_reference_backend(pool);
  if (name == "cuda" || name == "auto") {
    const auto devices = cuda_devices();
    if (devices) return make_cuda_backend(devices->front().index, features);
    if (name == "cuda") return Err(devices.error());
  }
  if (const auto kernels = cpu::wanted_kernels(); !kernels) return Err(kernels.error());
  return make_cpu_backend(pool);
}

Result<LoadedModel> load_model(const std::string& directory, const std::string& backend, int threads,
                               const std::function<void(int64_t done, int64_t total)>& progress, telemetry::TraceRecorder* trace,
                               Model::Options options, const CudaFeatures& features) {
  const auto start = Clock::now();
  // The tokenizer needs nothing of the weights, so both are read at once.
  auto tokenizer = std::async(std::launch::async, [&] { return load_tokenizer(directory + "/tokenizer.json"); });

  LoadedModel out;
  Checkpoint::Options checkpoint_options;
  if (progress) checkpoint_options.progress = progress;
  DI_ASSIGN_OR_RETURN(out.checkpoint, Checkpoint::Open(directory, checkpoint_options));
  out.times.checkpoint = seconds_since(start);

  DI_ASSIGN_OR_RETURN(TokenizerWithMap read, tokenizer.get());
  out.tokenizer = std::move(read.tokenizer);
  out.times.tokenizer = read.seconds;

  const auto model_start = Clock::now();
  out.pool = std::make_unique<ThreadPool>(threads > 0 ? threads : available_threads());
  DI_ASSIGN_OR_RETURN(out.backend, make_backend(backend, out.pool.get(), features));
  if (trace != nullptr && trace->ops()) out.backend = make_traced_backend(std::move(out.backend), trace);
  if (progress) options.progress = progress;
  DI_ASSIGN_OR_RETURN(out.model, Model::Create(out.checkpoint, std::move(read.map.map), out.backend.get(), options));
  out.times.model = seconds_since(model_start);
  out.times.total = seconds_since(start);
  return out;
}

}  // namespace deepinfer
