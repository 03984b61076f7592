#pragma once

// Instructions of a warp that C++ has no words for, and the block's shared memory. Those of warpgroups are in warpgroup.cuh.
// tests/ops/cuda/emulated has both for a host without a GPU.

#include <cstdint>

#include "base/scalar_types.h"

namespace deepinfer::cuda {

/// Shared memory that a launch asks for, at a multiple of 1024 bytes: of kernels that declare none themselves.
template <typename T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(1024) uint8_t dynamic_bytes[];
  return reinterpret_cast<T*>(dynamic_bytes);
}
/// The same behind what the kernel declares, at a multiple of 16.
template <typename T>
__device__ inline T* dynamic_shared_behind() {
  extern __shared__ __align__(16) uint8_t more_bytes[];
  return reinterpret_cast<T*>(more_bytes);
}

/// Of a place in shared memory, as instructions want it.
__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// The place 16 `units` bytes behind `from`, in one instruction.
__device__ inline const void* place_behind(const void* from, uint32_t units) {
  const void* at;
  asm("mad.wide.u32 %0, %1, 16, %2;" : "=l"(at) : "r"(units), "l"(from));
  return at;
}
/// 16 bytes on their way to shared memory; `bytes` 0: zeros, and nothing is read.
__device__ inline void copy_async(uint32_t shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes) : "memory");
}
/// The same of weights, whose neighbours are wanted next; `from` can be read in either case.
__device__ inline void copy_weights_async(uint32_t shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes) : "memory");
}
/// 16 bytes, if `there`; otherwise what is in shared memory stays.
__device__ inline void copy_async_if(bool there, uint32_t shared, const void* from) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %2, 0;\n@there cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(shared),
      "l"(from), "r"(static_cast<int>(there))
      : "memory");
}
/// 4 bytes at multiples of 4.
__device__ inline void copy_word_async(uint32_t shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
}
/// 8 bytes at multiples of 8.
__device__ inline void copy_two_words_async(uint32_t shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared), "l"(from) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// threadIdx.x, read anew: what is computed from it is not kept in registers from before.
__device__ inline int thread_read_anew() {
  int v;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(v));
  return v;
}

/// What is computed from v is computed anew, not kept in registers from before.
__device__ inline void forget_uses(uint32_t& v) { asm volatile("" : "+r"(v)); }

/// Weights that nobody reads again soon.
__device__ inline uint4 load_once(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

/// A byte of weights. Nothing is computed from it before it is used: __ldg of a byte is followed by a mask, which waits for it.
__device__ inline uint32_t load_byte(const uint8_t* p) {
  uint32_t v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

/// 16 bytes of inputs, asked for here: the compiler does not put it off.
__device__ inline uint4 load_inputs(const bf16* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

/// 16 bytes, four, and one, at an address of shared memory.
__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
/// A word to shared memory, seen by whoever sees that the thread has come by a barrier.
__device__ inline void store_shared(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;\nfence.acq_rel.cta;" ::"r"(address), "r"(word) : "memory");
}
__device__ inline uint32_t load_shared_word(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ inline uint32_t load_shared_byte(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four blocks of 8 x 8, of which a lane gives the row of 16 bytes at p (lane / 8: the block).
__device__ inline void load_matrices(uint32_t (&r)[4], const bf16* p) {
  const uint32_t at = shared_address(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const bf16* p) {
  const uint32_t at = shared_address(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

/// Four blocks of 8 x 8, of which the lane holds in r as load_matrices has them, to shared memory with rows and columns
/// exchanged: the lane gives the address of 16 bytes, column lane % 8 of block lane / 8.
__device__ inline void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

__device__ inline uint32_t narrow_two(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
/// 1 / x within a unit of the last place, for normal numbers.
__device__ inline float reciprocal_approx(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/// As __byte_perm, but where a digit of `selector` has its highest bit set, the sign of the byte goes to all of its place.
__device__ inline uint32_t permute_signed(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selector));
  return r;
}
__device__ inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
/// The larger of each half and zero.
__device__ inline uint32_t positive_pair(uint32_t pair) {
  uint32_t r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(pair), "r"(0u));
  return r;
}

}  // namespace deepinfer::cuda
