#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cache/kv_tiers.h"

namespace deepinfer::testing {

/// One tier in memory, whose pulls can be made slow or fail at a chosen group and page. `match` answers within the call.
class MemoryTiers final : public KvTiers {
 public:
  explicit MemoryTiers(KvPageShape shape) : shape_(std::move(shape)) {}

  std::vector<std::string_view> tier_names() const override { return {"host"}; }
  const KvPageShape& shape() const override { return shape_; }
  void match(std::vector<PrefixKey> keys, bool exact_only, std::function<void(KvTierMatch)> done) override;
  std::unique_ptr<KvPull> pull(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
                               const KvPullTerms& terms) override;
  double pull_seconds(const KvTierMatch&) const override { return estimate; }
  void probe(const KvTierMatch&, std::span<const PrefixKey> keys) override { probed += static_cast<int64_t>(keys.size()); }
  void touch(std::span<const PrefixKey> keys, CacheClass) override { touched += static_cast<int64_t>(keys.size()); }
  int64_t write_back(const KvStoreWrite& page) override;
  void flush() override {}

  int64_t size() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(pages_.size());
  }

  int64_t failing_group = -1, failing_page = -1;
  double seconds_per_group = 0;
  double estimate = 0;              ///< what pull_seconds says
  int64_t probed = 0, touched = 0;  ///< pages

 private:
  class Pull;
  struct Page {
    std::vector<uint8_t> bytes;
    bool exact = true;
  };
  KvPageShape shape_;
  mutable std::mutex mutex_;  ///< of `pages_`: pages of a device come on another thread
  std::map<std::pair<uint64_t, uint64_t>, Page> pages_;
};

}  // namespace deepinfer::testing
