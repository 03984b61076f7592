#include "ops/cpu/avx512_bf16_kernels.h"

namespace deepinfer::cpu {

#if DEEPINFER_AVX512_BF16_SOURCES

const CpuKernels* avx512_bf16_kernels() {
  static const bool have = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
                           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512dq");
  if (!have) return nullptr;
  static const CpuKernels kernels = [] {
    CpuKernels k{};
    k.name = "avx512-bf16";
    k.rows = portable_kernels().front()->rows;
    set_avx512_bf16_products(k);
    set_avx512_bf16_attention(k);
    return k;
  }();
  return &kernels;
}

#else

const CpuKernels* avx512_bf16_kernels() { return nullptr; }

#endif

}  // namespace deepinfer::cpu
