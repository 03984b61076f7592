#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "cache/tiers/kv_retention.h"
#include "cache/tiers/shared_layout.h"
#include "cache/tiers/store_admin.h"
#include "cache/tiers/tier_workers.h"

namespace deepinfer {

/// When what lies in a shared directory is garbage. Every process on it is to have the same.
struct SharedGcOptions {
  /// Of the pages of all generations together; it may be exceeded between two collections. 0: no limit.
  int64_t capacity_bytes = 0;
  KvRetention retention{};
  /// A generation that no engine has had open for so long goes as a whole.
  double generation_seconds = 7 * 86400.0;
  /// A page that has been under way for so long was left behind by a writer that was killed.
  double temporary_seconds = 3600;
  /// Of this machine against the file system; infinite: not looked at.
  double max_clock_skew_seconds = 600;

  /// Names the first field that is out of its range.
  Status validate() const;
};

/// Hears of each page that is evicted before its time.
using SharedEvictionListener = std::function<void(const KvFingerprint& generation, const PrefixKey& key)>;

/// Any process may do it at any time, several at once, while others read and write. `keep_generation`: a fingerprint in
/// hexadecimal that is in use whatever its stamp says. Memory does not grow with the store: one walk removes what has expired and
/// adds up the others by time to live; only if they are too many, a second one removes those that would expire first.
Result<StoreCollection> collect_shared_garbage(const SharedLayout& layout, const SharedGcOptions& options,
                                               std::string_view keep_generation, double now, std::stop_token stop,
                                               const SharedEvictionListener& evicted = {});

/// Collects garbage from a thread of its own whenever no process on the directory has done so for `interval_seconds`.
class SharedGcTimer {
 public:
  SharedGcTimer(SharedLayout layout, const SharedGcOptions& options, std::string keep_generation, double interval_seconds,
                SharedEvictionListener evicted = {});
  ~SharedGcTimer();
  SharedGcTimer(const SharedGcTimer&) = delete;
  SharedGcTimer& operator=(const SharedGcTimer&) = delete;

  /// The disk is full: collect now, unless that has just been done.
  void hurry();

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  ///< the thread's too, which may hang in the directory
  TierWorkers thread_;
};

}  // namespace deepinfer
