#pragma once

#include <memory>

#include "ops/ops.h"

namespace deepinfer::testing {

/// A backend whose operators take host pointers and run on `device`, for tests that were written for the host: every call copies
/// in what the operator reads, runs it and copies out what it writes. Slow and plain. `keep_weights`: weights never change nor
/// move, and are copied once.
std::unique_ptr<Backend> make_host_pointer_backend(std::unique_ptr<Backend> device, bool keep_weights);

}  // namespace deepinfer::testing
