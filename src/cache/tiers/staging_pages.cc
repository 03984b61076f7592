#include "cache/tiers/staging_pages.h"

#include <algorithm>

namespace deepinfer {

Result<std::unique_ptr<StagingPages>> StagingPages::Create(PageCopies* copies, int64_t page_bytes, int64_t budget_bytes,
                                                           int64_t most) {
  constexpr int64_t kAlignment = 256;
  if (page_bytes <= 0 || page_bytes > budget_bytes) {
    return Err(
        Status::InvalidArgument("staging: page_bytes is {}, must be from 1 to the budget of {} bytes", page_bytes, budget_bytes));
  }
  const int64_t stride = (page_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const int64_t count = std::clamp<int64_t>(budget_bytes / stride, 1, std::max<int64_t>(most, 1));
  PinnedMemory data = copies->allocate_pinned(count * stride);
  if (data == nullptr) {
    return Err(Status::ResourceExhausted("staging: the system has no {} bytes of pinned memory for {} pages of {} bytes",
                                         count * stride, count, page_bytes));
  }
  return std::unique_ptr<StagingPages>(new StagingPages(std::move(data), stride, count));
}

StagingPages::StagingPages(PinnedMemory data, int64_t stride, int64_t count)
    : data_(std::move(data)), stride_(stride), taken_(static_cast<size_t>(count), false), free_(count) {}

std::vector<uint8_t*> StagingPages::take(int64_t most) {
  std::vector<uint8_t*> pages;
  for (size_t i = 0; i < taken_.size() && free_ > 0 && static_cast<int64_t>(pages.size()) < most; ++i) {
    if (taken_[i]) continue;
    taken_[i] = true;
    --free_;
    pages.push_back(data_.get() + static_cast<int64_t>(i) * stride_);
  }
  return pages;
}

std::vector<uint8_t*> StagingPages::try_acquire(int64_t most) {
  const std::lock_guard lock(mutex_);
  return take(most);
}

std::vector<uint8_t*> StagingPages::acquire(int64_t most, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!released_.wait(lock, stop, [this] { return free_ > 0; })) return {};
  return take(most);
}

void StagingPages::release(std::span<uint8_t* const> pages) {
  {
    const std::lock_guard lock(mutex_);
    for (const uint8_t* page : pages) {
      const auto at = static_cast<size_t>((page - data_.get()) / stride_);
      DI_CHECK(page >= data_.get() && at < taken_.size() && taken_[at], "a page that was not taken is given back");
      taken_[at] = false;
      ++free_;
    }
  }
  released_.notify_all();
}

int64_t StagingPages::free_count() const {
  const std::lock_guard lock(mutex_);
  return free_;
}

}  // namespace deepinfer
