#pragma once

// The instructions of Hopper's warpgroups: matrix products whose inputs lie in shared memory, barriers that count bytes or
// threads, registers that change hands. A product of 64 x 16 by 16 x n adds its 16 columns to the sums in one rounding, as
// mma.m16n8k16 does, whatever their order (bitwise, found on an H200): so a row's numbers do not depend on which of the two is
// used.

#include <cstdint>

#include "ops/cuda/instructions.cuh"
#include "ops/cuda/wide_layout.h"

namespace deepinfer::cuda {

inline constexpr int kWarpgroup = 128;

__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
/// After the last barrier_init.
__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// One arrival once all copies to shared memory are there that the thread has asked for.
__device__ inline void barrier_arrive_copied(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// Barrier `id` > 0 of `threads` threads of the block.
__device__ inline void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// What threads wrote to shared memory, for the matrix units.
__device__ inline void show_shared_memory() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// After the wait for its products: sums are used no earlier.
__device__ inline void settle(float (&c)[4]) { asm volatile("" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])::"memory"); }
template <int kSums>
__device__ inline void settle(float (&c)[kSums][4]) {
#pragma unroll
  for (int j = 0; j < kSums; ++j) settle(c[j]);
}

/// Rows of 128 bytes, 16-byte pieces of which are exchanged within groups of eight rows (piece ^ row % 8), 16 columns each.
__device__ inline uint64_t swizzled_rows(uint32_t address) { return swizzled_matrix(address, kEightRows, 16); }

/// c (+)= a x inputs, for the warpgroup's 64 rows: a as of mma.m16n8k16, 16 rows a warp; `inputs`: kInputs rows of 16 columns,
/// or, if kAcross, 16 rows that hold one column of 64 inputs each, block after block of 64.
template <int kInputs, bool kAcross = false>
__device__ inline void multiply_rows(float (&c)[kInputs / 8][4], const uint32_t (&a)[4], uint64_t inputs, bool add) {
  static_assert(kInputs == 16 || kInputs == 32 || kInputs == 64 || kInputs == 80 || kInputs == 96 || kInputs == 112 ||
                kInputs == 128);
#define DI_SUMS(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
  if constexpr (kInputs == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, p, 1, 1, %14;\n}"
        : DI_SUMS(0), DI_SUMS(1)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)), "n"(static_cast<int>(kAcross)));
  }
  if constexpr (kInputs == 32) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)), "n"(static_cast<int>(kAcross)));
  }
  if constexpr (kInputs == 64) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)), "n"(static_cast<int>(kAcross)));
  }
  if constexpr (kInputs == 80) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %45, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39}, "
        "{%40, %41, %42, %43}, %44, p, 1, 1, %46;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)), "n"(static_cast<int>(kAcross)));
  }
  if constexpr (kInputs == 96) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "{%48, %49, %50, %51}, %52, p, 1, 1, %54;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
          DI_SUMS(10), DI_SUMS(11)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)), "n"(static_cast<int>(kAcross)));
  }
  if constexpr (kInputs == 112) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %61, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55}, "
        "{%56, %57, %58, %59}, %60, p, 1, 1, %62;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
          DI_SUMS(10), DI_SUMS(11), DI_SUMS(12), DI_SUMS(13)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)), "n"(static_cast<int>(kAcross)));
  }
  if constexpr (kInputs == 128) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
          DI_SUMS(10), DI_SUMS(11), DI_SUMS(12), DI_SUMS(13), DI_SUMS(14), DI_SUMS(15)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)), "n"(static_cast<int>(kAcross)));
  }
#undef DI_SUMS
}

}  // namespace deepinfer::cuda
