#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace deepinfer {

/// Size of the largest cache that a core can reach, 0 if the system does not say.
int64_t last_level_cache_bytes();

/// Bytes a second that all threads of the pool read from memory: the best pass of about `seconds` over a buffer that no cache
/// holds (four times the last-level cache, at least 256 MiB, at most 1 GiB). The buffer is allocated, filled and freed inside,
/// so the call takes longer than `seconds`. 0 if it would be more than a quarter of the memory. The pool must be idle.
double measure_read_bandwidth(ThreadPool& pool, double seconds = 0.15);

}  // namespace deepinfer
