#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <mutex>
#include <span>

#include "cache/kv_cache_options.h"
#include "cache/prefix_key.h"
#include "deepinfer/revisit_intervals.h"

namespace deepinfer {

/// Records when prompts come back to pages, in bounded memory, for as long as a process runs. Every page is followed until there
/// are too many; from then on those whose key lies in a part of the key space that is halved whenever the table is full. Keys are
/// hashes, so that is a fair sample, and each use counts for as many as it stands for (spatial sampling; SHARDS, FAST 2015). What
/// leaves the sample has been seen for a while, which is what `open` intervals are. Thread-safe.
class RevisitRecorder {
 public:
  /// `earlier`: is added to. `most_pages`: followed at once, 32 bytes each and about as much again.
  explicit RevisitRecorder(double now, IntervalsByClass earlier = {}, size_t most_pages = size_t{1} << 16);

  /// A prompt came with these full pages. Times are of one clock; one before the latest counts as the latest.
  void record(std::span<const PrefixKey> pages, CacheClass cache_class, int64_t prompt_tokens, double now);

  /// So far: pages that are still followed count as not used again.
  IntervalsByClass snapshot(double now) const;
  /// Pages that are followed; at most `most_pages`.
  size_t followed() const;

 private:
  struct Use {
    double time = 0;
    CacheClass cache_class = CacheClass::kChat;
    uint8_t halvings = 0;  ///< of the sample, when it was counted
  };

  static bool sampled(const PrefixKey& key, int halvings) { return halvings == 0 || key.high >> (64 - halvings) == 0; }
  RevisitIntervals& of(CacheClass c) { return counts_[static_cast<size_t>(c)]; }
  void thin();

  const size_t most_pages_;
  const double begin_;
  mutable std::mutex mutex_;  ///< of everything below
  double latest_;
  int halvings_ = 0;
  boost::unordered_flat_map<PrefixKey, Use, PrefixKeyHash> last_;
  IntervalsByClass counts_;
};

}  // namespace deepinfer
