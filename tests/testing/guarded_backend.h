#pragma once

#include <memory>

#include "ops/ops.h"

namespace deepinfer::testing {

/// A device made of host memory, for finding where the host takes the device's memory for its own, or the other way round. What
/// `memory()` gives cannot be read or written by anybody: a touch is a fault at its place. Operators and DeviceMemory's calls
/// reach the same bytes at other addresses, and take no address of the host's where a device's belongs. It replays like a device:
/// `calls` are made once with nothing done and once for real, and must ask for the same both times. Its page copies are those of
/// guarded_copies.h.
/// `ahead`: what Backend::ahead is given runs when it arrives, and not a call before.
std::unique_ptr<Backend> make_guarded_backend(std::unique_ptr<Backend> inner, bool ahead = false);

/// Allocations of all guarded memory since the program began.
int64_t guarded_allocations();
/// Downloads likewise: what the host waited for.
int64_t guarded_downloads();

}  // namespace deepinfer::testing
