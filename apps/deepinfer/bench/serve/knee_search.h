#pragma once

#include <limits>
#include <optional>

namespace deepinfer::bench {

/// Looks for the highest rate that a server keeps up with: doubles (or halves) the rate until one was kept up with and a higher
/// one was not, then narrows the gap down to a tenth. Pure: somebody else measures.
class KneeSearch {
 public:
  static constexpr double kPrecision = 1.1;  ///< the two rates at the end lie this far apart
  static constexpr double kMaxRate = 1e5;
  static constexpr int kMaxHalvings = 6;

  explicit KneeSearch(double start) : start_(start) {}

  /// The rate to try next, of three digits; nothing: it is over.
  std::optional<double> next() const;
  void tried(double rate, bool kept_up);

  double kept_up() const { return low_; }    ///< the highest; 0: none
  double too_much() const { return high_; }  ///< the lowest; infinite: none

 private:
  double start_;
  double low_ = 0, high_ = std::numeric_limits<double>::infinity();
};

}  // namespace deepinfer::bench
