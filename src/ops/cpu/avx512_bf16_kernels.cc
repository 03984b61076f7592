#include "ops/cpu/kernels.h"
namespace deepinfer::cpu { const CpuKernels* avx512_bf16_kernels() { return nullptr; } }
