#pragma once

// As src/ops/cuda/warpgroup_shared.cuh, emulated.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

inline void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  if (bytes % 16 != 0) std::abort();
  as_emulated(barrier).pending = static_cast<int16_t>(as_emulated(barrier).pending + static_cast<int>(bytes / 16));
  barrier_arrive(barrier);
}
inline void copy_bulk(uint32_t shared, const void* from, uint32_t bytes, uint64_t* barrier) {
  if (shared % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) std::abort();
  emulated::issue_bulk_copy(barrier, {const_cast<uint8_t*>(emulated::shared_at(shared, bytes)), from, bytes});
}
inline void copy_bulk_out(void* to, uint32_t shared, uint32_t bytes) {
  if (shared % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0) std::abort();
  std::memcpy(to, emulated::shared_at(shared, bytes), bytes);
}
inline void wait_copied_out() {}
inline void store_shared_pair(uint32_t address, uint32_t first, uint32_t second) {
  if (address % 8 != 0) std::abort();
  const uint32_t words[2] = {first, second};
  std::memcpy(const_cast<uint8_t*>(emulated::shared_at(address, 8)), words, 8);
}
template <int kInputs>
void multiply_more_rows(float (&c)[kInputs / 8][4], const uint32_t (&a)[4], uint64_t inputs, bool add) {
  multiply_rows<kInputs>(c, a, inputs, add);
}
template <int kInputs>
void multiply_shared(float (&c)[kInputs / 8][4], uint64_t rows, uint64_t inputs, bool add) {
  emulated::issue({.sums = &c[0][0], .descriptor = inputs, .add = add, .n = kInputs, .rows = rows});
}

}  // namespace deepinfer::cuda
