#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer {
namespace {

/// Grids have that many places in two of their directions, and rows go along them.
constexpr int64_t kMostStepRows = 65535;

double gib(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30); }

}  // namespace

std::string MemoryPlan::text() const {
  std::string text = fmt::format("{:.2f} of {:.2f} GiB: loaded {:.2f}, sequences {:.2f}, workspace {:.2f}, pages {:.2f}",
                                 gib(usable), gib(total), gib(loaded), gib(sequences), gib(workspace), gib(pages));
  if (pinned > 0) text += fmt::format("; pinned host memory for KV tiers {:.2f}", gib(pinned));
  return text;
}

Result<MemoryPlan> plan_memory(LoadedModel& loaded, EngineOptions& options, int64_t prompt_rows, int64_t draft_rows,
                               std::vector<std::unique_ptr<SequenceState>>& states) {
  MemoryPlan plan;
  DeviceMemory& memory = loaded.backend->memory();
  if (memory.is_host()) return plan;
  const int64_t drafts = options.speculation == SpeculationMode::kOff ? 0 : options.num_speculative_tokens;
  draft_rows = std::min(draft_rows, drafts * options.max_num_seqs);
  if (options.max_num_batched_tokens + draft_rows > kMostStepRows) {
    return Err(
        Status::OutOfRange("max_num_batched_tokens is {}, a GPU takes at most {} rows a step, of which up to {} are drafts",
                           options.max_num_batched_tokens, kMostStepRows, draft_rows));
  }
  plan.total = memory.total_bytes();
  plan.usable = plan.total == INT64_MAX ? memory.free_bytes()
                                        : static_cast<int64_t>(static_cast<double>(plan.total) * options.gpu_memory_utilization);
  const auto used = [&] { return plan.total == INT64_MAX ? int64_t{0} : plan.total - memory.free_bytes(); };
  const auto fits = [&](const char* what, int64_t taken, int64_t more) -> Status {
    if (taken + more <= plan.usable) return Status::Ok();
    return Status::ResourceExhausted(
        "GPU memory: {} bytes are in use, {} take {} more, gpu_memory_utilization {} of {} bytes allows {}: {} bytes are missing",
        taken, what, more, options.gpu_memory_utilization, plan.total, plan.usable, taken + more - plan.usable);
  };
  plan.loaded = used();
  DI_RETURN_IF_ERROR(fits("no sequences at all", plan.loaded, 0));

  states.clear();
  states.push_back(loaded.model->new_borrowing_sequence());
  plan.sequences = states.front()->resident_bytes() * options.max_num_seqs;
  DI_RETURN_IF_ERROR(fits(fmt::format("{} sequences (max_num_seqs)", options.max_num_seqs).c_str(), plan.loaded, plan.sequences));
  while (static_cast<int64_t>(states.size()) < options.max_num_seqs) states.push_back(loaded.model->new_borrowing_sequence());

  const int64_t before = used();
  loaded.model->reserve(states, options.max_num_batched_tokens + draft_rows, options.max_model_len,
                        options.max_num_seqs + draft_rows + prompt_rows, drafts);
  const int64_t after = used();
  plan.workspace = after - before;
  plan.sequences = std::max(plan.sequences, before - plan.loaded);
  const char* const workspace = "steps of max_num_batched_tokens rows";
  DI_RETURN_IF_ERROR(fits(workspace, before, plan.workspace));

  const int64_t left = plan.usable - after;
  if (options.kv_cache_memory == 0) options.kv_cache_memory = std::max<int64_t>(left, 0);
  DI_RETURN_IF_ERROR(fits("pages (kv_cache_memory)", after, options.kv_cache_memory));
  plan.pages = options.kv_cache_memory;
  return plan;
}

}  // namespace deepinfer
