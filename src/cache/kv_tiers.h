#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cache/kv_store.h"
#include "deepinfer/kv_tiers_stats.h"

namespace deepinfer {

/// What the tiers hold of a prompt, found by `KvTiers::match`.
struct KvTierMatch {
  struct Run {
    size_t tier = 0;    ///< index into KvTiers::tier_names
    int64_t pages = 0;  ///< consecutive pages that this tier gives
  };
  std::vector<Run> runs;  ///< from the first page on
  int64_t pages = 0;      ///< their sum
  bool exact = true;
  KvStoreMiss reason = KvStoreMiss::kNone;
  double ttl_seconds = 0;
  double seconds = 0;  ///< that the match took
};

/// What a pull is for.
struct KvPullTerms {
  CacheClass cache_class = CacheClass::kChat;  ///< of who asks: the pages' time to live begins anew as theirs
  /// What computing the pages takes instead. A pull that is behind that is given up as kSlow, the sooner the less has come. 0:
  /// unknown, the pull's own limit is the only one.
  double worth_seconds = 0;
};

/// Pages on their way from the tiers into memory, group after group: all pages of the first group, then of the second, ... so a
/// step may begin while later groups are still read. Any thread may ask and wait; destroying it before `done` cancels and waits.
class KvPull {
 public:
  virtual ~KvPull() = default;
  /// Blocks until `group` of every page is there. False: something in it is missing for good, and the pull as a whole has failed.
  virtual bool wait(int64_t group) = 0;
  /// Without waiting: whether everything has arrived or the pull has failed.
  virtual bool done() const = 0;
  virtual void cancel() = 0;

  struct Result {
    int64_t good_pages = 0;                 ///< leading pages of which every group has arrived
    KvStoreMiss miss = KvStoreMiss::kNone;  ///< of the first page that has not
    std::vector<int64_t> pages_by_tier, bytes_by_tier;
    double begin = 0, end = 0;  ///< on the steady clock, seconds
  };
  /// Valid once `done`.
  virtual const Result& result() const = 0;
};

/// All tiers below the device's pages, asynchronous: threads of its own do the I/O. Thread-safe.
class KvTiers {
 public:
  virtual ~KvTiers() = default;

  virtual std::vector<std::string_view> tier_names() const = 0;
  virtual const KvPageShape& shape() const = 0;

  /// Looks the keys up, tier after tier: each page comes from the fastest tier that has it. Calls `done` from one of its threads,
  /// exactly once, within the match time limit whatever the stores do.
  virtual void match(std::vector<PrefixKey> keys, bool exact_only, std::function<void(KvTierMatch)> done) = 0;
  /// Reads the first pages of `keys` as `match` said. `pages`: [keys][page_bytes], which stay until the pull is done. What comes
  /// is touched where it lay and in slower tiers, and kept in the host's memory, too.
  virtual std::unique_ptr<KvPull> pull(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
                                       const KvPullTerms& terms) = 0;
  /// What pulling it would take, by the pulls so far; 0: unknown.
  virtual double pull_seconds(const KvTierMatch& match) const {
    (void)match;
    return 0;
  }
  /// Somebody has computed these pages as `pull_seconds` says that pulling them would take longer. Now and then some of them are
  /// read all the same, into nowhere, so that a tier which has become fast is noticed.
  virtual void probe(const KvTierMatch& match, std::span<const PrefixKey> keys) {
    (void)match;
    (void)keys;
  }
  /// Whether pages of this class are written at all.
  virtual bool writes(CacheClass cache_class) const {
    (void)cache_class;
    return true;
  }
  /// Copies the page, then returns: writing follows in batches, at a limited rate, where retention says that the page will be
  /// asked for again. Dropped (and counted) when the queue is full. Pages that every tier has are only touched. Pages of a device
  /// are copied after the return: then the page gets a number, the next one, and must stay as it is until `copied` has come that
  /// far. 0: nobody reads it any more.
  virtual int64_t write_back(const KvStoreWrite& page) = 0;
  /// Pages up to this number have been copied.
  virtual int64_t copied() const { return 0; }
  /// The pages of a prompt's start were used, wherever they came from: their time to live begins anew. Returns at once; the same
  /// start is not touched again within seconds.
  virtual void touch(std::span<const PrefixKey> keys, CacheClass cache_class) {
    (void)keys;
    (void)cache_class;
  }
  /// Waits until everything queued has been written or has failed.
  virtual void flush() = 0;
  /// Counts since the start, per tier and per reason.
  virtual KvTiersStats stats() const { return {}; }

  KvTiers(const KvTiers&) = delete;
  KvTiers& operator=(const KvTiers&) = delete;

 protected:
  KvTiers() = default;
};

}  // namespace deepinfer
