#pragma once

// Sparse attention (spec/backbone §3.10).

#include <cuda_runtime.h>

#include "ops/ops.h"

namespace deepinfer::cuda {

/// `queries`: device copies of args.queries whose page tables are on the device. `longest`: most keys of a query.
void sparse_attention(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest, cudaStream_t stream);

}  // namespace deepinfer::cuda
