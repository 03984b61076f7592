#pragma once

// How kernels are launched. Every kernel of the backend goes through LaunchStream, and begins as launch_order.cuh says, so that
// it may be launched while the kernel before it still runs. launch_rules_test.cc reads the sources and holds them to it.

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "ops/cuda/cuda_check.h"

namespace deepinfer::cuda {

/// A stream, and how what is put on it follows what is there. One caller at a time. Goes where a cudaStream_t goes, for what is
/// neither kernel, copy nor fill.
class LaunchStream {
 public:
  /// `overlaps`: a kernel may begin before the one before it has ended (programmatic dependent launch), in graphs too.
  LaunchStream(cudaStream_t stream, bool overlaps) : stream_(stream), overlaps_(overlaps) {}
  LaunchStream(const LaunchStream&) = delete;
  LaunchStream& operator=(const LaunchStream&) = delete;

  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)
  bool overlaps() const { return overlaps_; }
  /// The next kernel begins when everything before it is over: it follows something other than one kernel, such as an event.
  void order_fully() { ordered_fully_ = true; }
  /// Kernels so far.
  int64_t launched() const { return launched_; }

  template <typename... Parameters, typename... Arguments>
  void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, Arguments&&... arguments) {
    constexpr size_t kSharedOfAll = 40 << 10;  // more than 48 KiB, with what the kernel declares, has to be asked for
    if (shared > kSharedOfAll)
      DI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream_;
    config.attrs = &attribute;
    config.numAttrs = overlaps_ && !std::exchange(ordered_fully_, false) ? 1 : 0;
    DI_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
    ++launched_;
  }

  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    DI_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream_));
    order_fully();
  }
  void fill(void* to, int byte, size_t bytes) {
    DI_CUDA(cudaMemsetAsync(to, byte, bytes, stream_));
    order_fully();
  }

 private:
  cudaStream_t stream_;
  bool overlaps_;
  bool ordered_fully_ = true;
  int64_t launched_ = 0;
};

}  // namespace deepinfer::cuda
