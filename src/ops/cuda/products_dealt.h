#pragma once

#include "ops/cuda/products.h"

namespace deepinfer::cuda {

/// FP8 of one or two rows and larger matrices by warps that have equal shares (products_dealt.cu), with the bits of all others:
/// whether they are taken.
bool takes_dealt_products(const ProductArgs& args);
/// `quantize`: x is quantised first.
void multiply_fp8_dealt(const ProductArgs& args, bool quantize, LaunchStream& stream);

}  // namespace deepinfer::cuda
