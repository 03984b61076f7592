#pragma once

#include <memory>

#include "base/status.h"
#include "ops/cuda/cuda_features.h"
#include "ops/ops.h"

namespace deepinfer {

/// The backend of one GPU of compute capability 9.0 (H100, H200). `device`: an index as in CudaDevice. An error says why there is
/// none. The operators' pointers are that device's memory; spans, and the page tables of PagedRows, are the host's.
Result<std::unique_ptr<Backend>> make_cuda_backend(int device, const CudaFeatures& features = {});

}  // namespace deepinfer
