#pragma once

// Where the blocks of a product with several matrices belong.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/products.h"

namespace deepinfer::cuda {

/// The output that block `panel` of `panel_rows` weight rows belongs to; `panel` becomes its number there.
__device__ inline int find_output(const ProductArgs& args, int panel_rows, int64_t& panel) {
  int which = 0;
  for (; which + 1 < args.output_count; ++which) {
    const int64_t panels = (args.outputs[which].weight.out / args.groups + panel_rows - 1) / panel_rows;
    if (panel < panels) break;
    panel -= panels;
  }
  return which;
}

__device__ inline void store_product(const ProductArgs& args, int which, int64_t at, float v) {
  if (args.fp32) {
    static_cast<float*>(args.outputs[which].y)[at] = v;
  } else {
    static_cast<bf16*>(args.outputs[which].y)[at] = narrow(v);
  }
}

}  // namespace deepinfer::cuda
