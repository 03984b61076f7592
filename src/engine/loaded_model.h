#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "deepinfer/engine.h"
#include "model/model.h"
#include "ops/cuda/cuda_features.h"
#include "ops/ops.h"
#include "telemetry/trace_recorder.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer {

/// Everything that runs a checkpoint. Members are destroyed in the reverse order, which is what they need.
struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<const Checkpoint> checkpoint;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  LoadTimes times;

  const ModelConfig& config() const { return model->config(); }
};

/// A backend by name: "cpu", "reference", "cuda", or "auto": a GPU if there is one, else the CPU. `features`: of "cuda".
Result<std::unique_ptr<Backend>> make_backend(const std::string& name, ThreadPool* pool, const CudaFeatures& features = {});

/// Maps and checks the checkpoint in folder `directory`. `backend`: "cpu", "reference", "cuda", or "auto": a GPU if there is one,
/// else the CPU. `threads` 0: as many as the process may use. `progress` gets bytes done and bytes in all, and may be empty.
/// A `trace` that wants operators gets them; it outlives the model. `progress` takes the place of that in `options`. `features`:
/// of "cuda".
Result<LoadedModel> load_model(const std::string& directory, const std::string& backend, int threads,
                               const std::function<void(int64_t done, int64_t total)>& progress = {},
                               telemetry::TraceRecorder* trace = nullptr, Model::Options options = {},
                               const CudaFeatures& features = {});

}  // namespace deepinfer
