#include "cache/page_table.h"

#include <algorithm>
#include <utility>

#include "cache/kv_cache.h"

namespace deepinfer {

PageTable::~PageTable() { return_state(); }

PageTable::PageTable(PageTable&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)), state_(std::exchange(other.state_, nullptr)) {}

PageTable& PageTable::operator=(PageTable&& other) noexcept {
  if (this == &other) return *this;
  return_state();
  cache_ = std::exchange(other.cache_, nullptr);
  state_ = std::exchange(other.state_, nullptr);
  return *this;
}

void PageTable::return_state() {
  if (state_ == nullptr) return;
  release_all();
  state_->lent = false;
  cache_->spare_states_.push_back(state_);
  state_ = nullptr;
}

void PageTable::push(PageId page) {
  state_->pages.push_back(page);
  state_->data.push_back(cache_->pool_->data(page));
}

Status PageTable::adopt(std::span<const PrefixKey> keys, int64_t count) {
  PageTableState& s = *state_;
  if (size() != 0) return Status::FailedPrecondition("adopt: the table has {} pages, must be empty", size());
  if (count < 0 || count > static_cast<int64_t>(keys.size())) {
    return Status::OutOfRange("adopt: {} pages of {} keys", count, keys.size());
  }
  const auto refuse = [&s](Status status) {
    s.entries.clear();
    return status;
  };
  for (int64_t i = 0; i < count; ++i) {
    const CacheEntryId id = cache_->find(keys[static_cast<size_t>(i)]);
    if (id == kNoEntry) return refuse(Status::NotFound("adopt: page {} of {} is not cached", i, count));
    const KvCache::Entry& e = cache_->entry(id);
    if (e.parent != (i == 0 ? kNoEntry : s.entries.back())) {
      return refuse(Status::InvalidArgument("adopt: key {} of {} does not follow from the one before", i, count));
    }
    if (s.exact_only && !e.exact) return refuse(Status::FailedPrecondition("adopt: page {} of {} is inexact", i, count));
    s.entries.push_back(id);
  }
  for (int64_t i = 0; i < count; ++i) {
    const CacheEntryId id = s.entries[static_cast<size_t>(i)];
    cache_->reference(id);  // before the page: as long as the entry is unreferenced, references of its page are counted
    cache_->raise_class(id, s.cache_class);
    const KvCache::Entry& e = cache_->entry(id);
    cache_->pool_->add_reference(e.page);
    push(e.page);
    if (!e.exact) s.first_inexact = std::min(s.first_inexact, i);
  }
  KvCacheStats& counts = cache_->counts_;
  ++counts.queries;
  counts.queried_pages += static_cast<int64_t>(keys.size());
  counts.hit_pages += count;
  if (count > 0) ++counts.hits[static_cast<size_t>(s.cache_class)];
  return Status::Ok();
}

bool PageTable::grow(int64_t pages, double now) {
  DI_CHECK(pages >= 0, "grow by {} pages", pages);
  cache_->touch(now);
  if (pages > cache_->available()) return false;
  cache_->make_room(pages);
  for (int64_t i = 0; i < pages; ++i) push(cache_->pool_->allocate());
  return true;
}

void PageTable::publish(std::span<const PrefixKey> keys, bool exact, double now) {
  cache_->touch(now);
  if (!cache_->options_.enable_prefix_caching) return;
  PageTableState& s = *state_;
  DI_CHECK(static_cast<int64_t>(keys.size()) <= size(), "{} keys of {} pages", keys.size(), size());
  if (keys.size() <= s.entries.size()) return;
  CacheEntryId parent = s.entries.empty() ? kNoEntry : s.entries.back();
  DI_CHECK(parent == kNoEntry || cache_->entry(parent).key == keys[s.entries.size() - 1],
           "the keys of {} published pages have changed", s.entries.size());
  for (size_t i = s.entries.size(); i < keys.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    if (!exact) s.first_inexact = std::min(s.first_inexact, number);
    parent = cache_->publish_page(keys[i], parent, s.pages[i], number < s.first_inexact, s.cache_class);
    s.entries.push_back(parent);
    // The page of a fork that the other table published as inexact: it is one page, so it is inexact here too.
    const KvCache::Entry& e = cache_->entry(parent);
    if (e.page == s.pages[i] && !e.exact) s.first_inexact = std::min(s.first_inexact, number);
  }
}

void PageTable::shrink(int64_t count) {
  DI_CHECK(count >= 0 && count <= size() - published(), "shrink by {} of {} pages, {} published", count, size(), published());
  PageTableState& s = *state_;
  for (int64_t i = 0; i < count; ++i) {
    cache_->drop_page(s.pages.back());
    s.pages.pop_back();
    s.data.pop_back();
  }
}

PageTable PageTable::fork(int64_t full_pages) const {
  DI_CHECK(full_pages >= 0 && full_pages <= size(), "fork {} of {} pages", full_pages, size());
  PageTable table = cache_->new_table(state_->cache_class, state_->exact_only);
  const auto pages = static_cast<size_t>(full_pages);
  for (size_t i = 0; i < std::min(pages, state_->entries.size()); ++i) {
    cache_->reference(state_->entries[i]);
    table.state_->entries.push_back(state_->entries[i]);
  }
  for (size_t i = 0; i < pages; ++i) {
    cache_->pool_->add_reference(state_->pages[i]);
    table.push(state_->pages[i]);
  }
  if (state_->first_inexact < full_pages) table.state_->first_inexact = state_->first_inexact;
  return table;
}

void PageTable::release(double now) {
  cache_->touch(now);
  release_all();
}

void PageTable::release_all() {
  PageTableState& s = *state_;
  // From the end: what is released first is evicted first, and no page may go before those behind it.
  while (!s.entries.empty()) {
    cache_->unreference(s.entries.back());
    s.entries.pop_back();
  }
  while (!s.pages.empty()) {
    cache_->drop_page(s.pages.back());
    s.pages.pop_back();
  }
  s.data.clear();
  s.first_inexact = std::numeric_limits<int64_t>::max();
}

}  // namespace deepinfer
