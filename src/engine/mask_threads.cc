#include "engine/mask_threads.h"

#include <chrono>

#include "base/status.h"

namespace deepinfer {

MaskThreads::~MaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  news_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskThreads::start(std::span<MaskRow> rows) {
  if (rows.empty()) return;
  DI_CHECK(rows.size() <= filled_.size(), "{} rows to mask, there is room for {}", rows.size(), filled_.size());
  {
    const std::lock_guard lock(mutex_);
    if (threads_.empty()) {
      for (int i = 0; i < count_; ++i) threads_.emplace_back([this] { work(); });
    }
    for (size_t i = 0; i < rows.size(); ++i) filled_[i].store(false, std::memory_order_relaxed);
    rows_ = rows;
    next_ = 0;
  }
  if (rows.size() == 1) {
    news_.notify_one();
  } else {
    news_.notify_all();
  }
}

void MaskThreads::wait(size_t row) {
  while (!filled_[row].load(std::memory_order_acquire)) {
    if (!fill_next()) filled_[row].wait(false, std::memory_order_acquire);
  }
}

void MaskThreads::finish() {
  for (size_t i = 0; i < rows_.size(); ++i) wait(i);
  const std::lock_guard lock(mutex_);
  rows_ = {};
  next_ = 0;
}

bool MaskThreads::fill_next() {
  size_t row = 0;
  {
    const std::lock_guard lock(mutex_);
    if (next_ == rows_.size()) return false;
    row = next_++;
  }
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  MaskRow& r = rows_[row];
  r.constraint->fill_draft_masks(r.drafts, r.masks);
  r.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  filled_[row].store(true, std::memory_order_release);
  filled_[row].notify_all();
  return true;
}

void MaskThreads::work() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      news_.wait(lock, [&] { return stop_ || next_ < rows_.size(); });
      if (stop_) return;
    }
    while (fill_next()) {
    }
  }
}

}  // namespace deepinfer
