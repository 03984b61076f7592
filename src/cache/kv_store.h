#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/kv_cache_options.h"
#include "cache/prefix_key.h"
#include "deepinfer/kv_tiers_stats.h"

namespace deepinfer {

/// Where the global rows of a page lie: one group per KV source, in the order of the layers that read them first. A page is its
/// groups one after the other.
struct KvPageShape {
  std::vector<int64_t> group_bytes;

  int64_t page_bytes() const;
  /// Byte at which `group` begins.
  int64_t group_offset(int64_t group) const;
};

/// A page that a store is to keep. Whoever knows the key knows salt, model, numerics and every token up to its end.
struct KvStoreWrite {
  PrefixKey key;
  PrefixKey parent;  ///< the page before it, or the root
  CacheClass cache_class = CacheClass::kChat;
  bool exact = true;              ///< no bounded replay came before it
  std::span<const uint8_t> page;  ///< [KvPageShape::page_bytes]; stays valid until the write is over
};

struct KvStoreMatch {
  int64_t pages = 0;                        ///< leading keys that are stored; a later `read` may still miss
  bool exact = true;                        ///< all of them are
  KvStoreMiss reason = KvStoreMiss::kNone;  ///< why it ends there; kNone: every key was found
  double ttl_seconds = 0;                   ///< of the page that goes first
};

/// One group of one page.
struct KvStoreRead {
  PrefixKey key;
  int64_t group = 0;
  std::span<uint8_t> into;                ///< [group_bytes[group]]; undefined unless `miss` is kNone
  KvStoreMiss miss = KvStoreMiss::kNone;  ///< the outcome
  bool exact_only = false;                ///< an inexact page is a miss, also one that has taken an exact one's place meanwhile
};

/// A tier below the device's pages: the host's pool, a local database, a shared directory. Calls block, take batches, and may
/// come from several threads at once; `KvTiers` makes them asynchronous. Once `stop` is requested a call returns soon, and what
/// it has not done yet counts as kCancelled. Nothing that a store holds is trusted: a page is returned only when version,
/// fingerprint, key and checksum are right. Time is the wall clock's, in seconds since 1970, as an argument.
class KvStore {
 public:
  virtual ~KvStore() = default;

  virtual std::string_view tier() const = 0;  ///< "host", "local", "shared"
  virtual KvStoreMatch match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token stop) = 0;
  /// In the order given; groups of a page may come in different calls.
  virtual void read(std::span<KvStoreRead> reads, double now, std::stop_token stop) = 0;
  /// Keeps the pages until their class's time to live is over, or space is needed. A page that is there already is touched; an
  /// exact one takes the place of an inexact one. On error some of them may have been stored, each whole or not at all.
  virtual Status write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) = 0;
  /// They were used: their time to live starts anew. Unknown keys are passed over.
  virtual Status touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token stop) = 0;
  virtual Status erase(std::span<const PrefixKey> keys, std::stop_token stop) = 0;
  /// That it holds now, without I/O; -1: it doesn't count them.
  virtual int64_t pages() const { return -1; }

  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

 protected:
  KvStore() = default;
};

}  // namespace deepinfer
