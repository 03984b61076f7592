#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <list>
#include <memory>
#include <mutex>

#include "cache/kv_store.h"
#include "cache/page_pool.h"
#include "cache/tiers/kv_retention.h"

namespace deepinfer {

struct HostPoolOptions {
  int64_t capacity_bytes = int64_t{1} << 30;
  KvRetention retention{.ttl_seconds = {600, 3600, 86400}, .max_fraction = {1, 1, 0.5}};

  Status validate(const KvPageShape& shape) const;
};

/// Pages in this process's memory. Of each class the one used longest ago stands first; expired pages make room first, then the
/// one that would expire first. Of the pages of one call, later ones (the ends of prompts) go before earlier ones.
///
/// Reading copies outside the lock: a page that is evicted meanwhile is kept by its reference until the copy is done.
///
/// Invariants: the lists together have exactly the entries of the index; an entry owns one reference on its page; a class has at
/// most `max_fraction` of the pool's pages; expiry does not fall along a list.
class HostPool : public KvStore {
 public:
  /// The pages lie in `arena`, in memory of the system's without.
  static Result<std::unique_ptr<HostPool>> Create(const KvPageShape& shape, const HostPoolOptions& options,
                                                  PagePool::Arena arena = {});

  std::string_view tier() const override { return "host"; }
  KvStoreMatch match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token stop) override;
  void read(std::span<KvStoreRead> reads, double now, std::stop_token stop) override;
  Status write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) override;
  Status touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token stop) override;
  Status erase(std::span<const PrefixKey> keys, std::stop_token stop) override;

  /// The page where it lies, which it stays until it is given back, whatever becomes of its entry; nullptr with a reason.
  const uint8_t* lend(const PrefixKey& key, bool exact_only, double now, KvStoreMiss& miss);
  void give_back(std::span<const uint8_t* const> pages);

  int64_t pages() const override;
  int64_t capacity_pages() const { return pool_->total(); }
  void check_invariants() const;

 private:
  struct Entry {
    PrefixKey key;
    PageId page = kNoPage;
    bool exact = true;
    CacheClass cache_class = CacheClass::kChat;
    double expiry = 0;
  };
  using List = std::list<Entry>;
  using Place = List::iterator;

  HostPool(KvPageShape shape, const HostPoolOptions& options, std::unique_ptr<PagePool> pool);

  /// A reference on the page of an entry that serves, or kNoPage with a reason. With the lock held.
  PageId reference(const PrefixKey& key, bool exact_only, double now, KvStoreMiss& miss);
  List& list(CacheClass c) { return lists_[static_cast<size_t>(c)]; }
  size_t limit(CacheClass c) const;
  /// Puts the entry behind all of its class that expire no later: the end, unless the clock was set back.
  void place(List& from, Place entry, double now);
  void drop(Place entry);
  /// A free page, evicting for it; kNoPage if everything is being read.
  PageId make_room(double now);
  void write_page(const KvStoreWrite& page, double now);

  const KvPageShape shape_;
  const HostPoolOptions options_;
  mutable std::mutex mutex_;
  std::unique_ptr<PagePool> pool_;
  std::array<List, kCacheClassCount> lists_;
  boost::unordered_flat_map<PrefixKey, Place, PrefixKeyHash> index_;
};

}  // namespace deepinfer
