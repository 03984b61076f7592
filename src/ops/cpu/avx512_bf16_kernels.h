#pragma once

// The two halves of the AVX-512 BF16 table of kernels. Defined where the compiler was told of the instruction set
// (DEEPINFER_AVX512_BF16_SOURCES); to be called on processors that have it only.

#include "ops/cpu/kernels.h"

namespace deepinfer::cpu {

void set_avx512_bf16_products(CpuKernels& kernels);
void set_avx512_bf16_attention(CpuKernels& kernels);

}  // namespace deepinfer::cpu
