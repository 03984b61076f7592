#pragma once

#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "cache/tiers/page_record.h"
#include "cache/tiers/redis_url.h"
#include "cache/tiers/shared_layout.h"
#include "cache/tiers/tier_workers.h"

namespace deepinfer {

struct RedisDirectoryOptions {
  RedisUrl url{};
  double lookup_seconds = 0.02;  ///< limit of a lookup as a whole; one that takes longer is given up, and so is the connection
  double update_seconds = 1;     ///< limit of a batch of updates, and of connecting
  double longest_backoff_seconds = 30;
  int64_t queued_updates = 1 << 16;  ///< what doesn't fit is dropped

  /// Names the first field that is out of its range.
  Status validate() const;
};

/// What the directory says of a page: as its file is named and timed.
struct DirectoryEntry {
  bool known = false;
  bool exact = true;
  PageTime time;
};

struct RedisDirectoryStats {
  bool connected = false;
  int64_t lookups = 0;
  int64_t lookups_failed = 0;  ///< Redis was down, slow or made no sense
  int64_t updates = 0;         ///< that Redis confirmed
  int64_t updates_dropped = 0;
  int64_t entries_refused = 0;  ///< values that are none of ours
  std::string last_error;
};

/// A hint kept in Redis of what lies in a shared directory: one value a page, so that a prompt of any length is looked up in one
/// or two round trips. Nothing depends on it. What it says is there is checked when it is read (page_record.h), what it does not
/// know is looked for in the file system, and while it is down or slow it says nothing at all. Thread-safe.
///
/// A thread of its own connects (with growing pauses), looks after the connection, and sends updates, so that nobody ever waits
/// for a connection. A lookup that misses its limit takes the connection down with it.
///
/// Key: "kv1:", the fingerprint's first 8 bytes, the page's key (16 bytes, big-endian). Value: 16 bytes, see
/// redis_directory.cc; it goes from Redis when the page expires.
class RedisDirectory {
 public:
  /// Doesn't wait for Redis, which may come and go at any time.
  static Result<std::unique_ptr<RedisDirectory>> Open(const RedisDirectoryOptions& options);
  ~RedisDirectory();
  RedisDirectory(const RedisDirectory&) = delete;
  RedisDirectory& operator=(const RedisDirectory&) = delete;

  /// Entries of the first keys: of all, or up to the first unknown one and perhaps some more. Nothing at all if Redis doesn't
  /// answer.
  std::vector<DirectoryEntry> look_up(const KvFingerprint& fingerprint, std::span<const PrefixKey> keys,
                                      const std::stop_token& stop);
  /// Asynchronous. `now`: the wall clock.
  void put(const KvFingerprint& fingerprint, const PrefixKey& key, const DirectoryEntry& entry, double now);
  void remove(const KvFingerprint& fingerprint, const PrefixKey& key);

  RedisDirectoryStats stats() const;
  /// Waits until it is connected and every update so far has been confirmed or dropped; false: that did not happen in time.
  bool flush(double seconds);

 private:
  struct State;
  explicit RedisDirectory(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;  ///< the thread's too, which may hang while it looks up the host
  TierWorkers thread_;
};

}  // namespace deepinfer
