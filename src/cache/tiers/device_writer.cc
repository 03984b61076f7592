#include "cache/tiers/device_writer.h"

#include <utility>

namespace deepinfer {

DeviceWriter::DeviceWriter(std::shared_ptr<KvTiers> below, PageCopies* copies, std::shared_ptr<StagingPages> staging)
    : below_(std::move(below)), copies_(copies), staging_(std::move(staging)) {
  thread_ = std::thread([this] { work(); });
}

DeviceWriter::~DeviceWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t DeviceWriter::push(const KvStoreWrite& page) {
  if (!below_->writes(page.cache_class)) return below_->write_back(page);  // which counts it, and does not look at it
  const std::vector<uint8_t*> staged = staging_->try_acquire(1);
  int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (staged.empty()) {
      ++dropped_;
      return 0;
    }
    queue_.push_back({page, staged.front()});
    after_ = copies_->last_fence();
    number = ++pushed_;
  }
  changed_.notify_all();
  return number;
}

int64_t DeviceWriter::copied() const {
  const std::lock_guard lock(mutex_);
  return copied_;
}

void DeviceWriter::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return handed_ == pushed_; });
}

int64_t DeviceWriter::queued() const {
  const std::lock_guard lock(mutex_);
  return pushed_ - handed_;
}

int64_t DeviceWriter::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void DeviceWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::vector<Queued> batch = std::exchange(queue_, {});
    const PageCopies::Fence after = after_;
    lock.unlock();
    write(batch, after);
    lock.lock();
  }
}

void DeviceWriter::write(std::vector<Queued>& batch, PageCopies::Fence after) {
  std::vector<CopyPiece> pieces;
  for (const Queued& page : batch) {
    // The span names memory of the device, which nothing but the copy reads.
    pieces.push_back({.device = const_cast<uint8_t*>(page.write.page.data()),
                      .host = page.staged,
                      .bytes = static_cast<int64_t>(page.write.page.size())});
  }
  copies_->wait(copies_->to_host(pieces, after));
  {
    const std::lock_guard lock(mutex_);
    copied_ += static_cast<int64_t>(batch.size());
  }
  for (Queued& page : batch) {
    page.write.page = {page.staged, page.write.page.size()};
    below_->write_back(page.write);
    staging_->release({&page.staged, 1});
    const std::lock_guard lock(mutex_);
    ++handed_;
  }
  changed_.notify_all();
}

}  // namespace deepinfer
