#pragma once

#include <cuda_runtime.h>

namespace deepinfer::cuda {

/// Prints what failed and aborts.
[[noreturn]] void cuda_failed(const char* file, int line, const char* what, const char* reason);

}  // namespace deepinfer::cuda

/// A CUDA call that fails leaves nothing to go on with: the context is lost, or the program asked for what the device cannot do.
#define DI_CUDA(call)                                                                                \
  do {                                                                                               \
    const cudaError_t di_cuda_error_ = (call);                                                       \
    if (di_cuda_error_ != cudaSuccess)                                                               \
      ::deepinfer::cuda::cuda_failed(__FILE__, __LINE__, #call, cudaGetErrorString(di_cuda_error_)); \
  } while (false)

/// After a kernel launch: what was wrong with the launch itself. Errors inside the kernel show at the next synchronisation.
#define DI_CUDA_LAUNCHED() DI_CUDA(cudaGetLastError())
