#pragma once

#include <cstdint>

namespace deepinfer::testing {

/// Whether allocations are counted. Sanitizers bring their own operator new, which pairs with their own delete; replacing a part
/// of them would be reported as a mismatch.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsAllocations = false;
#else
inline constexpr bool kCountsAllocations = true;
#endif

/// Calls of operator new in the whole program so far. Who uses this gets a counting operator new linked in.
int64_t allocations_made();

}  // namespace deepinfer::testing
