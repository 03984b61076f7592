#pragma once

#include <functional>
#include <vector>

#include "base/status.h"

namespace deepinfer::cache {

/// What one page costs, in one unit, whichever it is.
struct PageCosts {
  double prefill = 0;             ///< computing it
  double hit = 0;                 ///< bringing it back
  double storage_per_second = 0;  ///< keeping it

  /// Names the first that is out of its range: a page that costs more to bring back than to compute is kept by nobody.
  Status validate() const;
};

/// Probability that a use of a page is followed by another within so many seconds.
using FollowedWithin = std::function<double(double seconds)>;

/// One time to live, and what comes of it: each use keeps the page until it is used again or the time is over.
struct RetentionPoint {
  double ttl_seconds = 0;
  double hit_rate = 0;      ///< h: the part of uses that find the page
  double held_seconds = 0;  ///< that a use keeps the page, on average
  double cost = 0;          ///< of a use: (1 - h) prefill + h hit + held_seconds x storage
};

/// The curve over times to live from 0 (nothing is kept) to `max_ttl_seconds`, dense enough to draw and to search.
std::vector<RetentionPoint> retention_curve(const FollowedWithin& followed_within, const PageCosts& costs,
                                            double max_ttl_seconds);

/// The cheapest point; of equally cheap ones the shortest.
///
/// A page is worth keeping as long as the chance that the next second brings a use, given that none has come, is above
/// storage_per_second / (prefill - hit): there the curve has its minimum.
const RetentionPoint& cheapest(const std::vector<RetentionPoint>& curve);

}  // namespace deepinfer::cache
