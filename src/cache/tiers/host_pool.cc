#include "cache/tiers/host_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace deepinfer {

Status HostPoolOptions::validate(const KvPageShape& shape) const {
  if (capacity_bytes < shape.page_bytes()) {
    return Status::OutOfRange("capacity_bytes: {}, must hold a page of {} bytes", capacity_bytes, shape.page_bytes());
  }
  return retention.validate();
}

Result<std::unique_ptr<HostPool>> HostPool::Create(const KvPageShape& shape, const HostPoolOptions& options,
                                                   PagePool::Arena arena) {
  DI_RETURN_IF_ERROR(options.validate(shape));
  Result<std::unique_ptr<PagePool>> pool = PagePool::Create(shape.page_bytes(), options.capacity_bytes, std::move(arena));
  if (!pool) return Err(pool.error().with_context("capacity_bytes"));
  return std::unique_ptr<HostPool>(new HostPool(shape, options, *std::move(pool)));
}

HostPool::HostPool(KvPageShape shape, const HostPoolOptions& options, std::unique_ptr<PagePool> pool)
    : shape_(std::move(shape)), options_(options), pool_(std::move(pool)) {}

size_t HostPool::limit(CacheClass c) const {
  return static_cast<size_t>(static_cast<double>(pool_->total()) * options_.retention.max_fraction[static_cast<size_t>(c)]);
}

KvStoreMatch HostPool::match(std::span<const PrefixKey> keys, bool exact_only, double now, std::stop_token) {
  KvStoreMatch match;
  match.ttl_seconds = std::numeric_limits<double>::infinity();
  const std::lock_guard lock(mutex_);
  for (const PrefixKey& key : keys) {
    const auto found = index_.find(key);
    if (found == index_.end()) {
      match.reason = KvStoreMiss::kNotStored;
      break;
    }
    const Entry& entry = *found->second;
    if (entry.expiry <= now) match.reason = KvStoreMiss::kExpired;
    if (exact_only && !entry.exact) match.reason = KvStoreMiss::kInexact;
    if (match.reason != KvStoreMiss::kNone) break;
    ++match.pages;
    match.exact = match.exact && entry.exact;
    match.ttl_seconds = std::min(match.ttl_seconds, entry.expiry - now);
  }
  if (match.pages == 0) match.ttl_seconds = 0;
  return match;
}

PageId HostPool::reference(const PrefixKey& key, bool exact_only, double now, KvStoreMiss& miss) {
  const auto found = index_.find(key);
  miss = KvStoreMiss::kNone;
  if (found == index_.end()) {
    miss = KvStoreMiss::kNotStored;
  } else if (found->second->expiry <= now) {
    miss = KvStoreMiss::kExpired;
  } else if (exact_only && !found->second->exact) {
    miss = KvStoreMiss::kInexact;
  }
  if (miss != KvStoreMiss::kNone) return kNoPage;
  pool_->add_reference(found->second->page);
  return found->second->page;
}

const uint8_t* HostPool::lend(const PrefixKey& key, bool exact_only, double now, KvStoreMiss& miss) {
  const std::lock_guard lock(mutex_);
  const PageId page = reference(key, exact_only, now, miss);
  return page == kNoPage ? nullptr : pool_->data(page);
}

void HostPool::give_back(std::span<const uint8_t* const> pages) {
  const std::lock_guard lock(mutex_);
  for (const uint8_t* page : pages) pool_->release(pool_->page_at(page));
}

void HostPool::read(std::span<KvStoreRead> reads, double now, std::stop_token stop) {
  for (KvStoreRead& read : reads) {
    if (stop.stop_requested()) {
      read.miss = KvStoreMiss::kCancelled;
      continue;
    }
    PageId page = kNoPage;
    {
      const std::lock_guard lock(mutex_);
      page = reference(read.key, read.exact_only, now, read.miss);
    }
    if (page == kNoPage) continue;
    const auto bytes = static_cast<size_t>(shape_.group_bytes[static_cast<size_t>(read.group)]);
    DI_CHECK(read.into.size() == bytes, "{} bytes for a group of {}", read.into.size(), bytes);
    std::memcpy(read.into.data(), pool_->data(page) + shape_.group_offset(read.group), bytes);
    const std::lock_guard lock(mutex_);
    pool_->release(page);
  }
}

Status HostPool::write(std::span<const KvStoreWrite> pages, double now, std::stop_token stop) {
  // From the last on, so that of one prompt the first page is the last to go.
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    if (stop.stop_requested()) return Status::Cancelled("host pool: cancelled");
    DI_CHECK(static_cast<int64_t>(page->page.size()) == shape_.page_bytes(), "a page of {} bytes", page->page.size());
    if (options_.retention.keeps(page->cache_class)) write_page(*page, now);
  }
  return Status::Ok();
}

void HostPool::write_page(const KvStoreWrite& page, double now) {
  PageId room = kNoPage;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = index_.find(page.key); found != index_.end()) {
      const Place entry = found->second;
      if (entry->exact || !page.exact) {
        List& from = list(entry->cache_class);
        entry->cache_class = std::max(entry->cache_class, page.cache_class);
        place(from, entry, now);
        return;
      }
      drop(entry);
    }
    room = make_room(now);
    if (room == kNoPage) return;
  }
  // Nobody else knows the page yet.
  std::memcpy(pool_->data(room), page.page.data(), page.page.size());
  const std::lock_guard lock(mutex_);
  if (index_.contains(page.key)) {  // another thread was faster
    pool_->release(room);
    return;
  }
  List fresh;
  fresh.push_back({.key = page.key, .page = room, .exact = page.exact, .cache_class = page.cache_class, .expiry = 0});
  index_.emplace(page.key, fresh.begin());
  place(fresh, fresh.begin(), now);
}

void HostPool::place(List& from, Place entry, double now) {
  List& to = list(entry->cache_class);
  entry->expiry = now + options_.retention.ttl(entry->cache_class);
  const bool joins = &from != &to;
  auto before = to.end();
  while (before != to.begin() && (std::prev(before) == entry || std::prev(before)->expiry > entry->expiry)) --before;
  if (before != entry) to.splice(before, from, entry);
  if (joins && to.size() > limit(entry->cache_class)) drop(to.begin());
}

void HostPool::drop(Place entry) {
  pool_->release(entry->page);
  index_.erase(entry->key);
  list(entry->cache_class).erase(entry);
}

PageId HostPool::make_room(double) {
  for (;;) {
    if (const PageId page = pool_->allocate(); page != kNoPage) return page;
    List* first = nullptr;
    for (List& candidate : lists_) {
      if (!candidate.empty() && (first == nullptr || candidate.front().expiry < first->front().expiry)) first = &candidate;
    }
    if (first == nullptr) return kNoPage;
    drop(first->begin());
  }
}

Status HostPool::touch(std::span<const PrefixKey> keys, CacheClass cache_class, double now, std::stop_token) {
  const std::lock_guard lock(mutex_);
  for (size_t i = keys.size(); i-- > 0;) {
    const auto found = index_.find(keys[i]);
    if (found == index_.end()) continue;
    const Place entry = found->second;
    List& from = list(entry->cache_class);
    entry->cache_class = std::max(entry->cache_class, cache_class);
    place(from, entry, now);
  }
  return Status::Ok();
}

Status HostPool::erase(std::span<const PrefixKey> keys, std::stop_token) {
  const std::lock_guard lock(mutex_);
  for (const PrefixKey& key : keys) {
    if (const auto found = index_.find(key); found != index_.end()) drop(found->second);
  }
  return Status::Ok();
}

int64_t HostPool::pages() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(index_.size());
}

void HostPool::check_invariants() const {
  const std::lock_guard lock(mutex_);
  size_t entries = 0;
  for (size_t c = 0; c < kCacheClassCount; ++c) {
    double expiry = -std::numeric_limits<double>::infinity();
    for (auto entry = lists_[c].begin(); entry != lists_[c].end(); ++entry, ++entries) {
      const auto found = index_.find(entry->key);
      DI_CHECK(found != index_.end() && &*found->second == &*entry, "an entry is not found under its key");
      DI_CHECK(static_cast<size_t>(entry->cache_class) == c, "an entry is in the list of another class");
      DI_CHECK(entry->expiry >= expiry, "expires at {}, behind one that does at {}", entry->expiry, expiry);
      DI_CHECK(pool_->references(entry->page) >= 1, "the page of an entry is free");
      expiry = entry->expiry;
    }
    DI_CHECK(lists_[c].size() <= limit(static_cast<CacheClass>(c)), "{} entries of a class, the limit is {}", lists_[c].size(),
             limit(static_cast<CacheClass>(c)));
  }
  DI_CHECK(entries == index_.size(), "{} entries, {} keys", entries, index_.size());
  pool_->check_invariants();
}

}  // namespace deepinfer
