#pragma once

#include <memory>

#include "ops/ops.h"

namespace deepinfer::testing {

/// A backend whose operators take host pointers and run on `device`, for tests that were written for the host: every call copies
/// in what the operator reads, runs it and copies out what it writes. Slow and plain.
std::unique_ptr<Backend> make_host_pointer_backend(std::unique_ptr<Backend> device);

}  // namespace deepinfer::testing
