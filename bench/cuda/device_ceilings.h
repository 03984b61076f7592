#pragma once

#include <string>

#include "base/json_line.h"
#include "ops/ops.h"

namespace deepinfer::bench {

/// What the device allows: the copy bandwidth, measured here, and a matrix rate that the caller measured on the same device in
/// the same run (peer_torch.py).
class DeviceCeilings {
 public:
  DeviceCeilings(DeviceMemory& memory, std::string device, double tflops);

  /// The larger of the times that the bytes and the operations take at least.
  double floor_us(double bytes, double flops) const;
  /// A line with the time, the floor and what it counts; value and ceiling are of whichever is the larger part of it.
  void print(const std::string& name, double us, double bytes, double flops, BenchConditions conditions) const;

  const std::string& device() const { return device_; }
  double copy_rate() const { return copy_rate_; }    ///< bytes a second, read and written
  double flops_rate() const { return flops_rate_; }  ///< a second; 0: unknown

 private:
  std::string device_;
  double flops_rate_;
  double copy_rate_ = 0;
};

}  // namespace deepinfer::bench
