#pragma once

#include <vector>

#include "ops/cuda/cuda_features.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// Which kernels operators get with these features, for people: Backend::kernels.
std::vector<KernelChoice> kernel_choices(const CudaFeatures& features);

}  // namespace deepinfer::cuda
