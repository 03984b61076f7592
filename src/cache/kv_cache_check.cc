// The invariants of KvCache, checked the slow way: everything that is kept as a counter or a link is computed anew.

#include "cache/kv_cache.h"

namespace deepinfer {

struct KvCache::Walk {
  explicit Walk(const KvCache& cache)
      : references(cache.entries_.size()),
        children(cache.entries_.size()),
        pinned_children(cache.entries_.size()),
        places(cache.entries_.size(), -1),
        holders(static_cast<size_t>(cache.total_pages())) {}

  std::vector<int32_t> references;       ///< by tables, of each entry
  std::vector<int32_t> children;         ///< of each entry
  std::vector<int32_t> pinned_children;  ///< likewise
  std::vector<int64_t> places;           ///< in the list of its class; -1: in none
  std::vector<int32_t> holders;          ///< of each page: tables and an entry
};

void KvCache::check_invariants() const {
  pool_->check_invariants();
  Walk walk(*this);
  check_tables(walk);
  check_lists(walk);
  check_entries(walk);

  KvCacheStats::PerClass members{};
  KvCacheStats::PerClass alone{};
  int64_t in_use = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (e.page == kNoPage) continue;
    ++in_use;
    ++members[static_cast<size_t>(e.cache_class)];
    if (walk.references[i] == 0 && walk.holders[static_cast<size_t>(e.page)] == 1) ++alone[static_cast<size_t>(e.cache_class)];
  }
  DI_CHECK(in_use == static_cast<int64_t>(index_.size()), "{} entries, {} keys", in_use, index_.size());
  int64_t unused = 0;
  for (CacheEntryId id = first_unused_; id != kNoEntry; id = entry(id).next) {
    DI_CHECK(entry(id).page == kNoPage && ++unused <= static_cast<int64_t>(entries_.size()), "slot {} is not unused", id);
  }
  DI_CHECK(in_use + unused == static_cast<int64_t>(entries_.size()), "{} + {} of {} slots", in_use, unused, entries_.size());
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    DI_CHECK(members[c] == members_[c], "{} of class {}, counted {}", members[c], c, members_[c]);
    DI_CHECK(alone[c] == cached_[c], "{} of class {} held by the index alone, counted {}", alone[c], c, cached_[c]);
  }
  DI_CHECK(members_[static_cast<size_t>(CacheClass::kPinned)] <= max_pinned_, "more than {} pinned", max_pinned_);

  int64_t used = 0;
  for (PageId page = 0; page < total_pages(); ++page) {
    const int32_t holders = walk.holders[static_cast<size_t>(page)];
    DI_CHECK(pool_->references(page) == holders, "page {} has {} holders and {} references", page, holders,
             pool_->references(page));
    used += holders > 0 ? 1 : 0;
    const CacheEntryId id = entry_of_page_[static_cast<size_t>(page)];
    DI_CHECK(id == kNoEntry || entry(id).page == page, "page {} names entry {} of page {}", page, id, entry(id).page);
  }
  DI_CHECK(used + free_pages() == total_pages(), "{} used and {} free of {} pages", used, free_pages(), total_pages());
}

void KvCache::check_tables(Walk& walk) const {
  size_t lent = 0;
  for (const auto& state : states_) {
    const PageTableState& s = *state;
    DI_CHECK(s.lent || (s.pages.empty() && s.entries.empty()), "a table that is gone holds {} pages", s.pages.size());
    lent += s.lent ? 1 : 0;
    DI_CHECK(s.entries.size() <= s.pages.size() && s.data.size() == s.pages.size(), "{} published, {} pages, {} pointers",
             s.entries.size(), s.pages.size(), s.data.size());
    for (size_t i = 0; i < s.pages.size(); ++i) {
      ++walk.holders[static_cast<size_t>(s.pages[i])];
      DI_CHECK(s.data[i] == pool_->data(s.pages[i]), "pointer {} of a table is not its page {}", i, s.pages[i]);
    }
    for (size_t i = 0; i < s.entries.size(); ++i) {
      const Entry& e = entry(s.entries[i]);
      ++walk.references[static_cast<size_t>(s.entries[i])];
      DI_CHECK(e.page != kNoPage && e.parent == (i == 0 ? kNoEntry : s.entries[i - 1]), "published page {} breaks the chain", i);
      DI_CHECK(static_cast<int64_t>(i) >= s.first_inexact || e.exact, "page {} is exact, its entry is not", i);
    }
  }
  DI_CHECK(lent + spare_states_.size() == states_.size(), "{} lent, {} spare, {} in all", lent, spare_states_.size(),
           states_.size());
}

void KvCache::check_lists(Walk& walk) const {
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    const List& l = lists_[c];
    CacheEntryId previous = kNoEntry;
    int64_t place = 0;
    for (CacheEntryId id = l.first; id != kNoEntry; previous = id, id = entry(id).next) {
      const Entry& e = entry(id);
      DI_CHECK(e.page != kNoPage && static_cast<size_t>(e.cache_class) == c, "entry {} is in the list of class {}", id, c);
      DI_CHECK(e.previous == previous && place < l.size, "list {} is broken at {}", c, id);
      DI_CHECK(e.last_use <= clock_ && (previous == kNoEntry || entry(previous).last_use <= e.last_use),
               "list {} is not sorted at {}", c, id);
      walk.places[static_cast<size_t>(id)] = place++;
    }
    DI_CHECK(place == l.size && l.last == previous, "list {} has {} entries, counted {}", c, place, l.size);
  }
}

void KvCache::check_entries(Walk& walk) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (e.page == kNoPage) continue;
    DI_CHECK(find(e.key) == static_cast<CacheEntryId>(i), "entry {} is not found under its key", i);
    DI_CHECK(entry_of_page_[static_cast<size_t>(e.page)] == static_cast<CacheEntryId>(i), "page {} does not name entry {}",
             e.page, i);
    ++walk.holders[static_cast<size_t>(e.page)];
    DI_CHECK(e.references == walk.references[i], "entry {} has {} references, counted {}", i, walk.references[i], e.references);
    DI_CHECK((e.references == 0) == (walk.places[i] >= 0), "entry {} with {} references, place {}", i, e.references,
             walk.places[i]);
    if (e.parent == kNoEntry) continue;

    const auto p = static_cast<size_t>(e.parent);
    const Entry& parent = entry(e.parent);
    DI_CHECK(parent.page != kNoPage, "the parent of entry {} is gone", i);
    ++walk.children[p];
    walk.pinned_children[p] += e.cache_class == CacheClass::kPinned ? 1 : 0;
    DI_CHECK(parent.references >= e.references, "entry {} has {} references, its parent {}", i, e.references, parent.references);
    DI_CHECK(parent.cache_class >= e.cache_class && (parent.exact || !e.exact), "entry {} ranks above its parent", i);
    if (parent.references == 0) {
      DI_CHECK(expiry(parent) >= expiry(e), "entry {} expires after its parent", i);
      DI_CHECK(parent.cache_class > e.cache_class || walk.places[p] > walk.places[i], "entry {} comes after its parent", i);
    }
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].page == kNoPage) continue;
    DI_CHECK(entries_[i].children == walk.children[i] && entries_[i].pinned_children == walk.pinned_children[i],
             "entry {} has {} children, {} pinned", i, walk.children[i], walk.pinned_children[i]);
  }
}

}  // namespace deepinfer
