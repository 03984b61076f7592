#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "cache/kv_tiers.h"
#include "cache/tiers/tier_writer.h"
#include "cache/tiers/tiers_core.h"

namespace deepinfer {

/// What a pull and the threads that read for it share. It counts what has come, decides when the pull is over, and then tells the
/// tiers: how fast they were, and what was used.
struct PullState {
  /// What came from one tier.
  struct Share {
    int64_t total_bytes = 0;             ///< asked for
    int64_t bytes = 0, first_bytes = 0;  ///< that came, and of these by the first read
    double first = 0, last = 0;          ///< when reads arrived, on the steady clock; 0: none yet
  };

  PullState(std::shared_ptr<TiersCore> core, const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
            const KvPullTerms& terms);

  const std::shared_ptr<TiersCore> core;
  const KvTierMatch match;
  const std::vector<PrefixKey> keys;
  const std::vector<uint8_t*> pages;
  const KvPullTerms terms;
  const double deadline;
  std::weak_ptr<TierWriter> writer;  ///< nothing: what is read counts as no use
  std::vector<uint8_t> scratch;      ///< of a probe: where `pages` lie
  std::stop_source stop;
  std::vector<size_t> tier_of;  ///< [pages]

  std::mutex mutex;  ///< of everything below
  std::condition_variable changed;
  std::vector<int64_t> left;        ///< [groups] pages yet to come
  std::vector<int64_t> arrived;     ///< [pages] groups that came
  std::vector<Share> shares;        ///< [tiers]
  int64_t jobs = 0;                 ///< not over yet
  int64_t memory_jobs = 0;          ///< of these, reads of the host's memory
  int64_t copying = 0;              ///< threads that use `pages` now
  std::vector<int64_t> to_promote;  ///< pages that are whole, for the host's memory
  bool failed = false;              ///< something won't come
  bool over = false;
  bool finished = false;
  int64_t first_missing = 0;
  KvPull::Result result;

  // With the lock held:
  /// The pull ends here, whatever threads still do; they won't touch the pages any more.
  void finish(std::unique_lock<std::mutex>& lock);
  void fail(int64_t page, KvStoreMiss miss);
  /// Ends it if its time is over, or if it is so far behind `terms.worth_seconds` that computing is faster.
  void check_time(std::unique_lock<std::mutex>& lock);
  /// When check_time is due again.
  double next_check() const;
  /// `bytes` have come from `tier`.
  void count(size_t tier, int64_t bytes);

 private:
  bool behind(double now) const;
  void learn(bool in_time) const;
  void touch() const;
};

}  // namespace deepinfer
