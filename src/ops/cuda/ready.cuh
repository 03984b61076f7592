#pragma once

// How blocks of a grid wait for what others of it have written. Those that are waited for have lower numbers: blocks begin in the
// order of their numbers, so what a block waits for is under way or done, and waits for nobody itself.

#include <cstdint>

namespace deepinfer::cuda {

/// One more is done. What the lanes of the warp wrote before they came together is there for whoever sees that.
__device__ inline void count_done(int32_t* count) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory");
}
/// Until `wanted` are done. Other lanes of the warp come together with this one before they read.
__device__ inline void wait_done(const int32_t* count, int wanted) {
  for (;;) {
    int done;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(count) : "memory");
    if (done >= wanted) return;
    __nanosleep(100);
  }
}

/// How many have come by before, of whom each sees what those wrote. Other threads of a block come together with this one before
/// it, and again before they read.
__device__ inline int take_number(int32_t* count) {
  int number;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(number) : "l"(count) : "memory");
  return number;
}
/// The same of `own` that come together.
__device__ inline int take_numbers(int32_t* count, int own) {
  int number;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(number) : "l"(count), "r"(own) : "memory");
  return number;
}
/// take_number among the threads of a block; `count` is in shared memory.
__device__ inline int take_number_of_block(int* count) {
  int number;
  asm volatile("atom.acq_rel.cta.shared::cta.add.s32 %0, [%1], 1;"
               : "=r"(number)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(count)))
               : "memory");
  return number;
}

}  // namespace deepinfer::cuda
