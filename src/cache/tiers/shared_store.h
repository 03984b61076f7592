#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "cache/kv_store.h"
#include "cache/tiers/kv_retention.h"
#include "cache/tiers/page_record.h"
#include "cache/tiers/redis_directory.h"
#include "cache/tiers/shared_gc.h"
#include "cache/tiers/shared_layout.h"
#include "cache/tiers/suspect_pages.h"
#include "cache/tiers/tier_workers.h"

namespace deepinfer {

struct SharedStoreOptions {
  std::string directory;  ///< must be there already: an unmounted mount point is not to be filled
  SharedGcOptions gc{};
  /// Between collections by whichever process comes first; 0: only when somebody asks for one.
  double gc_interval_seconds = 3600;
  /// A match finds the end of what is stored in about log2(pages) looks; for so long it goes on to look at the others too.
  double match_check_seconds = 0.003;
  std::string directory_url{};  ///< of a Redis server (redis_url.h) that knows what is stored; empty: none
  double directory_lookup_seconds = 0.02;

  Status validate() const;
};

/// Pages as files of a directory that many machines mount (shared_layout.h): each written under another name and renamed when it
/// is whole, never changed after that. There are no locks. Two writers of a page write the same, and the last one stays; a page
/// that goes while it is read is read to the end or is a miss. All processes run as one user and with like retention.
///
/// Nothing is flushed to disk (no fsync). A power failure may then leave a whole name with missing rows; checksums find that, the
/// page counts as a miss, and the next writer replaces it. A flush of each page would cost more than the page is worth. What a
/// network file system reports only when a file is closed is seen before the rename.
///
/// A directory in Redis, if there is one, is a hint (redis_directory.h): of what it says is stored one page is looked for, and
/// what it does not know is looked for in the file system. Whatever it says, wrong bytes are never read.
///
/// Clocks. Who writes or uses a page sets its expiry by his own clock, who looks compares with his own: two clocks s seconds
/// apart make a page go s seconds early or late. A clock far ahead makes pages stay until the first collection of garbage, which
/// gives them their class's time to live anew; one far behind makes that machine's pages go at once. A machine whose clock
/// differs from the file system's by more than `max_clock_skew_seconds` collects no garbage. Generations and temporary files age
/// by the file system's clock alone.
class SharedStore : public KvStore {
 public:
  static Result<std::unique_ptr<SharedStore>> Open(const KvPageShape& shape, const KvFingerprint& fingerprint,
                                                   const SharedStoreOptions& options);
  ~SharedStore() override;

  std::string_view tier() const override { return "shared"; }
  /// By bisection, as the pages of a prompt are used together and so its ends go first; if some other page has gone, `read` says.
  KvStoreMatch match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token stop) override;
  void read(std::span<KvStoreRead> reads, double now, std::stop_token stop) override;
  Status write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) override;
  Status touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token stop) override;
  Status erase(std::span<const PrefixKey> keys, std::stop_token stop) override;

  Result<StoreCollection> collect_garbage(double now, std::stop_token stop);
  /// Null if there is none.
  RedisDirectory* page_directory() const { return page_directory_.get(); }

 private:
  class Chain;
  struct Found;
  struct OpenPage;

  SharedStore(KvPageShape shape, const KvFingerprint& fingerprint, const SharedStoreOptions& options);

  /// Says, about once an hour, that this generation is in use.
  void keep_alive();
  KvStoreMatch match_directory(std::span<const PrefixKey> keys, bool exact_only, double now, const std::stop_token& stop);
  KvStoreMatch match_files(std::span<const PrefixKey> keys, bool exact_only, double now, const std::stop_token& stop);
  void tell_directory(const PrefixKey& key, bool exact, const PageTime& time, double now);
  /// The file system knows nothing of what the directory promised.
  void correct_directory(const PrefixKey& key);
  SharedEvictionListener eviction_listener() const;
  Found look(const PrefixKey& key, bool exact_only, double now) const;
  /// kNotStored, or kUnavailable if it isn't there because the whole store is gone.
  KvStoreMiss not_there() const;
  OpenPage open_page(const PrefixKey& key, bool exact) const;
  void read_group(KvStoreRead& read, const OpenPage& exact);
  KvStoreMiss read_rows(KvStoreRead& read, const OpenPage& open) const;
  Status write_page(const KvStoreWrite& page, double now);
  /// 0 or errno.
  int touch_page(const PrefixKey& key, bool exact, const PageTime& time, CacheClass cache_class, double now);
  bool time_is_stale(const PageTime& time, CacheClass cache_class, double now, PageTime& fresh) const;

  const KvPageShape shape_;
  const KvFingerprint fingerprint_;
  const SharedStoreOptions options_;
  const SharedLayout layout_;
  const std::string generation_;  ///< its path
  const int64_t record_bytes_;
  UniqueNames names_;
  SuspectPages suspects_;
  std::atomic<double> stamped_{0};  ///< when keep_alive last said so, on the steady clock
  std::shared_ptr<RedisDirectory> page_directory_;
  std::unique_ptr<SharedGcTimer> timer_;
};

}  // namespace deepinfer
