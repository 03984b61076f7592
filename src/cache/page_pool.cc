#include "cache/page_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace deepinfer {
namespace {

constexpr int64_t kAlignment = 64;
// 7 TiB of the released model's pages. Bookkeeping takes memory for each page, which a wrong page size must not blow up.
constexpr int64_t kMaxPages = int64_t{1} << 26;

// Under the address sanitizer a free page must not be touched: whoever still reads it (a step in flight, say) is reported.
void set_touchable([[maybe_unused]] uint8_t* page, [[maybe_unused]] int64_t bytes, [[maybe_unused]] bool touchable) {
#if defined(__SANITIZE_ADDRESS__)
  if (touchable) {
    ASAN_UNPOISON_MEMORY_REGION(page, static_cast<size_t>(bytes));
  } else {
    ASAN_POISON_MEMORY_REGION(page, static_cast<size_t>(bytes));
  }
#endif
}

}  // namespace

Result<std::unique_ptr<PagePool>> PagePool::Create(int64_t page_bytes, int64_t budget_bytes, Arena own) {
  if (page_bytes <= 0) return Err(Status::InvalidArgument("page_bytes: {}, must be at least 1", page_bytes));
  if (budget_bytes < page_bytes) {
    return Err(Status::InvalidArgument("{} bytes hold no page of {} bytes", budget_bytes, page_bytes));
  }
  // From here on 0 < page_bytes <= budget_bytes, and every product below stays within the budget.
  if (page_bytes > std::numeric_limits<int64_t>::max() - (kAlignment - 1)) {
    return Err(Status::OutOfRange("page_bytes: {}, the limit is {}", page_bytes,
                                  std::numeric_limits<int64_t>::max() - (kAlignment - 1)));
  }
  const int64_t stride = (page_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const int64_t count = budget_bytes / stride;
  if (count == 0) {
    return Err(Status::InvalidArgument("{} bytes hold no page of {} bytes, which takes {}", budget_bytes, page_bytes, stride));
  }
  if (count > kMaxPages) {
    return Err(Status::OutOfRange("{} bytes make {} pages of {} bytes, the limit is {} pages", budget_bytes, count, page_bytes,
                                  kMaxPages));
  }
  const auto bytes = static_cast<size_t>(count * stride);
  if (own.allocate) {
    auto* data = static_cast<uint8_t*>(own.allocate(count * stride));
    if (data == nullptr) {
      return Err(Status::ResourceExhausted("{} bytes: no memory for {} pages of {} bytes", budget_bytes, count, page_bytes));
    }
    return std::unique_ptr<PagePool>(new PagePool(data, page_bytes, stride, count, std::move(own.free)));
  }
  void* arena = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    return Err(Status::ResourceExhausted("{} bytes: cannot map {} pages of {} bytes: {}", budget_bytes, count, page_bytes,
                                         std::strerror(errno)));
  }
  return std::unique_ptr<PagePool>(new PagePool(static_cast<uint8_t*>(arena), page_bytes, stride, count, {}));
}

PagePool::PagePool(uint8_t* data, int64_t page_bytes, int64_t stride, int64_t count, std::function<void(void*)> free)
    : arena_(data),
      free_(std::move(free)),
      page_bytes_(page_bytes),
      stride_(stride),
      free_count_(count),
      references_(static_cast<size_t>(count), 0),
      next_free_(static_cast<size_t>(count), kNoPage) {}

PagePool::~PagePool() {
  for (PageId page = first_free_; page != kNoPage; page = next_free_[index(page)]) set_touchable(page, true);
  if (free_) {
    free_(arena_);
  } else {
    ::munmap(arena_, static_cast<size_t>(total() * stride_));
  }
}

void PagePool::set_touchable(PageId page, bool touchable) {
  if (!free_) deepinfer::set_touchable(data(page), stride_, touchable);
}

size_t PagePool::index(PageId page) const {
  DI_CHECK(page >= 0 && page < total(), "page {} of {}", page, total());
  return static_cast<size_t>(page);
}

uint8_t* PagePool::data(PageId page) { return arena_ + static_cast<int64_t>(index(page)) * stride_; }

PageId PagePool::page_at(const uint8_t* data) const {
  const int64_t offset = data - arena_;
  DI_CHECK(offset >= 0 && offset % stride_ == 0 && offset / stride_ < total(), "no page begins at byte {} of the arena", offset);
  return static_cast<PageId>(offset / stride_);
}

PageId PagePool::allocate() {
  PageId page = first_free_;
  if (page != kNoPage) {
    first_free_ = next_free_[index(page)];
    set_touchable(page, true);
  } else if (fresh_ < total()) {
    page = fresh_++;
  } else {
    return kNoPage;
  }
  references_[index(page)] = 1;
  --free_count_;
  return page;
}

void PagePool::add_reference(PageId page) {
  int32_t& references = references_[index(page)];
  DI_CHECK(references > 0 && references < std::numeric_limits<int32_t>::max(), "page {} has {} references", page, references);
  ++references;
}

void PagePool::release(PageId page) {
  int32_t& references = references_[index(page)];
  DI_CHECK(references > 0, "page {} is free already", page);
  if (--references > 0) return;
  next_free_[index(page)] = first_free_;
  first_free_ = page;
  ++free_count_;
  set_touchable(page, false);
}

void PagePool::check_invariants() const {
  int64_t listed = 0;
  for (PageId page = first_free_; page != kNoPage; page = next_free_[index(page)]) {
    DI_CHECK(page < fresh_ && references(page) == 0, "page {} on the free list has {} references", page, references(page));
    ++listed;
    DI_CHECK(listed <= total(), "the free list is a ring");
  }
  int64_t used = 0;
  for (PageId page = 0; page < total(); ++page) {
    DI_CHECK(references(page) >= 0 && (page < fresh_ || references(page) == 0), "page {}: {} references", page, references(page));
    used += references(page) > 0 ? 1 : 0;
  }
  DI_CHECK(listed + (total() - fresh_) == free_count_ && used + free_count_ == total(),
           "{} listed, {} never used, {} free, {} used of {}", listed, total() - fresh_, free_count_, used, total());
}

}  // namespace deepinfer
