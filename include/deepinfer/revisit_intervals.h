#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer {

/// Times between two uses of a page by prompts, of one class, in bins that grow by a constant factor. Small, however long it was
/// recorded.
struct RevisitIntervals {
  static constexpr double kFirstEdge = 0.1;  ///< seconds; the first bin is everything below it
  static constexpr int kBinsPerDecade = 16;
  static constexpr size_t kBins = 1 + 9 * kBinsPerDecade;  ///< the last ends at 10^8 s

  int64_t requests = 0;
  int64_t prompt_tokens = 0;
  int64_t uses = 0;                                          ///< of pages: each begins an interval
  double span_seconds = 0;                                   ///< that was recorded
  double ended_seconds = 0;                                  ///< sum of the intervals that ended
  std::vector<int64_t> ended = std::vector<int64_t>(kBins);  ///< the page was used again after so long
  std::vector<int64_t> open = std::vector<int64_t>(kBins);   ///< not yet, when the recording ended after so long

  static size_t bin_of(double seconds);
  /// Where a bin ends.
  static double edge(size_t bin);

  int64_t revisits() const;
  double uses_per_second() const { return span_seconds > 0 ? static_cast<double>(uses) / span_seconds : 0; }

  /// The part of uses that another one follows within edge(i), for each bin i, from the recording alone: the estimate of Kaplan
  /// and Meier, to which open intervals count as long as they were seen. Flat where nothing was seen any more.
  std::vector<double> followed_within() const;
};

/// An interval is of the class of the use that begins it: chat, agent, pinned.
using IntervalsByClass = std::array<RevisitIntervals, 3>;

}  // namespace deepinfer
