#pragma once

// As src/ops/cuda/streamed_instructions.cuh, emulated.

#include "ops/cuda/warpgroup_shared.cuh"

namespace deepinfer::cuda {

inline void load_inputs_if(bool there, const bf16* p, uint4& v) {
  if (there) v = load_inputs(p);
}
template <bool kHigh>
uint32_t multiply_by_half(uint32_t a, uint32_t b) {
  return multiply_bf16x2(a, (kHigh ? b >> 16 : b & 0xffff) * 0x10001u);
}
inline uint32_t of_warp(uint32_t v) { return v; }
inline const uint8_t* of_warp(const uint8_t* p) { return p; }

inline uint64_t* barrier_at(uint32_t barrier) {
  if (barrier % 8 != 0) std::abort();
  return reinterpret_cast<uint64_t*>(const_cast<uint8_t*>(emulated::shared_at(barrier, 8)));
}
inline void barrier_wait_at(uint32_t barrier, uint32_t parity) { barrier_wait(barrier_at(barrier), parity); }
inline void barrier_expect_at(uint32_t barrier, uint32_t bytes) { barrier_arrive_expecting(barrier_at(barrier), bytes); }
inline void copy_bulk_at(uint32_t shared, const void* from, uint32_t bytes, uint32_t barrier) {
  copy_bulk(shared, from, bytes, barrier_at(barrier));
}

}  // namespace deepinfer::cuda
