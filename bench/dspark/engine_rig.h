#pragma once

// An engine core that a benchmark drives itself, so that it sees every draft and can put others in their place.

#include <memory>
#include <vector>

#include "engine/engine_core.h"
#include "engine/loaded_model.h"
#include "engine/model_executor.h"

namespace deepinfer::bench {

struct RigOptions {
  DraftPolicy::Options drafts;
  int64_t max_num_seqs = 1;
  int64_t pages = 1024;
  int64_t eos_token_id = 1;
  bool async = true;
  ModelExecutor::ReplaceDrafts replace_drafts;
  std::function<void(const ModelExecutor::DraftTrace&)> trace_drafts;
};

/// Only one rig of a model may be running at a time.
class EngineRig {
 public:
  EngineRig(Model* model, ThreadPool* pool, const RigOptions& options);
  ~EngineRig();

  struct Round {
    double seconds = 0;
    double cpu_seconds = 0;  ///< of the process
    int64_t tokens = 0;
    EngineStats before, after;
    std::vector<std::vector<int32_t>> answers;  ///< in the order of the requests
    std::vector<SequenceId> sequences;          ///< of the requests
  };
  /// Runs the requests, all submitted at once, until the last has ended.
  Round run(const std::vector<Request>& requests);

 private:
  Model* model_;
  RigOptions options_;
  std::unique_ptr<KvCache> cache_;
  WindowSnapshotPool<CachedWindow> windows_;
  ModelExecutor device_;
  std::unique_ptr<EngineCore> core_;
  RequestId next_ = 1;
};

}  // namespace deepinfer::bench
