#include "cache/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace deepinfer {

Result<std::unique_ptr<KvCache>> KvCache::Create(std::unique_ptr<PagePool> pool, const KvCacheOptions& options) {
  DI_CHECK(pool != nullptr, "a cache needs pages");
  DI_CHECK(pool->free_count() == pool->total(), "{} of {} pages are in use by others", pool->total() - pool->free_count(),
           pool->total());
  DI_RETURN_IF_ERROR(options.validate());
  return std::unique_ptr<KvCache>(new KvCache(std::move(pool), options));
}

KvCache::KvCache(std::unique_ptr<PagePool> pool, const KvCacheOptions& options)
    : pool_(std::move(pool)),
      options_(options),
      max_pinned_(static_cast<int64_t>(options.max_pinned_fraction * static_cast<double>(pool_->total()))),
      clock_(-std::numeric_limits<double>::infinity()) {
  // Room for as many entries as there can be, so that the index does not grow in the middle of a step.
  const auto pages = static_cast<size_t>(pool_->total());
  if (options_.enable_prefix_caching) {
    entries_.reserve(pages);
    index_.reserve(pages);
  }
  entry_of_page_.assign(pages, kNoEntry);
}

KvCache::~KvCache() {
  DI_CHECK(spare_states_.size() == states_.size(), "{} page tables outlive their cache", states_.size() - spare_states_.size());
}

// ---- lookup ---------------------------------------------------------------------------------------------------------------

CacheEntryId KvCache::find(const PrefixKey& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? kNoEntry : found->second;
}

PrefixMatch KvCache::match(std::span<const PrefixKey> keys, bool exact_only) const {
  PrefixMatch result;
  if (!options_.enable_prefix_caching) {
    result.reason = MissReason::kDisabled;
    return result;
  }
  if (keys.empty()) {
    result.reason = MissReason::kTooShort;
    return result;
  }
  for (const PrefixKey& key : keys) {
    const CacheEntryId id = find(key);
    if (id == kNoEntry) {
      if (result.reason == MissReason::kNone) result.reason = MissReason::kNotCached;
      break;
    }
    const Entry& e = entry(id);
    if (exact_only && !e.exact) {  // and so is everything behind it
      result.reason = MissReason::kInexact;
      ++result.inexact_refused;
      continue;
    }
    ++result.pages;
    result.exact = result.exact && e.exact;
    if (e.cache_class != CacheClass::kPinned && held_by_index_alone(e)) ++result.evictable;
  }
  return result;
}

PageTable KvCache::new_table(CacheClass cache_class, bool exact_only) {
  PageTableState* state = borrow_state();
  state->cache_class = cache_class;
  state->exact_only = exact_only;
  return {this, state};
}

PageTableState* KvCache::borrow_state() {
  if (spare_states_.empty()) {
    states_.push_back(std::make_unique<PageTableState>());
    spare_states_.reserve(states_.capacity());  // giving a state back, in a destructor, does not allocate
    spare_states_.push_back(states_.back().get());
  }
  PageTableState* state = spare_states_.back();
  spare_states_.pop_back();
  state->lent = true;
  return state;
}

// ---- references -----------------------------------------------------------------------------------------------------------

void KvCache::touch(double now) { clock_ = std::max(clock_, now); }

void KvCache::link(CacheEntryId id) {
  Entry& e = entry(id);
  List& l = list(e.cache_class);
  e.last_use = clock_;
  e.previous = l.last;
  e.next = kNoEntry;
  (l.last == kNoEntry ? l.first : entry(l.last).next) = id;
  l.last = id;
  ++l.size;
  if (held_by_index_alone(e)) ++cached_[static_cast<size_t>(e.cache_class)];
}

void KvCache::unlink(CacheEntryId id) {
  Entry& e = entry(id);
  List& l = list(e.cache_class);
  (e.previous == kNoEntry ? l.first : entry(e.previous).next) = e.next;
  (e.next == kNoEntry ? l.last : entry(e.next).previous) = e.previous;
  e.previous = e.next = kNoEntry;
  --l.size;
  if (held_by_index_alone(e)) --cached_[static_cast<size_t>(e.cache_class)];
}

void KvCache::reference(CacheEntryId id) {
  Entry& e = entry(id);
  if (e.references == 0) unlink(id);
  ++e.references;
}

void KvCache::unreference(CacheEntryId id) {
  Entry& e = entry(id);
  DI_CHECK(e.references > 0, "entry {} has no reference", id);
  if (--e.references == 0) link(id);
}

void KvCache::drop_page(PageId page) {
  pool_->release(page);
  const CacheEntryId id = entry_of_page_[static_cast<size_t>(page)];
  if (id == kNoEntry) return;
  // The last sequence that held the page of an unreferenced entry: from now on the entry can be turned into a free page.
  const Entry& e = entry(id);
  if (held_by_index_alone(e)) ++cached_[static_cast<size_t>(e.cache_class)];
}

// ---- classes --------------------------------------------------------------------------------------------------------------

void KvCache::set_class(Entry& e, CacheClass cache_class) {
  --members_[static_cast<size_t>(e.cache_class)];
  ++members_[static_cast<size_t>(cache_class)];
  if (e.parent != kNoEntry) {
    const auto pinned = [](CacheClass c) { return c == CacheClass::kPinned ? 1 : 0; };
    entry(e.parent).pinned_children += pinned(cache_class) - pinned(e.cache_class);
  }
  e.cache_class = cache_class;
}

// For entries that a table holds, from the start of its chain on: the parent has been raised before. Where the parent's pin was
// refused, the child's is refused too, even if a place has become free in between.
void KvCache::raise_class(CacheEntryId id, CacheClass wanted) {
  Entry& e = entry(id);
  if (wanted <= e.cache_class) return;
  const CacheClass limit = e.parent == kNoEntry ? CacheClass::kPinned : entry(e.parent).cache_class;
  const bool full = members_[static_cast<size_t>(CacheClass::kPinned)] >= max_pinned_;
  if (wanted == CacheClass::kPinned && (full || limit != CacheClass::kPinned)) {
    ++counts_.pins_refused;
    wanted = CacheClass::kAgent;
  }
  wanted = std::min(wanted, limit);
  if (wanted > e.cache_class) set_class(e, wanted);
}

void KvCache::unpin_entry(CacheEntryId id) {
  Entry& e = entry(id);
  if (e.references == 0) unlink(id);
  set_class(e, CacheClass::kAgent);
  if (e.references == 0) link(id);
}

int64_t KvCache::unpin(std::span<const PrefixKey> keys, double now) {
  touch(now);
  size_t present = 0;
  while (present < keys.size() && find(keys[present]) != kNoEntry) ++present;
  int64_t count = 0;
  while (present > 0) {
    const CacheEntryId id = find(keys[--present]);
    if (entry(id).cache_class != CacheClass::kPinned) continue;
    if (entry(id).pinned_children > 0) break;
    unpin_entry(id);
    ++count;
  }
  return count;
}

int64_t KvCache::unpin_all(double now) {
  touch(now);
  const int64_t count = members_[static_cast<size_t>(CacheClass::kPinned)];
  // The list has children before parents, and a referenced entry is in no list: its order does not matter.
  while (list(CacheClass::kPinned).first != kNoEntry) unpin_entry(list(CacheClass::kPinned).first);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (e.page != kNoPage && e.cache_class == CacheClass::kPinned) unpin_entry(static_cast<CacheEntryId>(i));
  }
  return count;
}

// ---- publishing -----------------------------------------------------------------------------------------------------------

CacheEntryId KvCache::publish_page(const PrefixKey& key, CacheEntryId parent, PageId page, bool exact, CacheClass cache_class) {
  CacheEntryId id = find(key);
  if (id == kNoEntry) {
    id = insert(key, parent, page, exact);
  } else {
    DI_CHECK(entry(id).parent == parent, "a key stands for two prefixes");
    reference(id);
    Entry& e = entry(id);
    if (e.page != page) {
      if (exact && !e.exact) {
        replace_page(e, page);
      } else {
        ++counts_.duplicates;
      }
    }
  }
  raise_class(id, cache_class);
  return id;
}

// A page is in the index at most once, so there are never more entries than pages, and the slots reserved for them suffice.
CacheEntryId KvCache::insert(const PrefixKey& key, CacheEntryId parent, PageId page, bool exact) {
  DI_CHECK(entry_of_page_[static_cast<size_t>(page)] == kNoEntry, "page {} is published under two keys", page);
  CacheEntryId id = first_unused_;
  if (id == kNoEntry) {
    id = static_cast<CacheEntryId>(entries_.size());
    entries_.emplace_back();
  } else {
    first_unused_ = entry(id).next;
  }
  Entry& e = entry(id);
  e = {};
  e.key = key;
  e.parent = parent;
  e.page = page;
  e.exact = exact;
  e.references = 1;
  if (parent != kNoEntry) ++entry(parent).children;
  ++members_[static_cast<size_t>(e.cache_class)];
  pool_->add_reference(page);
  entry_of_page_[static_cast<size_t>(page)] = id;
  index_.emplace(key, id);
  ++counts_.inserted;
  return id;
}

void KvCache::replace_page(Entry& e, PageId page) {
  DI_CHECK(entry_of_page_[static_cast<size_t>(page)] == kNoEntry, "page {} is published under two keys", page);
  const CacheEntryId id = std::exchange(entry_of_page_[static_cast<size_t>(e.page)], kNoEntry);
  pool_->add_reference(page);
  pool_->release(e.page);
  entry_of_page_[static_cast<size_t>(page)] = id;
  e.page = page;
  e.exact = true;
  ++counts_.replaced;
}

// ---- eviction -------------------------------------------------------------------------------------------------------------

double KvCache::expiry(const Entry& e) const {
  switch (e.cache_class) {
    case CacheClass::kChat:
      return e.last_use + options_.chat_ttl_seconds;
    case CacheClass::kAgent:
      return e.last_use + options_.agent_ttl_seconds;
    case CacheClass::kPinned:
      break;
  }
  return std::numeric_limits<double>::infinity();
}

// Rounding keeps the order of sums with one summand in common, so the proof in the header holds for doubles.
CacheEntryId KvCache::next_victim() {
  const CacheEntryId chat = list(CacheClass::kChat).first;
  const CacheEntryId agent = list(CacheClass::kAgent).first;
  counts_.eviction_steps += (chat != kNoEntry ? 1 : 0) + (agent != kNoEntry ? 1 : 0);
  if (chat == kNoEntry) return agent;
  if (agent == kNoEntry) return chat;
  return expiry(entry(agent)) < expiry(entry(chat)) ? agent : chat;
}

void KvCache::make_room(int64_t pages) {
  while (pool_->free_count() < pages) {
    const CacheEntryId id = next_victim();
    DI_CHECK(id != kNoEntry, "{} pages are free and nothing can be evicted, {} were promised", pool_->free_count(), pages);
    const Entry& e = entry(id);
    ++(expiry(e) <= clock_ ? counts_.expired : counts_.evicted)[static_cast<size_t>(e.cache_class)];
    remove(id);
  }
}

int64_t KvCache::expire(double now) {
  touch(now);
  int64_t count = 0;
  for (CacheEntryId id = next_victim(); id != kNoEntry && expiry(entry(id)) <= clock_; id = next_victim()) {
    ++counts_.expired[static_cast<size_t>(entry(id).cache_class)];
    remove(id);
    ++count;
  }
  return count;
}

void KvCache::clear() {
  // A child's class is at most that of its parent, and within a list children come first.
  for (List& l : lists_) {
    while (l.first != kNoEntry) {
      remove(l.first);
      ++counts_.cleared;
    }
  }
}

void KvCache::remove(CacheEntryId id) {
  unlink(id);
  Entry& e = entry(id);
  DI_CHECK(e.references == 0 && e.children == 0, "entry {} has {} references and {} children", id, e.references, e.children);
  --members_[static_cast<size_t>(e.cache_class)];
  if (e.parent != kNoEntry) {
    Entry& parent = entry(e.parent);
    --parent.children;
    if (e.cache_class == CacheClass::kPinned) --parent.pinned_children;
  }
  index_.erase(e.key);
  entry_of_page_[static_cast<size_t>(e.page)] = kNoEntry;
  pool_->release(e.page);
  e.page = kNoPage;
  e.next = first_unused_;
  first_unused_ = id;
}

// ---- figures --------------------------------------------------------------------------------------------------------------

KvCacheStats KvCache::stats() const {
  KvCacheStats result = counts_;
  result.total_pages = total_pages();
  result.free_pages = free_pages();
  result.available_pages = available();
  result.cached_pages = cached_;
  result.sequence_pages = total_pages() - free_pages();
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    result.sequence_pages -= cached_[c];
    result.referenced_pages[c] = members_[c] - lists_[c].size;
  }
  return result;
}

}  // namespace deepinfer
