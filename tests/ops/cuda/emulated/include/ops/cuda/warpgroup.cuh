#pragma once

// As src/ops/cuda/warpgroup.cuh, emulated.

#include <cuda_runtime.h>

#include "ops/cuda/instructions.cuh"
#include "ops/cuda/wide_layout.h"

namespace deepinfer::cuda {

inline constexpr int kWarpgroup = 128;

/// Counts arrivals and units of 16 bytes that are still to come, and how often all were there.
struct EmulatedBarrier {
  uint16_t wanted, arrived, turns;
  int16_t pending;
};
inline EmulatedBarrier& as_emulated(uint64_t* barrier) { return *reinterpret_cast<EmulatedBarrier*>(barrier); }
inline void barrier_init(uint64_t* barrier, int arrivals) { as_emulated(barrier) = {static_cast<uint16_t>(arrivals), 0, 0, 0}; }
inline void show_barriers() {}
inline void end_turn(EmulatedBarrier& b) {
  if (b.arrived == b.wanted && b.pending == 0) b.arrived = 0, ++b.turns;
}
inline void barrier_arrive(uint64_t* barrier) {
  ++as_emulated(barrier).arrived;
  end_turn(as_emulated(barrier));
}
inline void barrier_arrive_copied(uint64_t* barrier) { emulated::attach_copies(barrier); }
inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  emulated::wait_until([&] {
    emulated::finish_attached(barrier, [&] { barrier_arrive(barrier); });
    emulated::finish_bulk_copies(barrier, [&](uint32_t bytes) {
      as_emulated(barrier).pending = static_cast<int16_t>(as_emulated(barrier).pending - static_cast<int>(bytes / 16));
      end_turn(as_emulated(barrier));
    });
    return static_cast<uint32_t>(as_emulated(barrier).turns & 1) != (parity & 1);
  });
}
inline void named_barrier(int id, int threads) { emulated::block_barrier(id, threads); }

template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

inline void show_shared_memory() {}
inline void begin_products() {}
inline void commit_products() { emulated::commit(); }
template <int kPending>
void wait_products() {
  emulated::finish(kPending);
}
inline void settle(float (&)[4]) {}
template <int kSums>
void settle(float (&)[kSums][4]) {}

inline uint64_t swizzled_rows(uint32_t address) { return swizzled_matrix(address, kEightRows, 16); }
template <int kInputs, bool kAcross = false>
void multiply_rows(float (&c)[kInputs / 8][4], const uint32_t (&a)[4], uint64_t inputs, bool add) {
  emulated::issue({&c[0][0], {a[0], a[1], a[2], a[3]}, inputs, add, kInputs, kAcross});
}

}  // namespace deepinfer::cuda
