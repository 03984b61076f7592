#pragma once

// What a device does between its kernels. When each ran is in the device's own records, which CUPTI hands over.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"

namespace deepinfer::bench {

/// A kernel, copy or fill that ran, ns on the device's clock.
struct DeviceSpan {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
  int64_t blocks = 0;  ///< of a kernel
  int64_t threads = 0;
};

/// What lies between the begin of the first span and the end of the last.
struct DeviceGaps {
  int64_t spans = 0;
  double total_us = 0;
  double gap_us = 0;      ///< nothing ran
  double overlap_us = 0;  ///< more than one ran: also a kernel that waits for the one before it
  double longest_us = 0;  ///< gap

  double share() const { return total_us > 0 ? gap_us / total_us : 0; }
};
/// In any order; they may overlap.
DeviceGaps find_gaps(std::vector<DeviceSpan> spans);

/// What ran on the device while `run` did, which must end when the device has. An error says why there are no records: built
/// without CUPTI, or it is not let.
Result<std::vector<DeviceSpan>> record_device(FunctionRef<void()> run);

}  // namespace deepinfer::bench
