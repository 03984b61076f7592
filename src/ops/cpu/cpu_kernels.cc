// Which table of kernels runs.

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ops/cpu/kernels.h"

namespace deepinfer::cpu {

std::span<const CpuKernels* const> cpu_kernels() {
  static const std::vector<const CpuKernels*> tables = [] {
    std::vector<const CpuKernels*> all;
    if (avx512_bf16_kernels() != nullptr) all.push_back(avx512_bf16_kernels());
    all.insert(all.end(), portable_kernels().begin(), portable_kernels().end());
    return all;
  }();
  return tables;
}

Result<const CpuKernels*> wanted_kernels() {
  // Every name that there is on any processor.
  static constexpr std::string_view kNames[] = {"avx512-bf16", "avx512", "avx2", "sse4", "neon", "baseline"};
  const char* wanted = std::getenv("DEEPINFER_CPU_KERNELS");
  if (wanted == nullptr) return cpu_kernels().front();
  if (std::string_view(wanted) == "portable") return portable_kernels().front();
  for (const CpuKernels* kernels : cpu_kernels()) {
    if (wanted == std::string_view(kernels->name)) return kernels;
  }
  if (std::find(std::begin(kNames), std::end(kNames), wanted) == std::end(kNames)) {
    return Err(Status::InvalidArgument("DEEPINFER_CPU_KERNELS is \"{}\", must be portable or one of {}", wanted,
                                       fmt::join(kNames, ", ")));
  }
  return Err(Status::FailedPrecondition("DEEPINFER_CPU_KERNELS is {}, which this processor cannot run", wanted));
}

}  // namespace deepinfer::cpu
