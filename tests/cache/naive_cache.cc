#include "cache/naive_cache.h"

#include <algorithm>
#include <limits>

namespace deepinfer::testing {

int64_t NaiveCache::users(const Key& key) const {
  return std::count_if(tables_.begin(), tables_.end(), [&](const auto& t) {
    return std::find(t.second.published.begin(), t.second.published.end(), key) != t.second.published.end();
  });
}

bool NaiveCache::has_child(const Key& key, bool pinned_only) const {
  return std::any_of(index_.begin(), index_.end(), [&](const auto& e) {
    return e.second.has_parent && e.second.parent == key && (!pinned_only || e.second.cache_class == CacheClass::kPinned);
  });
}

std::set<int64_t> NaiveCache::held_pages(bool by_index_too) const {
  std::set<int64_t> pages;
  for (const auto& [id, table] : tables_) pages.insert(table.pages.begin(), table.pages.end());
  if (by_index_too) {
    for (const auto& [key, entry] : index_) pages.insert(entry.page);
  }
  return pages;
}

int64_t NaiveCache::available() const { return free() + cached(CacheClass::kChat) + cached(CacheClass::kAgent); }

int64_t NaiveCache::cached(CacheClass cache_class) const {
  const std::set<int64_t> in_use = held_pages(false);
  return std::count_if(index_.begin(), index_.end(), [&](const auto& e) {
    return e.second.cache_class == cache_class && users(e.first) == 0 && !in_use.contains(e.second.page);
  });
}

int64_t NaiveCache::referenced(CacheClass cache_class) const {
  return std::count_if(index_.begin(), index_.end(),
                       [&](const auto& e) { return e.second.cache_class == cache_class && users(e.first) > 0; });
}

int64_t NaiveCache::entries(CacheClass cache_class) const {
  return std::count_if(index_.begin(), index_.end(), [&](const auto& e) { return e.second.cache_class == cache_class; });
}

double NaiveCache::expiry(const Entry& entry) const {
  if (entry.cache_class == CacheClass::kPinned) return std::numeric_limits<double>::infinity();
  return entry.last_use + (entry.cache_class == CacheClass::kChat ? options_.chat_ttl_seconds : options_.agent_ttl_seconds);
}

PrefixMatch NaiveCache::match(std::span<const PrefixKey> keys, bool exact_only) const {
  PrefixMatch result;
  if (keys.empty()) {
    result.reason = MissReason::kTooShort;
    return result;
  }
  const std::set<int64_t> in_use = held_pages(false);
  const auto cached = [&](size_t i) { return i < keys.size() && index_.contains(key_of(keys[i])); };
  size_t i = 0;
  for (; cached(i); ++i) {
    const Key key = key_of(keys[i]);
    const Entry& entry = index_.at(key);
    if (exact_only && !entry.exact) break;
    result.exact &= entry.exact;
    if (users(key) == 0 && entry.cache_class != CacheClass::kPinned && !in_use.contains(entry.page)) ++result.evictable;
  }
  result.pages = static_cast<int64_t>(i);
  if (i == keys.size()) return result;
  result.reason = cached(i) ? MissReason::kInexact : MissReason::kNotCached;
  for (; cached(i); ++i) ++result.inexact_refused;
  return result;
}

NaiveCache::Table& NaiveCache::add_table(CacheClass cache_class, bool exact_only) {
  Table& table = tables_[next_table_++];
  table.cache_class = cache_class;
  table.exact_only = exact_only;
  return table;
}

void NaiveCache::raise(Entry& entry, CacheClass wanted) {
  if (wanted <= entry.cache_class) return;
  const bool parent_pinned = !entry.has_parent || index_.at(entry.parent).cache_class == CacheClass::kPinned;
  const auto limit = static_cast<int64_t>(options_.max_pinned_fraction * static_cast<double>(total_));
  if (wanted == CacheClass::kPinned && (!parent_pinned || entries(CacheClass::kPinned) >= limit)) wanted = CacheClass::kAgent;
  entry.cache_class = std::max(entry.cache_class, wanted);
}

void NaiveCache::adopt(Table& table, std::span<const PrefixKey> keys, int64_t count) {
  for (const PrefixKey& k : keys.first(static_cast<size_t>(count))) {
    Entry& entry = index_.at(key_of(k));
    raise(entry, table.cache_class);
    table.pages.push_back(entry.page);
    table.published.push_back(key_of(k));
    table.exact.push_back(entry.exact);
  }
}

std::map<NaiveCache::Key, NaiveCache::Entry>::iterator NaiveCache::victim() {
  auto best = index_.end();
  for (auto it = index_.begin(); it != index_.end(); ++it) {
    if (users(it->first) > 0 || it->second.cache_class == CacheClass::kPinned || has_child(it->first, false)) continue;
    const auto rank = [this](const Entry& e) { return std::tuple(expiry(e), e.cache_class, e.released); };
    if (best == index_.end() || rank(it->second) < rank(best->second)) best = it;
  }
  return best;
}

bool NaiveCache::grow(Table& table, int64_t pages, double /*now*/) {
  if (pages > available()) return false;
  while (free() < pages) index_.erase(victim());
  for (int64_t i = 0; i < pages; ++i) table.pages.push_back(next_page_++);
  return true;
}

void NaiveCache::publish(Table& table, std::span<const PrefixKey> keys, bool exact, double /*now*/) {
  for (size_t i = table.published.size(); i < keys.size(); ++i) {
    const Key key = key_of(keys[i]);
    const bool own_exact = exact && std::find(table.exact.begin(), table.exact.end(), false) == table.exact.end();
    auto found = index_.find(key);
    if (found == index_.end()) {
      Entry entry;
      entry.has_parent = i > 0;
      if (i > 0) entry.parent = table.published[i - 1];
      entry.page = table.pages[i];
      entry.exact = own_exact;
      found = index_.emplace(key, entry).first;
    } else if (own_exact && !found->second.exact && found->second.page != table.pages[i]) {
      found->second.page = table.pages[i];
      found->second.exact = true;
    }
    table.published.push_back(key);
    table.exact.push_back(own_exact && (found->second.page != table.pages[i] || found->second.exact));
    raise(found->second, table.cache_class);
  }
}

NaiveCache::Table& NaiveCache::fork(const Table& table, int64_t full_pages) {
  Table& copy = add_table(table.cache_class, table.exact_only);
  const auto pages = static_cast<size_t>(full_pages);
  const size_t published = std::min(pages, table.published.size());
  copy.pages.assign(table.pages.begin(), table.pages.begin() + static_cast<ptrdiff_t>(pages));
  copy.published.assign(table.published.begin(), table.published.begin() + static_cast<ptrdiff_t>(published));
  copy.exact.assign(table.exact.begin(), table.exact.begin() + static_cast<ptrdiff_t>(published));
  return copy;
}

void NaiveCache::drop_last_user(const Key& key, double now) {
  if (users(key) > 0) return;
  index_.at(key).last_use = now;
  index_.at(key).released = next_release_++;
}

void NaiveCache::release(Table& table, double now) {
  while (!table.published.empty()) {
    const Key key = table.published.back();
    table.published.pop_back();
    drop_last_user(key, now);
  }
  table.pages.clear();
  table.exact.clear();
}

void NaiveCache::remove_table(Table& table, double now) {
  release(table, now);
  std::erase_if(tables_, [&](const auto& t) { return &t.second == &table; });
}

int64_t NaiveCache::expire(double now) {
  int64_t count = 0;
  for (auto it = victim(); it != index_.end() && expiry(it->second) <= now; it = victim(), ++count) index_.erase(it);
  return count;
}

int64_t NaiveCache::unpin(std::span<const PrefixKey> keys, double now) {
  size_t present = 0;
  while (present < keys.size() && index_.contains(key_of(keys[present]))) ++present;
  int64_t count = 0;
  while (present > 0) {
    const Key key = key_of(keys[--present]);
    if (index_.at(key).cache_class != CacheClass::kPinned) continue;
    if (has_child(key, true)) break;
    index_.at(key).cache_class = CacheClass::kAgent;
    drop_last_user(key, now);
    ++count;
  }
  return count;
}

int64_t NaiveCache::unpin_all(double now) {
  int64_t count = 0;
  for (;;) {
    // Of those without a pinned child, the one that was released first: what the list of the class has in front.
    auto best = index_.end();
    for (auto it = index_.begin(); it != index_.end(); ++it) {
      if (it->second.cache_class != CacheClass::kPinned || has_child(it->first, true)) continue;
      if (best == index_.end() || it->second.released < best->second.released) best = it;
    }
    if (best == index_.end()) return count;
    best->second.cache_class = CacheClass::kAgent;
    drop_last_user(best->first, now);
    ++count;
  }
}

void NaiveCache::clear() {
  std::erase_if(index_, [this](const auto& e) { return users(e.first) == 0; });
}

}  // namespace deepinfer::testing
