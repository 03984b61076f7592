#include "ops/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include "ops/cuda/staging.h"

namespace deepinfer {

Result<std::vector<CudaDevice>> cuda_devices() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return Err(Status(StatusCode::kNotFound, std::string("CUDA: ") + cudaGetErrorString(error)));
  }
  std::vector<CudaDevice> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess || p.major != 9 || p.minor != 0) continue;
    devices.push_back({i, p.name, p.major, p.minor, p.multiProcessorCount, static_cast<int64_t>(p.totalGlobalMem)});
  }
  if (devices.empty())
    return Err(Status(StatusCode::kNotFound, "CUDA: no device of compute capability 9.0 among " + std::to_string(count)));
  return devices;
}

int64_t cuda_allocations() { return cuda::allocation_count(); }

}  // namespace deepinfer
