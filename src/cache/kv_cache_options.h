#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

/// How long pages are worth keeping once no sequence uses them. Ordered: of two users of a page the higher class counts.
enum class CacheClass : uint8_t {
  kChat,    ///< a person may answer within minutes
  kAgent,   ///< a loop of tool calls, which comes back with a slightly longer prompt
  kPinned,  ///< kept until unpinned, within KvCacheOptions::max_pinned_fraction
};
inline constexpr size_t kCacheClassCount = 3;

/// "chat", "agent" or "pinned".
Result<CacheClass> parse_cache_class(std::string_view name);
std::string_view cache_class_name(CacheClass cache_class);

struct KvCacheOptions {
  double chat_ttl_seconds = 600;     ///< since the last use by a sequence
  double agent_ttl_seconds = 3600;   ///< at least chat_ttl_seconds: see the order of eviction in kv_cache.h
  double max_pinned_fraction = 0.5;  ///< of the pool; pages beyond it are kept as kAgent
  bool enable_prefix_caching = true;

  /// Names the first field that is out of its range.
  Status validate() const;
};

/// Why fewer pages than asked for were hit.
enum class MissReason : uint8_t {
  kNone,       ///< every page was hit
  kTooShort,   ///< there is no full page to look for
  kNotCached,  ///< the next page was never published or is gone
  kInexact,    ///< the next page is there, but follows a bounded replay and exact pages were asked for
  kDisabled,   ///< enable_prefix_caching is off
};
std::string_view miss_reason_name(MissReason reason);

/// What KvCache::match found.
struct PrefixMatch {
  int64_t pages = 0;            ///< the longest run of leading keys that can be adopted
  int64_t evictable = 0;        ///< how many of them `available()` counts now; adopting takes them out of it
  bool exact = true;            ///< all of them are exact
  int64_t inexact_refused = 0;  ///< how many more there would be if inexact pages were allowed
  MissReason reason = MissReason::kNone;
};

/// Numbers of pages now, and counts since the cache was made.
struct KvCacheStats {
  using PerClass = std::array<int64_t, kCacheClassCount>;  ///< indexed by CacheClass

  int64_t total_pages = 0;
  int64_t free_pages = 0;
  int64_t sequence_pages = 0;   ///< held by at least one sequence; total = free + sequence + the sum of cached_pages
  PerClass cached_pages{};      ///< held by the index alone
  PerClass referenced_pages{};  ///< in the index and in use by sequences
  int64_t available_pages = 0;

  int64_t queries = 0;        ///< calls of PageTable::adopt
  int64_t queried_pages = 0;  ///< keys they asked for
  int64_t hit_pages = 0;      ///< pages they took
  PerClass hits{};            ///< queries of each class that took at least one page
  int64_t inserted = 0;
  int64_t replaced = 0;    ///< an exact page took the place of an inexact one
  int64_t duplicates = 0;  ///< published pages that were there already, computed by two sequences at once
  PerClass evicted{};      ///< made room before their time was over
  PerClass expired{};
  int64_t cleared = 0;
  int64_t pins_refused = 0;    ///< pages asked to be pinned beyond the limit
  int64_t eviction_steps = 0;  ///< entries looked at to find those to evict or expire: never more than a few for each
};

}  // namespace deepinfer
