#pragma once

#include <array>

#include "page_trace.h"

namespace deepinfer::cache {

struct ReplayOptions {
  std::array<double, kCacheClassCount> ttl_seconds{};  ///< since the last use; infinity: least recently used goes first
  int64_t capacity_pages = 0;                          ///< of all classes together; 0: no limit
};

/// What one class got.
struct ReplayCounts {
  int64_t requests = 0;
  int64_t requests_hit = 0;  ///< at least one page
  int64_t prompt_tokens = 0;
  int64_t pages = 0;      ///< asked for
  int64_t hit_pages = 0;  ///< leading ones that were there
  int64_t expired = 0, evicted = 0;
  double page_seconds = 0;  ///< pages held x how long

  double hit_rate() const { return pages > 0 ? static_cast<double>(hit_pages) / static_cast<double>(pages) : 0; }
};

struct ReplayResult {
  std::array<ReplayCounts, kCacheClassCount> by_class{};
  int64_t most_pages = 0;  ///< held at once

  ReplayCounts total() const;
};

/// Lets a cache of pages see the requests, one after the other: what is found is hit, what is not is computed and kept. The rules
/// are those of the tiers: expired pages go, then what would expire first, the end of a prompt before its start; the higher class
/// of two users counts.
ReplayResult replay(const PageTrace& trace, const ReplayOptions& options);

}  // namespace deepinfer::cache
