#pragma once

#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <iterator>
#include <limits>
#include <list>
#include <memory>
#include <utility>

#include "base/status.h"
#include "cache/prefix_key.h"

namespace deepinfer {

struct WindowSnapshotStats {
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t evicted = 0;  ///< made room before their time was over
  int64_t expired = 0;
};

/// Window rings at the ends of cached prefixes, so that a sequence which continues there need not replay its window. Windows are
/// large and soon worthless, so they have a budget, a time to live and an order of eviction of their own, apart from the pages:
/// losing a window never loses a hit. The pages alone decide how long a hit is; a window that is gone is rebuilt by replay.
///
/// Least recently used ones go first; `find` and `put` are uses. A request may go on using a snapshot that the pool has dropped:
/// what it holds counts as the request's bytes, not the pool's. One thread owns the pool; `now` is in seconds and does not
/// run backwards (a time before the latest one counts as the latest).
///
/// Invariants: bytes() is the sum over the entries and at most the budget; the list is sorted by last use and has exactly the
/// entries of the index.
template <typename Snapshot>
class WindowSnapshotPool {
 public:
  /// `ttl_seconds`: since the last use.
  WindowSnapshotPool(int64_t budget_bytes, double ttl_seconds) : budget_(budget_bytes), ttl_(ttl_seconds) {
    DI_CHECK(budget_bytes >= 0 && ttl_seconds >= 0, "a pool of {} bytes for {} s", budget_bytes, ttl_seconds);
  }

  /// Keeps a snapshot of `bytes` in place of one with the same key, evicting others to make room. False, and nothing has changed,
  /// when it is larger than the whole budget.
  bool put(PrefixKey at, std::shared_ptr<const Snapshot> snapshot, int64_t bytes, double now) {
    DI_CHECK(snapshot != nullptr && bytes >= 0, "a snapshot of {} bytes", bytes);
    touch(now);
    if (bytes > budget_) return false;
    if (const auto found = index_.find(at); found != index_.end()) drop(found->second);
    while (bytes_ > budget_ - bytes) {
      ++(is_expired(entries_.front()) ? expired_ : evicted_);
      drop(entries_.begin());
    }
    entries_.push_back({.key = at, .snapshot = std::move(snapshot), .bytes = bytes, .last_use = clock_});
    index_.emplace(at, std::prev(entries_.end()));
    bytes_ += bytes;
    return true;
  }

  /// The snapshot, or null. One whose time is over is dropped.
  std::shared_ptr<const Snapshot> find(PrefixKey at, double now) {
    touch(now);
    const auto found = index_.find(at);
    if (found != index_.end() && is_expired(*found->second)) {
      drop(found->second);
      ++expired_;
      ++misses_;
      return nullptr;
    }
    if (found == index_.end()) {
      ++misses_;
      return nullptr;
    }
    ++hits_;
    const Place place = found->second;
    place->last_use = clock_;
    entries_.splice(entries_.end(), entries_, place);
    return place->snapshot;
  }

  /// Whether `find` would succeed; neither a use nor counted.
  bool contains(PrefixKey at, double now) const {
    const auto found = index_.find(at);
    return found != index_.end() && found->second->last_use + ttl_ > std::max(clock_, now);
  }

  /// Drops what has expired, and says how many.
  int64_t expire(double now) {
    touch(now);
    int64_t count = 0;
    for (; !entries_.empty() && is_expired(entries_.front()); ++count) drop(entries_.begin());
    expired_ += count;
    return count;
  }

  /// Forgets all of them. A request goes on with one that it has.
  void clear() {
    index_.clear();
    entries_.clear();
    bytes_ = 0;
  }

  WindowSnapshotStats stats() const {
    return {.entries = static_cast<int64_t>(index_.size()),
            .bytes = bytes_,
            .hits = hits_,
            .misses = misses_,
            .evicted = evicted_,
            .expired = expired_};
  }

  void check_invariants() const {
    DI_CHECK(entries_.size() == index_.size(), "{} entries, {} keys", entries_.size(), index_.size());
    int64_t bytes = 0;
    double last_use = -std::numeric_limits<double>::infinity();
    for (auto place = entries_.begin(); place != entries_.end(); ++place) {
      const auto found = index_.find(place->key);
      DI_CHECK(found != index_.end() && &*found->second == &*place, "an entry is not found under its key");
      DI_CHECK(place->last_use >= last_use && place->last_use <= clock_, "used at {} after {}", place->last_use, last_use);
      last_use = place->last_use;
      bytes += place->bytes;
    }
    DI_CHECK(bytes == bytes_ && bytes_ <= budget_, "{} bytes, counted {}, the budget is {}", bytes, bytes_, budget_);
  }

 private:
  struct Entry {
    PrefixKey key;
    std::shared_ptr<const Snapshot> snapshot;
    int64_t bytes = 0;
    double last_use = 0;
  };
  using Place = typename std::list<Entry>::iterator;

  void touch(double now) { clock_ = std::max(clock_, now); }
  bool is_expired(const Entry& entry) const { return entry.last_use + ttl_ <= clock_; }
  void drop(Place place) {
    bytes_ -= place->bytes;
    index_.erase(place->key);
    entries_.erase(place);
  }

  int64_t budget_;
  double ttl_;
  double clock_ = -std::numeric_limits<double>::infinity();
  std::list<Entry> entries_;  ///< the one used longest ago first
  boost::unordered_flat_map<PrefixKey, Place, PrefixKeyHash> index_;
  int64_t bytes_ = 0;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  int64_t evicted_ = 0;
  int64_t expired_ = 0;
};

}  // namespace deepinfer
