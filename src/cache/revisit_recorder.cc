#include "cache/revisit_recorder.h"

#include <algorithm>
#include <utility>

namespace deepinfer {
namespace {

constexpr int kMostHalvings = 40;  ///< weights stay far from the limits of their sums

int64_t weight(uint8_t halvings) { return int64_t{1} << halvings; }

void count_open(RevisitIntervals& intervals, double seconds, uint8_t halvings) {
  intervals.open[RevisitIntervals::bin_of(seconds)] += weight(halvings);
}

}  // namespace

RevisitRecorder::RevisitRecorder(double now, IntervalsByClass earlier, size_t most_pages)
    : most_pages_(std::max<size_t>(most_pages, 1)), begin_(now), latest_(now), counts_(std::move(earlier)) {}

void RevisitRecorder::record(std::span<const PrefixKey> pages, CacheClass cache_class, int64_t prompt_tokens, double now) {
  const std::lock_guard lock(mutex_);
  latest_ = std::max(latest_, now);
  RevisitIntervals& mine = of(cache_class);
  ++mine.requests;
  mine.prompt_tokens += prompt_tokens;
  for (const PrefixKey& page : pages) {
    if (!sampled(page, halvings_)) continue;
    const Use use{.time = latest_, .cache_class = cache_class, .halvings = static_cast<uint8_t>(halvings_)};
    mine.uses += weight(use.halvings);
    const auto [at, fresh] = last_.try_emplace(page, use);
    if (fresh) {
      if (last_.size() > most_pages_) thin();
      continue;
    }
    const Use before = std::exchange(at->second, use);
    RevisitIntervals& theirs = of(before.cache_class);
    const double seconds = latest_ - before.time;
    theirs.ended[RevisitIntervals::bin_of(seconds)] += weight(before.halvings);
    theirs.ended_seconds += seconds * static_cast<double>(weight(before.halvings));
  }
}

void RevisitRecorder::thin() {
  while (last_.size() > most_pages_ && halvings_ < kMostHalvings) {
    ++halvings_;
    erase_if(last_, [&](const auto& entry) {
      const Use& use = entry.second;
      if (sampled(entry.first, halvings_)) return false;
      count_open(of(use.cache_class), latest_ - use.time, use.halvings);
      return true;
    });
  }
}

IntervalsByClass RevisitRecorder::snapshot(double now) const {
  const std::lock_guard lock(mutex_);
  const double end = std::max(latest_, now);
  IntervalsByClass out = counts_;
  for (const auto& [page, use] : last_) count_open(out[static_cast<size_t>(use.cache_class)], end - use.time, use.halvings);
  for (RevisitIntervals& intervals : out) intervals.span_seconds += end - begin_;
  return out;
}

size_t RevisitRecorder::followed() const {
  const std::lock_guard lock(mutex_);
  return last_.size();
}

}  // namespace deepinfer
