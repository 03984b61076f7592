#include "engine/open_tiers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/build_info.h"
#include "cache/tiers/device_tiers.h"
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

/// Whatever the bits of a page's rows depend on besides its tokens (docs/ARCHITECTURE.md, Numerics).
Result<std::string> make_fingerprint(const KvTierOptions& options, const LoadedModel& model) {
  const WeightsCheck check = options.weights_check == "full" ? WeightsCheck::kFull : WeightsCheck::kSample;
  DI_ASSIGN_OR_RETURN(const std::string identity, checkpoint_identity(*model.checkpoint, *model.pool, check));
  return fmt::format("checkpoint {} numerics {} toolchain {}", identity, model.backend->numerics(), build_toolchain());
}

/// Pinned memory is taken as a whole, and a machine that has too little of it left stops.
Status check_pinned(const KvTierOptions& options) {
  const int64_t memory = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  if (options.host_bytes <= memory / 10 * 9) return Status::Ok();
  return Status::OutOfRange("kv_tiers.host_bytes is {}, of pinned memory it must be at most {}, nine tenths of the machine's",
                            options.host_bytes, memory / 10 * 9);
}

/// For the host pool: the device copies from where its pages lie.
PagePool::Arena pinned_arena(PageCopies& copies) {
  const auto memory = std::make_shared<std::optional<PinnedMemory>>();
  return {[memory, &copies](int64_t bytes) { return memory->emplace(copies.allocate_pinned(bytes)).get(); },
          [memory](void*) { memory->reset(); }};
}

/// Puts pinned memory between the tiers and the pages, which are a device's.
Status reach_device(const EngineOptions& options, EngineTiers& tiers) {
  std::shared_ptr<KvTiers> below = std::move(tiers.opened.tiers);
  const int64_t page = below->shape().page_bytes();
  DeviceTiersOptions staging;
  staging.pull_bytes = std::max(staging.pull_bytes, page);
  staging.write_bytes = std::max(staging.write_bytes, page);
  staging.most_pages = std::max<int64_t>(options.kv_cache_memory / page, 1);
  auto made = make_device_tiers(std::move(below), tiers.copies, staging, tiers.opened.host);
  if (!made) return made.error().with_context("kv_tiers");
  tiers.opened.tiers = std::move(made->tiers);
  tiers.pinned_bytes = made->pinned_bytes + options.kv_tiers.host_bytes;
  return Status::Ok();
}

}  // namespace

Result<PrefillCost> measure_prefill(const EngineOptions& options, const LoadedModel& model) {
  if (!options.kv_tiers.any() || !options.kv_tiers.cut_over) return PrefillCost{};
  return measure_prefill_cost(*model.model, std::min({kMeasuredRows, options.max_num_batched_tokens, options.max_model_len}));
}

Result<std::optional<EngineTiers>> open_tiers(const EngineOptions& options, const LoadedModel& model,
                                              const PrefillCost& prefill) {
  if (!options.kv_tiers.any()) return std::optional<EngineTiers>();
  EngineTiers tiers;
  tiers.prefill = prefill;
  tiers.fingerprint = options.model;
  // What stays in the process is named under a secret of its own.
  if (options.kv_tiers.persistent()) {
    DI_ASSIGN_OR_RETURN(tiers.fingerprint, make_fingerprint(options.kv_tiers, model));
  }
  KvTiersConfig config = tiers_config(options);
  DeviceMemory& memory = model.backend->memory();
  if (!memory.is_host()) {
    DI_RETURN_IF_ERROR(check_pinned(options.kv_tiers));
    tiers.copies = &page_copies(memory);
    config.host_arena = pinned_arena(*tiers.copies);
  }
  DI_ASSIGN_OR_RETURN(tiers.opened, open_kv_tiers(config, page_shape(model.model->page_layout()), tiers.fingerprint));
  if (tiers.copies != nullptr) DI_RETURN_IF_ERROR(reach_device(options, tiers));
  return std::optional<EngineTiers>(std::move(tiers));
}

}  // namespace deepinfer
