#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/cuda_check.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// The streams of a backend and the events between them. They outlive everything that uses them.
struct BackendStreams {
  explicit BackendStreams(int index) : device(index) {
    DI_CUDA(cudaSetDevice(device));
    for (cudaStream_t* stream : {&main, &side, &ahead}) DI_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    for (cudaEvent_t* event : {&forked, &done}) DI_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    for (cudaEvent_t& event : arrived) DI_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~BackendStreams() {
    for (cudaEvent_t event : arrived) cudaEventDestroy(event);
    for (cudaEvent_t event : {forked, done}) cudaEventDestroy(event);
    for (cudaStream_t stream : {main, side, ahead}) cudaStreamDestroy(stream);
  }
  BackendStreams(const BackendStreams&) = delete;
  BackendStreams& operator=(const BackendStreams&) = delete;
  int device;
  cudaStream_t main = nullptr;
  cudaStream_t side = nullptr;                      ///< of Backend::beside
  cudaStream_t ahead = nullptr;                     ///< of Backend::ahead
  cudaEvent_t forked = nullptr;                     ///< on main: where another begins
  cudaEvent_t done = nullptr;                       ///< on the side: its end
  cudaEvent_t arrived[Backend::kAheadPlaces] = {};  ///< on ahead: the end of what each place was given
};

}  // namespace deepinfer::cuda
