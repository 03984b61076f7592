#include "ops/cpu/portable_kernels.h"

#include <vector>

#include "ops/cpu/portable_targets.h"
// After portable_targets.h.
#include "hwy/targets.h"

namespace deepinfer::cpu {

const char* target_name(int64_t target) {
  switch (target) {
    case HWY_AVX3:
      return "avx512";
    case HWY_AVX2:
      return "avx2";
    case HWY_SSE4:
      return "sse4";
    case HWY_NEON:
      return "neon";
    default:
      return "baseline";
  }
}

std::span<const CpuKernels* const> portable_kernels() {
  static const std::vector<const CpuKernels*> tables = [] {
    static std::vector<CpuKernels> made;
    for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_NEON}) {
      if ((target & HWY_TARGETS & hwy::SupportedTargets()) == 0) continue;
      CpuKernels kernels{};
      kernels.name = target_name(target);
      kernels.rows = &row_ops_for(target);
      set_portable_products(kernels, target);
      set_portable_attention(kernels, target);
      made.push_back(kernels);
    }
    made.push_back(baseline_kernels());
    std::vector<const CpuKernels*> pointers;
    for (const CpuKernels& kernels : made) pointers.push_back(&kernels);
    return pointers;
  }();
  return tables;
}

}  // namespace deepinfer::cpu
