#include "serve/knee_search.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::bench {
namespace {

double three_digits(double rate) {
  const double unit = std::pow(10.0, std::floor(std::log10(rate)) - 2);
  return std::round(rate / unit) * unit;
}

}  // namespace

std::optional<double> KneeSearch::next() const {
  if (std::isinf(high_) && low_ == 0) return start_;
  if (std::isinf(high_)) {
    if (low_ >= kMaxRate) return std::nullopt;
    return std::min(low_ * 2, kMaxRate);
  }
  if (low_ == 0) {
    if (high_ <= std::ldexp(start_, -kMaxHalvings)) return std::nullopt;
    return high_ / 2;
  }
  if (high_ <= low_ * kPrecision) return std::nullopt;
  const double middle = three_digits(std::sqrt(low_ * high_));
  if (middle <= low_ || middle >= high_) return std::nullopt;
  return middle;
}

void KneeSearch::tried(double rate, bool kept_up) {
  if (kept_up) {
    low_ = std::max(low_, rate);
  } else {
    high_ = std::min(high_, rate);
  }
}

}  // namespace deepinfer::bench
