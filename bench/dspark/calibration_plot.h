#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer::bench {

/// Drafts whose predecessors were accepted, by what the confidence head said.
struct CalibrationBucket {
  double said = 0;  ///< mean of the chances in the bucket
  int64_t drafts = 0;
  int64_t accepted = 0;
  double rate() const { return drafts > 0 ? static_cast<double>(accepted) / static_cast<double>(drafts) : 0; }
};

/// A reliability diagram: said chance against accepted share, the area of a dot by the number of drafts.
void write_calibration_svg(const std::string& path, const std::string& title, const std::vector<CalibrationBucket>& buckets);

}  // namespace deepinfer::bench
