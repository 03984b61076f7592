#pragma once

#include "ops/cuda/products.h"

namespace deepinfer::cuda {

/// The product as the kernel of products.cu has it, a warp a block, for any number of rows. Inputs of FP8 matrices are
/// interleaved if `interleaved`.
void multiply_plainly(const ProductArgs& args, WeightFormat format, bool interleaved, LaunchStream& stream);

}  // namespace deepinfer::cuda
