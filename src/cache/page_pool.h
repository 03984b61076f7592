#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"

namespace deepinfer {

using PageId = int32_t;
inline constexpr PageId kNoPage = -1;

/// Pages of one size with reference counts, in one arena. Memory is taken from the system when a page is first written, so a
/// generous budget costs nothing until it is used. Single-threaded.
///
/// Invariant: every page below `fresh_` is either referenced or on the free list, never both; pages from `fresh_` on have never
/// been handed out.
class PagePool {
 public:
  /// Where the pages lie. Empty: in memory of the system's.
  struct Arena {
    std::function<void*(int64_t bytes)> allocate;
    std::function<void(void*)> free;
  };
  /// As many pages of `page_bytes` (rounded up to 64) as fit into `budget_bytes`; an error when that is none.
  static Result<std::unique_ptr<PagePool>> Create(int64_t page_bytes, int64_t budget_bytes, Arena arena = {});
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// A page with one reference, or kNoPage. The page freed last comes first: it is the likeliest to be in a cache of the CPU.
  /// Its content is whatever it last held, zeros when it is new.
  PageId allocate();
  void add_reference(PageId page);
  /// Takes one reference back; without any left, the page is free.
  void release(PageId page);

  /// 64-byte aligned, page_bytes() long; stays where it is as long as the pool.
  uint8_t* data(PageId page);
  /// The page that `data` gives this address for.
  PageId page_at(const uint8_t* data) const;

  int64_t page_bytes() const { return page_bytes_; }
  int64_t total() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_count() const { return free_count_; }
  /// 0 for a free page.
  int32_t references(PageId page) const { return references_[index(page)]; }

  void check_invariants() const;

 private:
  PagePool(uint8_t* data, int64_t page_bytes, int64_t stride, int64_t count, std::function<void(void*)> free);
  void set_touchable(PageId page, bool touchable);
  /// Checked: a page number that is out of range would corrupt memory of others.
  size_t index(PageId page) const;

  uint8_t* arena_;
  std::function<void(void*)> free_;  ///< empty: the arena was mapped
  int64_t page_bytes_;
  int64_t stride_;
  int64_t free_count_;
  PageId fresh_ = 0;
  PageId first_free_ = kNoPage;
  std::vector<int32_t> references_;
  std::vector<PageId> next_free_;  ///< valid for pages on the free list
};

}  // namespace deepinfer
