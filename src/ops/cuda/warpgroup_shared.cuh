#pragma once

// More of Hopper's warpgroups: products whose operands both lie in shared memory, and copies of any length that one thread asks
// for.

#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

/// An arrival, and `bytes` more that have to come before the barrier's phase ends.
__device__ inline void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
/// `bytes` on their way to shared memory, which the barrier counts; everything is a multiple of 16.
__device__ inline void copy_bulk(uint32_t shared, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(from),
               "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
/// `bytes` of shared memory, shown before (show_shared_memory), on their way to memory; and once they have left.
__device__ inline void copy_bulk_out(void* to, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to), "r"(shared),
               "r"(bytes)
               : "memory");
}
__device__ inline void wait_copied_out() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/// Eight bytes to shared memory.
__device__ inline void store_shared_pair(uint32_t address, uint32_t first, uint32_t second) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second) : "memory");
}
/// c (+)= rows x inputs, of 16 columns: `rows` describes 64 rows, `inputs` kInputs of them (swizzled_rows).
template <int kInputs>
__device__ inline void multiply_shared(float (&c)[kInputs / 8][4], uint64_t rows, uint64_t inputs, bool add) {
  static_assert(kInputs == 64 || kInputs == 96 || kInputs == 128 || kInputs == 160 || kInputs == 192);
#define DI_SUMS(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
  if constexpr (kInputs == 64) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
        "%26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7)
        : "l"(rows), "l"(inputs), "r"(static_cast<int>(add)));
  }
  if constexpr (kInputs == 96) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "%48, %49, p, 1, 1, 0, 0;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
          DI_SUMS(10), DI_SUMS(11)
        : "l"(rows), "l"(inputs), "r"(static_cast<int>(add)));
  }
  if constexpr (kInputs == 128) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
          DI_SUMS(10), DI_SUMS(11), DI_SUMS(12), DI_SUMS(13), DI_SUMS(14), DI_SUMS(15)
        : "l"(rows), "l"(inputs), "r"(static_cast<int>(add)));
  }
  if constexpr (kInputs == 160) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
        "%80, %81, p, 1, 1, 0, 0;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
          DI_SUMS(10), DI_SUMS(11), DI_SUMS(12), DI_SUMS(13), DI_SUMS(14), DI_SUMS(15), DI_SUMS(16), DI_SUMS(17), DI_SUMS(18),
          DI_SUMS(19)
        : "l"(rows), "l"(inputs), "r"(static_cast<int>(add)));
  }
  if constexpr (kInputs == 192) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1, 0, 0;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
          DI_SUMS(10), DI_SUMS(11), DI_SUMS(12), DI_SUMS(13), DI_SUMS(14), DI_SUMS(15), DI_SUMS(16), DI_SUMS(17), DI_SUMS(18),
          DI_SUMS(19), DI_SUMS(20), DI_SUMS(21), DI_SUMS(22), DI_SUMS(23)
        : "l"(rows), "l"(inputs), "r"(static_cast<int>(add)));
  }
#undef DI_SUMS
}
/// As multiply_rows, of 48 or 88 inputs.
template <int kInputs>
__device__ inline void multiply_more_rows(float (&c)[kInputs / 8][4], const uint32_t (&a)[4], uint64_t inputs, bool add) {
  static_assert(kInputs == 48 || kInputs == 88);
#define DI_SUMS(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
  if constexpr (kInputs == 48) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23}, "
        "{%24, %25, %26, %27}, %28, p, 1, 1, 0;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)));
  }
  if constexpr (kInputs == 88) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %49, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n88k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43}, "
        "{%44, %45, %46, %47}, %48, p, 1, 1, 0;\n}"
        : DI_SUMS(0), DI_SUMS(1), DI_SUMS(2), DI_SUMS(3), DI_SUMS(4), DI_SUMS(5), DI_SUMS(6), DI_SUMS(7), DI_SUMS(8), DI_SUMS(9),
          DI_SUMS(10)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs), "r"(static_cast<int>(add)));
  }
#undef DI_SUMS
}

}  // namespace deepinfer::cuda
