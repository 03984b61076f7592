#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cache/kv_tiers.h"
#include "cache/tiers/async_tiers.h"
#include "cache/tiers/host_pool.h"
#include "cache/tiers/kv_retention.h"
#include "cache/tiers/store_secret.h"

namespace deepinfer {

/// Which tiers there are. What is empty or 0 is left out; at least one must be there.
struct KvTiersConfig {
  int64_t host_bytes = 0;
  PagePool::Arena host_arena;  ///< where they lie; in memory of the system's without
  KvRetention host_retention{.ttl_seconds = {600, 3600, 86400}, .max_fraction = {1, 1, 0.5}};
  std::string local_directory;
  int64_t local_bytes = int64_t{64} << 30;
  KvRetention local_retention{};
  std::string shared_directory;  ///< on a file system that all machines mount; must be there
  int64_t shared_bytes = 0;      ///< of all models together, enforced by collecting garbage; 0: no limit
  KvRetention shared_retention{};
  std::string
      directory_url;  ///< Redis that knows what the shared directory holds: redis://... or unix://... (redis_url.h); or none
  /// Empty: DIR/secret of the shared store or, without one, of the local store, made if it is not there.
  std::string secret_file;
  AsyncTiersOptions io{};

  /// Names the first field that is out of its range.
  Status validate() const;
};

struct OpenedKvTiers {
  std::unique_ptr<KvTiers> tiers;
  std::shared_ptr<HostPool> host;  ///< the first of them, if there are host_bytes
  StoreSecret secret{};            ///< for PrefixHasher: with another one, nothing that was stored is ever found
};

/// `fingerprint`: whatever else rows depend on: config, identity of the weights, numerics.
Result<OpenedKvTiers> open_kv_tiers(const KvTiersConfig& config, const KvPageShape& shape, std::string_view fingerprint);

}  // namespace deepinfer
