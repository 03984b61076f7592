#include "ops/cuda/cuda_device.h"

namespace deepinfer {

Result<std::vector<CudaDevice>> cuda_devices() { return Err(Status::NotFound("CUDA: this program was built without it")); }

}  // namespace deepinfer
