#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

/// Why a store has fewer pages than asked for, or a page couldn't be used. All of them are misses: the request computes on.
enum class KvStoreMiss : uint8_t {
  kNone,
  kNotStored,
  kExpired,
  kInexact,      ///< it follows a bounded replay, and exact pages were asked for
  kFormat,       ///< another format version
  kFingerprint,  ///< another model, numerics or page shape
  kCorrupt,      ///< truncated, a checksum is wrong, or it is another page than its name says
  kUnavailable,  ///< the store can't be read now
  kSlow,         ///< reading it would have taken longer than computing it
  kCancelled,
};
inline constexpr size_t kKvStoreMissCount = 10;
/// "none", "not_stored", "expired", ...
std::string_view kv_store_miss_name(KvStoreMiss miss);

/// One tier, since the start.
struct KvTierStats {
  using PerMiss = std::array<int64_t, kKvStoreMissCount>;  ///< indexed by KvStoreMiss

  std::string name;           ///< "host", "local", "shared"
  int64_t pages = -1;         ///< that it holds now; -1: it doesn't count them
  int64_t matches = 0;        ///< lookups of a batch of keys
  int64_t matched_pages = 0;  ///< keys they found
  PerMiss match_misses{};     ///< why lookups ended before their last key
  int64_t pages_read = 0;     ///< of which every group arrived
  int64_t bytes_read = 0;
  double read_seconds = 0;  ///< that threads spent in reads; several read at once
  PerMiss read_misses{};    ///< groups that did not arrive
  int64_t pages_written = 0;
  int64_t bytes_written = 0;
  int64_t pages_touched = 0;
  int64_t pages_dropped = 0;  ///< not written: the queue was full or the tier out of order
  int64_t write_errors = 0;   ///< batches
  std::string last_error;     ///< of a write; one line
  int64_t outages = 0;        ///< how often the tier was set aside because it failed or hung
  bool available = true;
  double bytes_per_second = 0;  ///< of pulls, estimated; 0: not measured yet
  double latency_seconds = 0;   ///< until the first bytes of a pull are there, estimated
};

struct KvTiersStats {
  std::vector<KvTierStats> tiers;  ///< the fastest first
  int64_t matches = 0;
  int64_t matches_late = 0;  ///< ended by the time limit
  int64_t pulls = 0;
  int64_t pulls_failed = 0;  ///< some page did not arrive
  int64_t pulls_late = 0;    ///< ended by the time limit
  int64_t pages_promoted = 0;
  int64_t pages_queued = 0;    ///< now waiting to be written
  int64_t pages_retained = 0;  ///< accepted by write_back
  int64_t pages_filtered = 0;  ///< not written anywhere: retention says that they will not be asked for again
};

}  // namespace deepinfer
