#include "engine/memory_tiers.h"

#include <chrono>
#include <cstring>

namespace deepinfer::testing {

class MemoryTiers::Pull final : public KvPull {
 public:
  Pull(const MemoryTiers& tiers, std::vector<Page> from, std::vector<uint8_t*> into)
      : tiers_(tiers), from_(std::move(from)), into_(std::move(into)) {
    result_.pages_by_tier.assign(1, 0);
    result_.bytes_by_tier.assign(1, 0);
    thread_ = std::thread([this] { work(); });
  }
  ~Pull() override {
    cancel();
    thread_.join();
  }
  bool wait(int64_t group) override {
    std::unique_lock lock(mutex_);
    news_.wait(lock, [&] { return done_ || arrived_ > group; });
    return result_.miss == KvStoreMiss::kNone || !done_;
  }
  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void cancel() override { cancelled_ = true; }
  const Result& result() const override { return result_; }

 private:
  void work() {
    const auto groups = static_cast<int64_t>(tiers_.shape_.group_bytes.size());
    KvStoreMiss miss = KvStoreMiss::kNone;
    int64_t good = static_cast<int64_t>(from_.size());
    for (int64_t group = 0; group < groups && miss == KvStoreMiss::kNone; ++group) {
      if (tiers_.seconds_per_group > 0) std::this_thread::sleep_for(std::chrono::duration<double>(tiers_.seconds_per_group));
      if (cancelled_) {
        miss = KvStoreMiss::kCancelled;
        good = 0;
        break;
      }
      const auto offset = static_cast<size_t>(tiers_.shape_.group_offset(group));
      const auto bytes = static_cast<size_t>(tiers_.shape_.group_bytes[static_cast<size_t>(group)]);
      for (size_t page = 0; page < from_.size(); ++page) {
        if (group == tiers_.failing_group && static_cast<int64_t>(page) == tiers_.failing_page) {
          std::memset(into_[page] + offset, 0xff, bytes);  // what a torn read leaves
          miss = KvStoreMiss::kCorrupt;
          good = static_cast<int64_t>(page);
        } else {
          std::memcpy(into_[page] + offset, from_[page].bytes.data() + offset, bytes);
        }
      }
      if (miss != KvStoreMiss::kNone) {
        // The pages before it come whole all the same.
        for (int64_t page = 0; page < good; ++page)
          std::memcpy(into_[static_cast<size_t>(page)], from_[static_cast<size_t>(page)].bytes.data(), from_[0].bytes.size());
        break;
      }
      const std::lock_guard lock(mutex_);
      arrived_ = group + 1;
      news_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    result_.good_pages = good;
    result_.miss = miss;
    result_.pages_by_tier[0] = good;
    result_.bytes_by_tier[0] = good * tiers_.shape_.page_bytes();
    result_.end = 1;
    done_ = true;
    news_.notify_all();
  }

  const MemoryTiers& tiers_;
  const std::vector<Page> from_;
  const std::vector<uint8_t*> into_;
  mutable std::mutex mutex_;
  std::condition_variable news_;
  int64_t arrived_ = 0;
  bool done_ = false;
  std::atomic<bool> cancelled_ = false;
  Result result_;
  std::thread thread_;
};

void MemoryTiers::match(std::vector<PrefixKey> keys, bool exact_only, std::function<void(KvTierMatch)> done) {
  std::unique_lock lock(mutex_);
  KvTierMatch match;
  match.reason = KvStoreMiss::kNone;
  for (const PrefixKey& key : keys) {
    const auto found = pages_.find({key.high, key.low});
    if (found == pages_.end() || (exact_only && !found->second.exact)) {
      match.reason = found == pages_.end() ? KvStoreMiss::kNotStored : KvStoreMiss::kInexact;
      break;
    }
    match.exact = match.exact && found->second.exact;
    ++match.pages;
  }
  if (match.pages > 0) match.runs.push_back({0, match.pages});
  lock.unlock();
  done(std::move(match));
}

std::unique_ptr<KvPull> MemoryTiers::pull(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
                                          const KvPullTerms& terms) {
  (void)match;
  (void)terms;
  const std::lock_guard lock(mutex_);
  std::vector<Page> from;
  for (const PrefixKey& key : keys) from.push_back(pages_.at({key.high, key.low}));
  return std::make_unique<Pull>(*this, std::move(from), std::move(pages));
}

int64_t MemoryTiers::write_back(const KvStoreWrite& page) {
  const std::lock_guard lock(mutex_);
  Page& kept = pages_[{page.key.high, page.key.low}];
  if (!kept.bytes.empty() && kept.exact) return 0;
  kept.bytes.assign(page.page.begin(), page.page.end());
  kept.exact = page.exact;
  return 0;
}

}  // namespace deepinfer::testing
