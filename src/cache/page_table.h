#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/kv_cache_options.h"
#include "cache/page_pool.h"
#include "cache/prefix_key.h"

namespace deepinfer {

class KvCache;

/// Position of an entry in the cache's index.
using CacheEntryId = int32_t;
inline constexpr CacheEntryId kNoEntry = -1;

/// What one table holds. It belongs to the cache, which lends it to one PageTable after the other: vectors keep their capacity.
struct PageTableState {
  std::vector<PageId> pages;          ///< one reference on each
  std::vector<uint8_t*> data;         ///< where those pages lie
  std::vector<CacheEntryId> entries;  ///< of the first pages; one reference on each, the page of an entry may be another one
  int64_t first_inexact = std::numeric_limits<int64_t>::max();  ///< pages from here on follow a bounded replay
  CacheClass cache_class = CacheClass::kChat;
  bool exact_only = false;
  bool lent = false;
};

/// The pages of one sequence, in order: exactly what the sequence owns, and nothing else owns it for the sequence. The first
/// `published()` of them are in the index, adopted from there or published by this table. Those are immutable, and so are pages
/// that a fork shares; the sequence writes only behind them. Destroying or releasing the table gives everything back.
///
/// A published page references its index entry and not only its memory. So the chain of entries that leads to a live page stays,
/// even where two sequences computed the same page and the entry holds the other's copy.
///
/// A default-constructed or moved-from table belongs to no cache; it can only be assigned, destroyed and compared with `valid()`.
class PageTable {
 public:
  PageTable() = default;
  ~PageTable();
  PageTable(PageTable&& other) noexcept;
  PageTable& operator=(PageTable&& other) noexcept;

  bool valid() const { return state_ != nullptr; }
  CacheClass cache_class() const { return state_->cache_class; }
  int64_t size() const { return static_cast<int64_t>(state_->pages.size()); }
  int64_t published() const { return static_cast<int64_t>(state_->entries.size()); }
  /// False once a page was adopted or published as inexact: every later page follows from it.
  bool exact() const { return state_->first_inexact >= size(); }
  /// Where the pages lie, in order. Valid until the next call that changes the table; the pages themselves do not move.
  std::span<uint8_t* const> data() const { return state_->data; }

  /// Takes the first `count` pages of `keys` out of the index, without a copy. Each call counts as one query of keys.size()
  /// pages, so call it for a miss as well, with count 0. On error (the table is not empty, a page is gone or inexact) nothing has
  /// changed.
  Status adopt(std::span<const PrefixKey> keys, int64_t count);

  /// Adds `pages` private pages, evicting cached ones as needed; false, and nothing has changed, when `available()` is less.
  [[nodiscard]] bool grow(int64_t pages, double now);

  /// Puts pages into the index for others. `keys`: of all full pages from the start of the sequence, at most size(); those
  /// published before are skipped. Call it when the pages are written and will not be taken back. `exact`: no bounded replay came
  /// before them; counts only as long as all pages before are exact. Where another sequence was first, its page stays in the
  /// index and this table keeps its own copy, except that an exact page takes the place of an inexact one.
  void publish(std::span<const PrefixKey> keys, bool exact, double now);

  /// Gives the last `count` pages back, none of which may be published.
  void shrink(int64_t count);

  /// A second table that shares the first `full_pages` pages, without a copy. From now on neither table may write to them.
  PageTable fork(int64_t full_pages) const;

  /// Gives everything back; the table is empty then and may be used anew. Cached pages were last used at `now`. The destructor,
  /// which cannot know the time, takes that of the cache's last operation.
  void release(double now);

 private:
  friend class KvCache;
  PageTable(KvCache* cache, PageTableState* state) : cache_(cache), state_(state) {}
  void push(PageId page);
  void release_all();
  void return_state();

  KvCache* cache_ = nullptr;
  PageTableState* state_ = nullptr;
};

}  // namespace deepinfer
