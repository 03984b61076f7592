#pragma once

// Products of a warpgroup whose rows lie in registers and whose inputs lie in shared memory, for every number of inputs from 8 to
// 160 in steps of eight: a tile of inputs pays for its own size.

#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

// The sums of eight inputs as operands, and their places in the instruction.
#define DI_SUMS(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define DI_SUMS_8 DI_SUMS(0)
#define DI_PLACES_8 "%0, %1, %2, %3"
#define DI_SUMS_16 DI_SUMS_8, DI_SUMS(1)
#define DI_PLACES_16 DI_PLACES_8 ", %4, %5, %6, %7"
#define DI_SUMS_24 DI_SUMS_16, DI_SUMS(2)
#define DI_PLACES_24 DI_PLACES_16 ", %8, %9, %10, %11"
#define DI_SUMS_32 DI_SUMS_24, DI_SUMS(3)
#define DI_PLACES_32 DI_PLACES_24 ", %12, %13, %14, %15"
#define DI_SUMS_40 DI_SUMS_32, DI_SUMS(4)
#define DI_PLACES_40 DI_PLACES_32 ", %16, %17, %18, %19"
#define DI_SUMS_48 DI_SUMS_40, DI_SUMS(5)
#define DI_PLACES_48 DI_PLACES_40 ", %20, %21, %22, %23"
#define DI_SUMS_56 DI_SUMS_48, DI_SUMS(6)
#define DI_PLACES_56 DI_PLACES_48 ", %24, %25, %26, %27"
#define DI_SUMS_64 DI_SUMS_56, DI_SUMS(7)
#define DI_PLACES_64 DI_PLACES_56 ", %28, %29, %30, %31"
#define DI_SUMS_72 DI_SUMS_64, DI_SUMS(8)
#define DI_PLACES_72 DI_PLACES_64 ", %32, %33, %34, %35"
#define DI_SUMS_80 DI_SUMS_72, DI_SUMS(9)
#define DI_PLACES_80 DI_PLACES_72 ", %36, %37, %38, %39"
#define DI_SUMS_88 DI_SUMS_80, DI_SUMS(10)
#define DI_PLACES_88 DI_PLACES_80 ", %40, %41, %42, %43"
#define DI_SUMS_96 DI_SUMS_88, DI_SUMS(11)
#define DI_PLACES_96 DI_PLACES_88 ", %44, %45, %46, %47"
#define DI_SUMS_104 DI_SUMS_96, DI_SUMS(12)
#define DI_PLACES_104 DI_PLACES_96 ", %48, %49, %50, %51"
#define DI_SUMS_112 DI_SUMS_104, DI_SUMS(13)
#define DI_PLACES_112 DI_PLACES_104 ", %52, %53, %54, %55"
#define DI_SUMS_120 DI_SUMS_112, DI_SUMS(14)
#define DI_PLACES_120 DI_PLACES_112 ", %56, %57, %58, %59"
#define DI_SUMS_128 DI_SUMS_120, DI_SUMS(15)
#define DI_PLACES_128 DI_PLACES_120 ", %60, %61, %62, %63"
#define DI_SUMS_136 DI_SUMS_128, DI_SUMS(16)
#define DI_PLACES_136 DI_PLACES_128 ", %64, %65, %66, %67"
#define DI_SUMS_144 DI_SUMS_136, DI_SUMS(17)
#define DI_PLACES_144 DI_PLACES_136 ", %68, %69, %70, %71"
#define DI_SUMS_152 DI_SUMS_144, DI_SUMS(18)
#define DI_PLACES_152 DI_PLACES_144 ", %72, %73, %74, %75"
#define DI_SUMS_160 DI_SUMS_152, DI_SUMS(19)
#define DI_PLACES_160 DI_PLACES_152 ", %76, %77, %78, %79"
// `row`: the places of the four registers of the rows; then that of the inputs, and that of the condition.
#define DI_PRODUCT(n, row, inputs_at, add_at)                                                            \
  if constexpr (kInputs == n) {                                                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n \
                 "k16.f32.bf16.bf16 {" DI_PLACES_##n "}, {" row "}, " inputs_at ", p, 1, 1, 0;\n}"       \
                 : DI_SUMS_##n                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add))); \
  }

/// c (+)= a x inputs, of 16 columns: a as of mma.m16n8k16, 16 rows a warp; `inputs` describes kInputs rows (swizzled_rows).
template <int kInputs>
__device__ inline void multiply_tile_rows(float (&c)[kInputs / 8][4], const uint32_t (&a)[4], uint64_t inputs, bool add) {
  static_assert(kInputs % 8 == 0 && kInputs >= 8 && kInputs <= 160);
  DI_PRODUCT(8, "%4, %5, %6, %7", "%8", "%9")
  DI_PRODUCT(16, "%8, %9, %10, %11", "%12", "%13")
  DI_PRODUCT(24, "%12, %13, %14, %15", "%16", "%17")
  DI_PRODUCT(32, "%16, %17, %18, %19", "%20", "%21")
  DI_PRODUCT(40, "%20, %21, %22, %23", "%24", "%25")
  DI_PRODUCT(48, "%24, %25, %26, %27", "%28", "%29")
  DI_PRODUCT(56, "%28, %29, %30, %31", "%32", "%33")
  DI_PRODUCT(64, "%32, %33, %34, %35", "%36", "%37")
  DI_PRODUCT(72, "%36, %37, %38, %39", "%40", "%41")
  DI_PRODUCT(80, "%40, %41, %42, %43", "%44", "%45")
  DI_PRODUCT(88, "%44, %45, %46, %47", "%48", "%49")
  DI_PRODUCT(96, "%48, %49, %50, %51", "%52", "%53")
  DI_PRODUCT(104, "%52, %53, %54, %55", "%56", "%57")
  DI_PRODUCT(112, "%56, %57, %58, %59", "%60", "%61")
  DI_PRODUCT(120, "%60, %61, %62, %63", "%64", "%65")
  DI_PRODUCT(128, "%64, %65, %66, %67", "%68", "%69")
  DI_PRODUCT(136, "%68, %69, %70, %71", "%72", "%73")
  DI_PRODUCT(144, "%72, %73, %74, %75", "%76", "%77")
  DI_PRODUCT(152, "%76, %77, %78, %79", "%80", "%81")
  DI_PRODUCT(160, "%80, %81, %82, %83", "%84", "%85")
}

#undef DI_PRODUCT
#undef DI_SUMS
#undef DI_SUMS_8
#undef DI_PLACES_8
#undef DI_SUMS_16
#undef DI_PLACES_16
#undef DI_SUMS_24
#undef DI_PLACES_24
#undef DI_SUMS_32
#undef DI_PLACES_32
#undef DI_SUMS_40
#undef DI_PLACES_40
#undef DI_SUMS_48
#undef DI_PLACES_48
#undef DI_SUMS_56
#undef DI_PLACES_56
#undef DI_SUMS_64
#undef DI_PLACES_64
#undef DI_SUMS_72
#undef DI_PLACES_72
#undef DI_SUMS_80
#undef DI_PLACES_80
#undef DI_SUMS_88
#undef DI_PLACES_88
#undef DI_SUMS_96
#undef DI_PLACES_96
#undef DI_SUMS_104
#undef DI_PLACES_104
#undef DI_SUMS_112
#undef DI_PLACES_112
#undef DI_SUMS_120
#undef DI_PLACES_120
#undef DI_SUMS_128
#undef DI_PLACES_128
#undef DI_SUMS_136
#undef DI_PLACES_136
#undef DI_SUMS_144
#undef DI_PLACES_144
#undef DI_SUMS_152
#undef DI_PLACES_152
#undef DI_SUMS_160
#undef DI_PLACES_160

}  // namespace deepinfer::cuda
