#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/revisit_intervals.h"

namespace deepinfer::cache {

enum class IntervalFamily : uint8_t {
  kExponential,    ///< mean
  kWeibull,        ///< scale, shape
  kLogNormal,      ///< median, sigma
  kTwoLogNormals,  ///< weight of the first, median and sigma of each
};
inline constexpr size_t kIntervalFamilyCount = 4;
std::string_view interval_family_name(IntervalFamily family);
/// Of its parameters, in order.
std::vector<std::string_view> parameter_names(IntervalFamily family);

/// How long it takes until a page is used again: with probability 1 - `revisited` for ever, otherwise as the family says.
struct IntervalFit {
  IntervalFamily family = IntervalFamily::kExponential;
  double revisited = 0;
  std::vector<double> parameters;
  double log_likelihood = 0;
  double bic = 0;          ///< less is better; its uses are not independent, so it likes many parameters too much
  double ks_distance = 0;  ///< the largest difference to the recording, within the time that was recorded

  /// Probability that a use is followed by another within so many seconds.
  double followed_within(double seconds) const;
};

/// The likeliest of each family, ended and open intervals alike; the best by BIC first. Empty if fewer than `kLeastRevisits`
/// intervals ended: then nothing can be said.
inline constexpr int64_t kLeastRevisits = 50;
std::vector<IntervalFit> fit_intervals(const RevisitIntervals& intervals);

}  // namespace deepinfer::cache
