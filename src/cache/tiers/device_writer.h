#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cache/kv_tiers.h"
#include "cache/tiers/staging_pages.h"

namespace deepinfer {

/// Brings pages of a device into pinned memory, in batches, and gives them to the tiers below from there.
class DeviceWriter {
 public:
  DeviceWriter(std::shared_ptr<KvTiers> below, PageCopies* copies, std::shared_ptr<StagingPages> staging);
  /// Ends with what is queued.
  ~DeviceWriter();
  DeviceWriter(const DeviceWriter&) = delete;
  DeviceWriter& operator=(const DeviceWriter&) = delete;

  /// As KvTiers::write_back, copied and flush.
  int64_t push(const KvStoreWrite& page);
  int64_t copied() const;
  void flush();
  /// Pages that the tiers below have not been given yet.
  int64_t queued() const;
  /// Pages for which there was no room.
  int64_t dropped() const;

 private:
  struct Queued {
    KvStoreWrite write;  ///< of the device's memory
    uint8_t* staged = nullptr;
  };
  void work();
  void write(std::vector<Queued>& batch, PageCopies::Fence after);

  const std::shared_ptr<KvTiers> below_;
  PageCopies* const copies_;
  const std::shared_ptr<StagingPages> staging_;

  mutable std::mutex mutex_;  ///< of everything below
  std::condition_variable changed_;
  std::vector<Queued> queue_;
  PageCopies::Fence after_ = 0;  ///< the last that a queued page needs
  int64_t pushed_ = 0, copied_ = 0, handed_ = 0;
  int64_t dropped_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
