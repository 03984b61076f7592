#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <vector>

#include "base/status.h"
#include "ops/page_copies.h"

namespace deepinfer {

/// A bounded number of pages in pinned memory, which others pass on their way to a device or from it. Thread-safe.
class StagingPages {
 public:
  /// As many pages as fit into `budget_bytes`, at most `most`; an error if that is none, or if the system has no such memory.
  static Result<std::unique_ptr<StagingPages>> Create(PageCopies* copies, int64_t page_bytes, int64_t budget_bytes, int64_t most);
  StagingPages(const StagingPages&) = delete;
  StagingPages& operator=(const StagingPages&) = delete;

  int64_t total() const { return static_cast<int64_t>(taken_.size()); }
  int64_t bytes() const { return total() * stride_; }

  /// Up to `most` pages, those at the lowest addresses in their order: neighbours are copied at once. None if there are none.
  std::vector<uint8_t*> try_acquire(int64_t most);
  /// Waits until there is one at least; none if stopped.
  std::vector<uint8_t*> acquire(int64_t most, const std::stop_token& stop);
  void release(std::span<uint8_t* const> pages);
  int64_t free_count() const;

 private:
  StagingPages(PinnedMemory data, int64_t stride, int64_t count);
  std::vector<uint8_t*> take(int64_t most);

  const PinnedMemory data_;
  const int64_t stride_;
  mutable std::mutex mutex_;
  std::condition_variable_any released_;
  std::vector<bool> taken_;
  int64_t free_;
};

}  // namespace deepinfer
