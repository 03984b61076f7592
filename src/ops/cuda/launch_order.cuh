#pragma once

// How a kernel takes its turn when it may have begun before the one before it has ended (launch.h). Without that, both
// instructions do nothing.
//
// Every thread of every kernel comes by wait_for_earlier(), whatever way it takes, before it returns: kernel N + 1 waits for the
// end of kernel N alone, and that this is the end of all kernels before, too, is so only because N has waited itself. Before the
// wait a kernel reads nothing but its parameters and weights, and writes nothing but shared memory: what lies in buffers may not
// have been written yet, or still be read, unless the kernel before has taken its turn alone. Argument arrays and page tables are
// no weights. Behind the wait, __ldg and its like are for weights alone: they promise that nobody writes as long as the kernel is
// there, and it may have been there early.

#include <cstdint>

namespace deepinfer::cuda {

/// The next kernel may begin once all blocks of this one have said so.
__device__ inline void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
/// Until all earlier kernels have ended and what they wrote is there.
__device__ inline void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// Of kernels that do nothing before their turn.
__device__ inline void take_turn() {
  let_next_begin();
  wait_for_earlier();
}

/// Of kernels whose successor reads, before it waits, what has been written before these: nothing runs ahead of their turn.
__device__ inline void take_turn_alone() {
  wait_for_earlier();
  let_next_begin();
}

/// Asks for weights ahead of their use, into the second-level cache; one thread is enough.
__device__ inline void fetch_ahead(const uint8_t* weights, int64_t bytes) {
  const auto size = static_cast<uint32_t>(bytes);
  if (((reinterpret_cast<uintptr_t>(weights) | size) & 15) != 0 || size == 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(weights), "r"(size) : "memory");
}

}  // namespace deepinfer::cuda
