#include "engine/open_tiers.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/build_info.h"
#include "cache/tiers/tier_workers.h"
#include "checkpoint/identity.h"
#include "engine/prefill_rate.h"
#include "engine/tier_pull.h"

namespace deepinfer {
namespace {

constexpr int64_t kMeasuredRows = 128;

KvTiersConfig tiers_config(const EngineOptions& options) {
  const KvTierOptions& o = options.kv_tiers;
  KvTiersConfig config;
  config.host_bytes = o.host_bytes;
  config.host_retention.ttl_seconds[static_cast<size_t>(CacheClass::kChat)] = options.cache_ttl_chat;
  config.host_retention.ttl_seconds[static_cast<size_t>(CacheClass::kAgent)] = options.cache_ttl_agent;
  config.local_directory = o.store;
  config.local_bytes = o.store_bytes;
  config.local_retention.ttl_seconds = {o.ttl_chat, o.ttl_agent, o.ttl_pinned};
  config.shared_directory = o.shared;
  config.shared_bytes = o.shared_bytes;
  config.directory_url = o.directory;
  config.shared_retention = config.local_retention;
  config.secret_file = o.secret_file;
  config.io.match_seconds = o.match_limit;
  config.io.pull_seconds = o.pull_limit;
  if (options.time_skipped != nullptr) config.io.clock = [skipped = options.time_skipped] { return wall_seconds() + skipped(); };
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    const bool in_memory = config.host_bytes > 0 && config.host_retention.ttl_seconds[c] > 0;
    config.io.writes_class[c] = in_memory || (o.persistent() && config.local_retention.ttl_seconds[c] > 0);
  }
  return config;
}

/// Whatever the bits of a page's rows depend on besides its tokens. Backends, instruction sets and builds add up in orders of
/// their own (docs/ARCHITECTURE.md, Numerics).
Result<std::string> make_fingerprint(const LoadedModel& model) {
  DI_ASSIGN_OR_RETURN(const std::string identity, checkpoint_identity(*model.checkpoint, *model.pool));
  return fmt::format("checkpoint {} backend {} version {} {}", identity, model.backend->name(), build_version(), build_commit());
}

}  // namespace

Result<std::optional<EngineTiers>> open_tiers(const EngineOptions& options, const LoadedModel& model) {
  if (!options.kv_tiers.any()) return std::optional<EngineTiers>();
  if (!model.backend->memory().is_host()) {
    return Err(Status::Unimplemented(
        "kv_tiers: the pages of backend {} lie in the device's memory, from where no tier takes them", model.backend->name()));
  }
  EngineTiers tiers;
  tiers.fingerprint = options.model;
  // What stays in the process is named under a secret of its own.
  if (options.kv_tiers.persistent()) {
    DI_ASSIGN_OR_RETURN(tiers.fingerprint, make_fingerprint(model));
  }
  DI_ASSIGN_OR_RETURN(tiers.opened,
                      open_kv_tiers(tiers_config(options), page_shape(model.model->page_layout()), tiers.fingerprint));
  if (options.kv_tiers.cut_over) {
    const int64_t rows = std::min({kMeasuredRows, options.max_num_batched_tokens, options.max_model_len});
    DI_ASSIGN_OR_RETURN(tiers.row_layer_seconds, measure_row_layer_seconds(*model.model, rows));
  }
  return std::optional<EngineTiers>(std::move(tiers));
}

}  // namespace deepinfer
