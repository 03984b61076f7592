// Register-only multiply-add loops: the arithmetic ceiling.

#include "common/ceilings.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace deepinfer::bench {
namespace {

constexpr int kChains = 16;

#if defined(__AVX512BF16__)
void bf16_loop(int64_t iterations) {
  __m512 acc[kChains];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kChains; ++k) acc[k] = _mm512_dpbf16_ps(acc[k], x, x);
    asm volatile("" : "+v"(x));
  }
  for (__m512& a : acc) asm volatile("" ::"v"(a));
}
#endif

using Float16 = float __attribute__((vector_size(64)));
void fp32_loop(int64_t iterations) {
  Float16 acc[4] = {};
  Float16 x = Float16{} + 1.0f;
  for (int64_t i = 0; i < iterations; ++i) {
    for (Float16& a : acc) a = a * x + x;
    asm volatile("" ::: "memory");
  }
  for (Float16& a : acc) asm volatile("" ::"m"(a));
}

}  // namespace

PeakLoop peak_loop() {
#if defined(__AVX512BF16__)
  if (__builtin_cpu_supports("avx512bf16")) return {"bf16", kChains * 64.0, bf16_loop};
#endif
  return {"fp32", 4 * 16 * 2.0, fp32_loop};
}

}  // namespace deepinfer::bench
