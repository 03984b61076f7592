#pragma once

#include <array>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/kv_cache_options.h"
#include "cache/page_pool.h"
#include "cache/page_table.h"
#include "cache/prefix_key.h"

namespace deepinfer {

/// The pages of all sequences, and an index that keeps full pages for sequences to come. One thread owns the cache and its
/// tables. Time is an argument (seconds from any start); a time before the latest one counts as the latest.
///
/// Index: an entry per prefix key, which owns one reference on a page. Sequences that adopted or published the page reference the
/// entry. Entries that no sequence references lie in the list of their class, in the order of last use.
///
/// Invariants:
///  1. The parent of every entry (the page before it) is in the index. Its class is no lower; it is exact if the entry is.
///  2. A table references a chain of entries from a first page on, so a parent has at least the references of each child.
///  3. Unreferenced entries are in the list of their class, others in none; the list is sorted by last use, children before
///  parents.
///  4. cached_[class] counts the unreferenced entries whose page nobody else holds: evicting them frees a page.
///
/// Why eviction never takes a parent before its child (it is checked nevertheless). What is evicted next is the front of a list
/// that expires first, of equal ones the lower class. Let C be a child of P, neither referenced. Whoever released C last held P
/// too (2) and released it right after C, or P was used even later: P's last use is no earlier, and in a common list P stands
/// behind C. P's class is no lower (1), its time to live no shorter, so P expires no earlier than C. If at the same time, then
/// either C's class is lower and its list comes first, or both share a list and C stands before P. Pinned entries are never
/// evicted, and all before a pinned one are pinned. Adopting, raising a class and unpinning keep this: the first two go from the
/// start of a chain, and the last from its end.
class KvCache {
 public:
  static Result<std::unique_ptr<KvCache>> Create(std::unique_ptr<PagePool> pool, const KvCacheOptions& options);
  /// All tables must be gone.
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  /// The longest run of leading `keys` that a table could adopt now. Nothing is taken and nothing counted. A page whose time is
  /// over counts until `expire` or an eviction drops it.
  PrefixMatch match(std::span<const PrefixKey> keys, bool exact_only) const;

  /// An empty table. With `exact_only` it adopts no inexact page.
  PageTable new_table(CacheClass cache_class, bool exact_only = false);

  /// Pages that `grow` can get now: free ones and those that eviction would free. O(1).
  int64_t available() const { return pool_->free_count() + cached(CacheClass::kChat) + cached(CacheClass::kAgent); }
  int64_t free_pages() const { return pool_->free_count(); }
  int64_t total_pages() const { return pool_->total(); }
  int64_t page_bytes() const { return pool_->page_bytes(); }

  /// Drops the entries whose time is over, and says how many. Costs O(1) and O(1) for each.
  int64_t expire(double now);
  /// Pinned pages of `keys` become kAgent, used now; says how many. From the last key on, up to a page that leads to another
  /// pinned one: what is pinned behind the last key, or by another prompt with the same start, keeps what it needs.
  int64_t unpin(std::span<const PrefixKey> keys, double now);
  /// The same for all pinned pages; O(entries).
  int64_t unpin_all(double now);
  /// Forgets every page that no sequence uses, pinned ones too.
  void clear();

  KvCacheStats stats() const;
  /// Walks everything, O(pages + entries + tables).
  void check_invariants() const;

 private:
  friend class PageTable;

  struct Entry {
    PrefixKey key;
    CacheEntryId parent = kNoEntry;
    CacheEntryId previous = kNoEntry;  ///< in the list of its class, while unreferenced
    CacheEntryId next = kNoEntry;      ///< likewise; for an unused slot, the next unused one
    PageId page = kNoPage;             ///< kNoPage: an unused slot
    int32_t references = 0;            ///< by tables
    int32_t children = 0;
    int32_t pinned_children = 0;
    CacheClass cache_class = CacheClass::kChat;
    bool exact = false;
    double last_use = 0;  ///< valid while unreferenced
  };
  struct List {
    CacheEntryId first = kNoEntry;
    CacheEntryId last = kNoEntry;
    int64_t size = 0;
  };

  KvCache(std::unique_ptr<PagePool> pool, const KvCacheOptions& options);

  Entry& entry(CacheEntryId id) { return entries_[static_cast<size_t>(id)]; }
  const Entry& entry(CacheEntryId id) const { return entries_[static_cast<size_t>(id)]; }
  List& list(CacheClass c) { return lists_[static_cast<size_t>(c)]; }
  const List& list(CacheClass c) const { return lists_[static_cast<size_t>(c)]; }
  int64_t cached(CacheClass c) const { return cached_[static_cast<size_t>(c)]; }
  bool held_by_index_alone(const Entry& e) const { return e.references == 0 && pool_->references(e.page) == 1; }
  double expiry(const Entry& e) const;  ///< infinity when pinned
  void touch(double now);

  CacheEntryId find(const PrefixKey& key) const;
  /// The entry for a page that a table publishes behind `parent`, referenced for it: a new one, or that of an earlier publisher.
  CacheEntryId publish_page(const PrefixKey& key, CacheEntryId parent, PageId page, bool exact, CacheClass cache_class);
  CacheEntryId insert(const PrefixKey& key, CacheEntryId parent, PageId page, bool exact);
  void replace_page(Entry& e, PageId page);
  void reference(CacheEntryId id);
  void unreference(CacheEntryId id);
  void link(CacheEntryId id);
  void unlink(CacheEntryId id);
  void raise_class(CacheEntryId id, CacheClass wanted);
  void set_class(Entry& e, CacheClass cache_class);
  void unpin_entry(CacheEntryId id);
  /// Gives a table's reference on a page back. An entry of the table goes before its page.
  void drop_page(PageId page);

  /// Evicts until `pages` are free; the caller has looked at available().
  void make_room(int64_t pages);
  CacheEntryId next_victim();
  void remove(CacheEntryId id);

  PageTableState* borrow_state();

  // kv_cache_check.cc
  struct Walk;
  void check_entries(Walk& walk) const;
  void check_lists(Walk& walk) const;
  void check_tables(Walk& walk) const;

  std::unique_ptr<PagePool> pool_;
  KvCacheOptions options_;
  int64_t max_pinned_;
  double clock_;  ///< the latest time heard of

  std::vector<Entry> entries_;  ///< at most one for each page
  CacheEntryId first_unused_ = kNoEntry;
  boost::unordered_flat_map<PrefixKey, CacheEntryId, PrefixKeyHash> index_;
  std::vector<CacheEntryId> entry_of_page_;   ///< [total_pages] the entry that owns a reference on the page, or kNoEntry
  std::array<List, kCacheClassCount> lists_;  ///< unreferenced entries, the one used longest ago first
  KvCacheStats::PerClass cached_{};           ///< invariant 4
  KvCacheStats::PerClass members_{};          ///< entries of each class
  std::vector<std::unique_ptr<PageTableState>> states_;  ///< every state there is
  std::vector<PageTableState*> spare_states_;            ///< those not lent
  KvCacheStats counts_;                                  ///< its counts; the numbers of pages are filled in by stats()
};

}  // namespace deepinfer
