#pragma once

#include <optional>
#include <string>

#include "cache/tiers/open_kv_tiers.h"
#include "deepinfer/options.h"
#include "engine/loaded_model.h"
#include "engine/prefill_cost.h"
#include "ops/page_copies.h"

namespace deepinfer {

/// The tiers of an engine, with what the names of their pages depend on.
struct EngineTiers {
  OpenedKvTiers opened;
  std::string fingerprint;       ///< of model and numerics: pages of another one are never hit
  PrefillCost prefill;           ///< measured; unknown: pages are fetched whatever computing takes
  PageCopies* copies = nullptr;  ///< of a device's pages, which want a fence behind each step
  int64_t pinned_bytes = 0;      ///< of host memory, which those pages pass
};

/// Opens what `options` ask for; nothing if they ask for no tier. Reads some or all of the weights if pages are to outlive the
/// process: they are named after them. `options` have their defaults filled in. `prefill`: as `measure_prefill` has it.
Result<std::optional<EngineTiers>> open_tiers(const EngineOptions& options, const LoadedModel& model, const PrefillCost& prefill);

/// Runs short prompts a few times, so that the first hit can be weighed against computing; unknown if nothing will be weighed.
/// Before the pages take what memory a device has left.
Result<PrefillCost> measure_prefill(const EngineOptions& options, const LoadedModel& model);

}  // namespace deepinfer
