#pragma once

#include <cstdint>

namespace deepinfer::testing {

/// Requests are submitted, cancelled, preempted, evicted, forked and resumed in random order for `turns` turns, and every answer
/// must be the one that the request has for itself. A failure names its seed; the seed replays it.
void random_schedule(uint64_t seed, int64_t turns);

}  // namespace deepinfer::testing
