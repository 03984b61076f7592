#pragma once

#include <cuda_runtime.h>

#include "ops/device_memory.h"

namespace deepinfer::cuda {

/// `copies`: device copy of the list.
void copy_rows(const DeviceMemory::RowCopy* copies, int64_t count, int64_t row_bytes, cudaStream_t stream);

}  // namespace deepinfer::cuda
