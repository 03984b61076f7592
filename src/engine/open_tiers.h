#pragma once

#include <optional>
#include <string>

#include "cache/tiers/open_kv_tiers.h"
#include "deepinfer/options.h"
#include "engine/loaded_model.h"

namespace deepinfer {

/// The tiers of an engine, with what the names of their pages depend on.
struct EngineTiers {
  OpenedKvTiers opened;
  std::string fingerprint;       ///< of model and numerics: pages of another one are never hit
  double row_layer_seconds = 0;  ///< what computing takes, measured; 0: pages are fetched whatever it takes
};

/// Opens what `options` ask for; nothing if they ask for no tier. Reads some or all of the weights if pages are to outlive the
/// process: they are named after them; and runs a short prompt twice, so that the first hit is weighed against computing, too.
/// Unimplemented: the backend's pages lie in a device's memory.
Result<std::optional<EngineTiers>> open_tiers(const EngineOptions& options, const LoadedModel& model);

}  // namespace deepinfer
