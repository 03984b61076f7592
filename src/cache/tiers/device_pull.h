#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "cache/kv_tiers.h"
#include "cache/tiers/staging_pages.h"

namespace deepinfer {

/// A pull into a device's pages, which the one who waits for it and the thread that works on it share. It is cut into parts, as
/// many pages at a time as there is pinned memory; each part is a pull of the tiers below.
class DevicePull {
 public:
  struct Places {
    std::shared_ptr<KvTiers> below;
    PageCopies* copies = nullptr;
    std::shared_ptr<StagingPages> staging;
  };
  /// `pages` belong to operators before `after`.
  DevicePull(Places places, const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
             const KvPullTerms& terms, PageCopies::Fence after);

  /// On a thread that may block: all of it.
  void run();

  // As KvPull's; `wait` for the backend's caller alone.
  bool wait(int64_t group);
  bool done() const;
  void cancel();
  const KvPull::Result& result() const { return result_; }
  void wait_done();

 private:
  struct Part {
    int64_t first = 0;
    std::vector<uint8_t*> staged;
    std::vector<PageCopies::Ticket> copies;
    int64_t pages() const { return static_cast<int64_t>(staged.size()); }
  };
  bool run_part(Part& part);
  KvTierMatch match_of(const Part& part) const;
  /// Groups [group, end) of the part's first `pages` pages.
  void copy(Part& part, int64_t group, int64_t end, int64_t pages);
  void finish();

  const Places places_;
  const KvTierMatch match_;
  const std::vector<PrefixKey> keys_;
  const std::vector<uint8_t*> pages_;
  const KvPullTerms terms_;
  const PageCopies::Fence after_;
  std::stop_source stop_;

  mutable std::mutex mutex_;  ///< of everything below
  std::condition_variable changed_;
  std::unique_ptr<KvPull> below_;                      ///< of the part that is under way
  std::vector<int64_t> left_;                          ///< [groups] pages that are not on their way yet
  std::vector<std::vector<PageCopies::Ticket>> copies_;  ///< [groups]
  bool begun_ = false;
  bool failed_ = false;  ///< something won't come
  bool finished_ = false;
  KvPull::Result result_;  ///< once finished, nobody changes it
};

}  // namespace deepinfer
