#include "testing/named_backend.h"

#include <stdexcept>
#include <string_view>

#include "ops/cpu/cpu_backend.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/host_pointers.h"
#include "testing/guarded_backend.h"

namespace deepinfer::testing {
namespace {

constexpr std::string_view kKernels = "cpu_";

// nullptr: this processor cannot run them.
const cpu::CpuKernels* kernels_of(std::string_view backend) {
  for (const cpu::CpuKernels* kernels : cpu::cpu_kernels()) {
    if (backend.substr(kKernels.size()) == kernels->name) return kernels;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<Backend> make_named_backend(const std::string& backend, ThreadPool* pool) {
  if (backend == "reference") return make_reference_backend(pool);
  if (backend == "cpu") return make_cpu_backend(pool);
  if (backend.starts_with(kKernels)) {
    const cpu::CpuKernels* kernels = kernels_of(backend);
    if (kernels == nullptr) throw std::runtime_error("no kernels for " + backend);
    return std::make_unique<CpuBackend>(pool, *kernels);
  }
  if (backend == "guarded") return make_guarded_backend(make_cpu_backend(pool));
  if (backend == "guarded_ahead") return make_guarded_backend(make_cpu_backend(pool), true);
  const bool host_pointers = backend == "cuda-host-pointers";
  const bool features = backend == "cuda_features";
  if (backend != "cuda" && !features && !host_pointers) throw std::runtime_error("no backend " + backend);
  const auto devices = cuda_devices();
  if (!devices) throw std::runtime_error(devices.error().message());
  auto device = make_cuda_backend(devices->front().index, *parse_cuda_features(features ? "all" : "none"));
  if (!device) throw std::runtime_error(device.error().message());
  return host_pointers ? make_host_pointer_backend(std::move(*device), true) : std::move(*device);
}

std::string why_absent(const std::string& backend) {
  if (backend.starts_with(kKernels) && kernels_of(backend) == nullptr)
    return "this processor cannot run the kernels of " + backend;
  if (!backend.starts_with("cuda")) return "";
  const auto devices = cuda_devices();
  return devices ? "" : devices.error().message();
}

}  // namespace deepinfer::testing
