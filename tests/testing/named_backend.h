#pragma once

#include <memory>
#include <string>

#include "ops/ops.h"

namespace deepinfer::testing {

/// backend: "reference", "cpu", "cpu_avx2" and the like: the CPU's with those kernels (kernels.h), "guarded": the CPU's on
/// guarded_backend.h's memory ("guarded_ahead": what is asked ahead comes late), "cuda": the first GPU, "cuda_features": with all
/// of CudaFeatures, or "cuda-host-pointers": its operators on host memory. Throws std::runtime_error with the reason if there is
/// none.
std::unique_ptr<Backend> make_named_backend(const std::string& backend, ThreadPool* pool);

/// Why the tests of a backend cannot run here; empty if they can.
std::string why_absent(const std::string& backend);

}  // namespace deepinfer::testing
