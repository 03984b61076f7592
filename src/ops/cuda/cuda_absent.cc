// A program built without the CUDA toolkit.

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/cuda_graph.h"

namespace deepinfer {
namespace {

Status absent() { return Status::NotFound("CUDA: this program was built without it"); }

}  // namespace

Result<std::vector<CudaDevice>> cuda_devices() { return Err(absent()); }
int64_t cuda_allocations() { return 0; }

Result<std::unique_ptr<Backend>> make_cuda_backend(int /*device*/, const CudaFeatures& /*features*/) { return Err(absent()); }

std::unique_ptr<CudaGraph> record_cuda_graph(Backend& backend, FunctionRef<void()> /*calls*/) {
  DI_CHECK(false, "{} records no graphs", backend.name());
}

CudaReplays cuda_replays(Backend& backend) { DI_CHECK(false, "{} records no graphs", backend.name()); }

}  // namespace deepinfer
