#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "deepinfer/options.h"
#include "engine/loaded_model.h"

namespace deepinfer {

/// What a device's memory is used for, bytes. Everything is taken at the start; nothing is asked for later.
struct MemoryPlan {
  int64_t total = 0;      ///< the device has
  int64_t usable = 0;     ///< the part that EngineOptions::gpu_memory_utilization allows
  int64_t loaded = 0;     ///< weights, and what the backend and others already use
  int64_t sequences = 0;  ///< windows and tails of max_num_seqs
  int64_t workspace = 0;  ///< of the largest step
  int64_t pages = 0;      ///< what is left: global KV
  int64_t pinned = 0;     ///< of the host's memory, which pages pass on their way to tiers and back

  std::string text() const;
};

/// The states of max_num_seqs sequences and room for the largest steps, on the device of `loaded`; sets kv_cache_memory of
/// `options`, which has its defaults filled in, to what is left if it is 0. An error says what does not fit and by how much. On
/// host memory there is nothing to plan: no states, and nothing changes.
/// `prompt_rows`: rows of a prompt with logits, `draft_rows`: drafts of a step, at most.
Result<MemoryPlan> plan_memory(LoadedModel& loaded, EngineOptions& options, int64_t prompt_rows, int64_t draft_rows,
                               std::vector<std::unique_ptr<SequenceState>>& states);

}  // namespace deepinfer
