#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/device_memory.h"

namespace deepinfer::cuda {

/// `copies`: device copy of the list.
void copy_rows(const DeviceMemory::RowCopy* copies, int64_t count, int64_t row_bytes, LaunchStream& stream);

/// A piece of device memory that is copied to another.
struct Segment {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};
/// `segments`: device copy of the list. None written is another's source or target.
void copy_segments(const Segment* segments, int64_t count, LaunchStream& stream);

}  // namespace deepinfer::cuda
