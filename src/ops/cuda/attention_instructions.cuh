#pragma once

// Instructions that attention alone uses. tests/ops/cuda/emulated has them for a host without a GPU.

#include "ops/cuda/warpgroup_shared.cuh"

namespace deepinfer::cuda {

/// 2^x within two units of the last place; exactly 1 for 0, and 0 far below.
__device__ inline float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// a b, rounded: what is added to it is not put into one instruction with it.
__device__ inline float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }

/// c (+)= rows x keys, of 16 columns: `rows` describes 64 rows, `keys` 32 of them (swizzled_rows).
__device__ inline void multiply_half_tile(float (&c)[4][4], uint64_t rows, uint64_t keys, bool add) {
#define DI_SUMS(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, p, 1, 1, 0, 0;\n}"
      : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3)
      : "l"(rows), "l"(keys), "r"(static_cast<int>(add)));
#undef DI_SUMS
}

/// c[kFirst ..] += rows x values: `rows` describes 64 rows of 16 columns (swizzled_rows), `values` 16 rows that hold one column
/// of 128 outputs each, block after block of 64 (swizzled_matrix). 256 outputs at once would have to fit the registers that a
/// thread has before it takes more.
template <int kFirst>
__device__ inline void multiply_across(float (&c)[32][4], uint64_t rows, uint64_t values) {
#define DI_SUMS(j) "+f"(c[kFirst + j][0]), "+f"(c[kFirst + j][1]), "+f"(c[kFirst + j][2]), "+f"(c[kFirst + j][3])
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 1;\n}"
      : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
        DI_SUMS(10), DI_SUMS(11), DI_SUMS(12), DI_SUMS(13), DI_SUMS(14), DI_SUMS(15)
      : "l"(rows), "l"(values), "r"(1));
#undef DI_SUMS
}

}  // namespace deepinfer::cuda
