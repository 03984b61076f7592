#pragma once

// Products of a warpgroup whose numbers are of eight bits.

#include <cstdint>

namespace deepinfer::cuda {

/// c = a x inputs: 64 rows, 16 of each warp, by 16 rows of 32 E4M3 numbers in shared memory. A lane of four has columns
/// 4 t .. 4 t + 3 of rows g and g + 8 in a[0] and a[1], and those 16 behind them in a[2] and a[3]. The unit keeps only some 13
/// bits behind the highest: what fits in so many is exact, and nothing else should be multiplied here.
__device__ inline void multiply_narrow(float (&c)[2][4], const uint32_t (&a)[4], uint64_t inputs) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %12, p, 1, 1;\n}"
      : "=f"(c[0][0]), "=f"(c[0][1]), "=f"(c[0][2]), "=f"(c[0][3]), "=f"(c[1][0]), "=f"(c[1][1]), "=f"(c[1][2]), "=f"(c[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs));
}

}  // namespace deepinfer::cuda
