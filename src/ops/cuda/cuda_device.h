#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct CudaDevice {
  int index = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
};

/// The GPUs that the CUDA backend could use (compute capability 9.0). An error says why there is none: not built in, no driver,
/// no device, or only others.
Result<std::vector<CudaDevice>> cuda_devices();

/// How often a CUDA backend has asked the system for memory since the program began.
int64_t cuda_allocations();

}  // namespace deepinfer
