#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_cache_options.h"
#include "cache/prefix_key.h"

namespace deepinfer::testing {

/// What KvCache promises, in the plainest way: nothing is counted or linked, everything is searched for when asked. A page is a
/// number that is never used again, so that pages of the cache can carry it as their content.
class NaiveCache {
 public:
  using Key = std::pair<uint64_t, uint64_t>;
  struct Entry {
    bool has_parent = false;
    Key parent;
    int64_t page = 0;
    bool exact = false;
    CacheClass cache_class = CacheClass::kChat;
    double last_use = 0;
    int64_t released = 0;  ///< the order in which entries lost their last user
  };
  struct Table {
    CacheClass cache_class = CacheClass::kChat;
    bool exact_only = false;
    std::vector<int64_t> pages;
    std::vector<bool> exact;  ///< of the published pages, as this table has them
    std::vector<Key> published;
  };

  NaiveCache(int64_t total, const KvCacheOptions& options) : total_(total), options_(options) {}

  PrefixMatch match(std::span<const PrefixKey> keys, bool exact_only) const;
  void adopt(Table& table, std::span<const PrefixKey> keys, int64_t count);
  bool grow(Table& table, int64_t pages, double now);
  void publish(Table& table, std::span<const PrefixKey> keys, bool exact, double now);
  void shrink(Table& table, int64_t count) { table.pages.resize(table.pages.size() - static_cast<size_t>(count)); }
  Table& fork(const Table& table, int64_t full_pages);
  void release(Table& table, double now);
  Table& add_table(CacheClass cache_class, bool exact_only);
  /// Releases and removes it.
  void remove_table(Table& table, double now);

  int64_t expire(double now);
  int64_t unpin(std::span<const PrefixKey> keys, double now);
  int64_t unpin_all(double now);
  void clear();

  int64_t free() const { return total_ - static_cast<int64_t>(held_pages(true).size()); }
  int64_t available() const;
  int64_t entries(CacheClass cache_class) const;
  /// Entries of a class that sequences use, and those whose page nobody else holds.
  int64_t referenced(CacheClass cache_class) const;
  int64_t cached(CacheClass cache_class) const;
  const std::map<Key, Entry>& index() const { return index_; }

 private:
  static Key key_of(const PrefixKey& key) { return {key.high, key.low}; }
  int64_t users(const Key& key) const;
  bool has_child(const Key& key, bool pinned_only) const;
  std::set<int64_t> held_pages(bool by_index_too) const;
  double expiry(const Entry& entry) const;
  std::map<Key, Entry>::iterator victim();
  void raise(Entry& entry, CacheClass wanted);
  void drop_last_user(const Key& key, double now);

  int64_t total_;
  KvCacheOptions options_;
  std::map<Key, Entry> index_;
  std::map<int64_t, Table> tables_;  ///< of all ages; references stay valid
  int64_t next_page_ = 1;
  int64_t next_table_ = 0;
  int64_t next_release_ = 0;
};

}  // namespace deepinfer::testing
