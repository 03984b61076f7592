#pragma once

#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>
#include <limits>
#include <optional>
#include <shared_mutex>
#include <span>
#include <utility>

#include "cache/kv_store.h"
#include "cache/tiers/row_files.h"

namespace deepinfer {

/// What the headers of a local database say, in memory, as nobody else writes there: about 80 bytes a page, and a lookup costs no
/// more than in a pool. Thread-safe.
class LocalIndex {
 public:
  struct Entry {
    double expiry = 0;
    int64_t bytes = 0;  ///< that the page takes in the database and its files
    RowPlace place;
    bool exact = true;
    CacheClass cache_class = CacheClass::kChat;
    KvStoreMiss unusable = KvStoreMiss::kNone;  ///< why the page is of no use here, whatever is asked for
  };

  std::optional<Entry> find(const PrefixKey& key) const {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(key);
    return found == entries_.end() ? std::nullopt : std::optional(found->second);
  }
  /// Returns what was there before.
  std::optional<Entry> put(const PrefixKey& key, const Entry& entry) {
    const std::lock_guard lock(mutex_);
    const auto [place, fresh] = entries_.try_emplace(key, entry);
    if (fresh) return std::nullopt;
    return std::exchange(place->second, entry);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
  }
  std::optional<Entry> take(const PrefixKey& key) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return std::nullopt;
    const Entry entry = found->second;
    entries_.erase(found);
    return entry;
  }

  void move(const PrefixKey& key, const RowPlace& place) {
    const std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) found->second.place = place;
  }

  /// It turned out to be damaged when it was read there: the next write replaces it.
  void mark_damaged(const PrefixKey& key, const RowPlace& place) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found != entries_.end() && found->second.place == place) found->second.unusable = KvStoreMiss::kCorrupt;
  }

  KvStoreMatch match(std::span<const PrefixKey> keys, bool exact_only, double now) const {
    KvStoreMatch match;
    match.ttl_seconds = std::numeric_limits<double>::infinity();
    const std::shared_lock lock(mutex_);
    for (const PrefixKey& key : keys) {
      const auto found = entries_.find(key);
      match.reason = found == entries_.end() ? KvStoreMiss::kNotStored : usable(found->second, exact_only, now);
      if (match.reason != KvStoreMiss::kNone) break;
      ++match.pages;
      match.exact = match.exact && found->second.exact;
      match.ttl_seconds = std::min(match.ttl_seconds, found->second.expiry - now);
    }
    if (match.pages == 0) match.ttl_seconds = 0;
    return match;
  }

 private:
  static KvStoreMiss usable(const Entry& entry, bool exact_only, double now) {
    if (entry.unusable != KvStoreMiss::kNone) return entry.unusable;
    if (entry.expiry <= now) return KvStoreMiss::kExpired;
    return exact_only && !entry.exact ? KvStoreMiss::kInexact : KvStoreMiss::kNone;
  }

  mutable std::shared_mutex mutex_;
  boost::unordered_flat_map<PrefixKey, Entry, PrefixKeyHash> entries_;
};

}  // namespace deepinfer
