#include "cuda/kernel_gaps.h"

#include <algorithm>

namespace deepinfer::bench {

DeviceGaps find_gaps(std::vector<DeviceSpan> spans) {
  DeviceGaps out;
  out.spans = static_cast<int64_t>(spans.size());
  if (spans.empty()) return out;
  std::sort(spans.begin(), spans.end(), [](const DeviceSpan& a, const DeviceSpan& b) { return a.begin < b.begin; });
  const auto us = [](uint64_t ns) { return static_cast<double>(ns) * 1e-3; };
  const uint64_t first = spans.front().begin;
  uint64_t end = first;  // of all that has begun so far
  for (const DeviceSpan& s : spans) {
    if (s.begin > end) {
      out.gap_us += us(s.begin - end);
      out.longest_us = std::max(out.longest_us, us(s.begin - end));
    } else {
      out.overlap_us += us(std::min(s.end, end) - s.begin);
    }
    end = std::max(end, s.end);
  }
  out.total_us = us(end - first);
  return out;
}

}  // namespace deepinfer::bench
