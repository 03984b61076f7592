#pragma once

// The parts of the portable tables. `target` is one of Highway's bits, of DEEPINFER_PORTABLE_TARGETS, that this processor runs
// and that the sources are compiled for.

#include <cstdint>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ops.h"

namespace deepinfer::cpu {

void set_portable_products(CpuKernels& kernels, int64_t target);
void set_portable_attention(CpuKernels& kernels, int64_t target);
/// Any other target: for what the whole program is compiled for.
const RowOps& row_ops_for(int64_t target);

/// For every processor: plain code over the compiler's vectors.
const CpuKernels& baseline_kernels();

/// What DEEPINFER_CPU_KERNELS and --version call a target.
const char* target_name(int64_t target);

}  // namespace deepinfer::cpu
