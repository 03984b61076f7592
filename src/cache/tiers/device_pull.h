#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "cache/kv_tiers.h"
#include "cache/tiers/host_pool.h"
#include "cache/tiers/staging_pages.h"

namespace deepinfer {

/// A pull into a device's pages, which the one who waits for it and the thread that works on it share. It is done in parts, one
/// after the other: pages of a pinned host pool are copied from where they lie; of others, which are a pull of the tiers below,
/// as many at a time as there is pinned memory for.
class DevicePull {
 public:
  /// Since the start; of all pulls.
  struct Counts {
    std::atomic<int64_t> pulls = 0, failed = 0;
    std::atomic<int64_t> lent_pages = 0;
    std::atomic<int64_t> lent_misses[kKvStoreMissCount] = {};
  };
  struct Places {
    std::shared_ptr<KvTiers> below;
    std::shared_ptr<HostPool> host;  ///< pinned, the first tier of `below`; or none
    PageCopies* copies = nullptr;
    std::shared_ptr<StagingPages> staging;
    std::shared_ptr<Counts> counts;
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
    std::vector<uint8_t*> memory;  ///< pinned, of each page
    std::vector<PageCopies::Ticket> copies;
    int64_t pages() const { return static_cast<int64_t>(memory.size()); }
  };
  struct Stretch {
    int64_t pages = 0;
    bool lent = false;
  };
  /// Pages from `first` on that can be had in the same way.
  Stretch stretch_at(int64_t first) const;
  /// Both: false if that is all that will come.
  bool run_lent(Part& part, int64_t pages);
  bool run_staged(Part& part, int64_t pages);
  bool pull_staged(Part& part);
  KvTierMatch match_of(const Part& part) const;
  /// Groups [group, end) of the part's first `pages` pages.
  void copy(Part& part, int64_t group, int64_t end, int64_t pages);
  void wait_copies(const Part& part);
  /// Takes the result of a part into that of the pull.
  void add(const KvPull::Result& part, bool whole);

  const Places places_;
  const KvTierMatch match_;
  const std::vector<PrefixKey> keys_;
  const std::vector<uint8_t*> pages_;
  const KvPullTerms terms_;
  const PageCopies::Fence after_;
  std::stop_source stop_;

  mutable std::mutex mutex_;  ///< of everything below
  std::condition_variable changed_;
  std::unique_ptr<KvPull> below_;                        ///< of the part that is under way
  std::vector<int64_t> left_;                            ///< [groups] pages that are not on their way yet
  std::vector<std::vector<PageCopies::Ticket>> copies_;  ///< [groups]
  bool begun_ = false;
  bool failed_ = false;  ///< something won't come
  bool finished_ = false;
  KvPull::Result result_;  ///< once finished, nobody changes it
};

}  // namespace deepinfer
