#pragma once

// Instructions that streamed panels alone use. tests/ops/cuda/emulated has them for a host without a GPU.

#include "ops/cuda/warpgroup_shared.cuh"

namespace deepinfer::cuda {

/// 16 bytes of inputs, asked for here, if they are `there`; otherwise v stays.
__device__ inline void load_inputs_if(bool there, const bf16* p, uint4& v) {
  asm volatile("{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n@there ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(p), "r"(static_cast<int>(there)));
}

/// Both halves of a times one half of b.
template <bool kHigh>
__device__ inline uint32_t multiply_by_half(uint32_t a, uint32_t b) {
  uint32_t r;
  if constexpr (kHigh) {
    asm("{\n.reg .b16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %2;\nmov.b32 both, {high, high};\n"
        "mul.rn.bf16x2 %0, %1, both;\n}"
        : "=r"(r)
        : "r"(a), "r"(b));
  } else {
    asm("{\n.reg .b16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %2;\nmov.b32 both, {low, low};\n"
        "mul.rn.bf16x2 %0, %1, both;\n}"
        : "=r"(r)
        : "r"(a), "r"(b));
  }
  return r;
}

/// v, which all lanes have, where the compiler knows that they do.
__device__ inline uint32_t of_warp(uint32_t v) { return __shfl_sync(0xffffffffu, v, 0); }
__device__ inline const uint8_t* of_warp(const uint8_t* p) {
  const auto bits = reinterpret_cast<uintptr_t>(p);
  const uint64_t high = of_warp(static_cast<uint32_t>(bits >> 32));
  return reinterpret_cast<const uint8_t*>(high << 32 | of_warp(static_cast<uint32_t>(bits)));
}

/// barrier_wait, barrier_arrive_expecting and copy_bulk with the address of the barrier as instructions want it.
__device__ inline void barrier_wait_at(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void barrier_expect_at(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void copy_bulk_at(uint32_t shared, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}

}  // namespace deepinfer::cuda
