// Register-only multiply-add loops: the arithmetic ceiling, each compiled for its own instruction set.

#include "common/ceilings.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace deepinfer::bench {
namespace {

// Chains of instructions: as many as a processor has in flight, and no more than it has registers.
constexpr int kWideChains = 16;
constexpr int kChains = 12;

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) void bf16_loop(int64_t iterations) {
  __m512 acc[kWideChains];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kWideChains; ++k) acc[k] = _mm512_dpbf16_ps(acc[k], x, x);
    asm volatile("" : "+v"(x));
  }
  for (__m512& a : acc) asm volatile("" ::"v"(a));
}

__attribute__((target("avx512f"))) void avx512_loop(int64_t iterations) {
  __m512 acc[kWideChains];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  __m512 x = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kWideChains; ++k) acc[k] = _mm512_fmadd_ps(x, x, acc[k]);
    asm volatile("" : "+v"(x));
  }
  for (__m512& a : acc) asm volatile("" ::"v"(a));
}

__attribute__((target("avx2,fma"))) void avx2_loop(int64_t iterations) {
  __m256 acc[kChains];
  for (__m256& a : acc) a = _mm256_setzero_ps();
  __m256 x = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) acc[k] = _mm256_fmadd_ps(x, x, acc[k]);
    asm volatile("" : "+x"(x));
  }
  for (__m256& a : acc) asm volatile("" ::"x"(a));
}
#elif defined(__aarch64__)
void neon_loop(int64_t iterations) {
  float32x4_t acc[kChains];
  for (float32x4_t& a : acc) a = vdupq_n_f32(0);
  float32x4_t x = vdupq_n_f32(1);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) acc[k] = vfmaq_f32(acc[k], x, x);
    asm volatile("" : "+w"(x));
  }
  for (float32x4_t& a : acc) asm volatile("" ::"w"(a));
}
#endif

// A product and a sum, in vectors that every processor has.
using Float4 = float __attribute__((vector_size(16)));
void plain_loop(int64_t iterations) {
  Float4 acc[kChains] = {};
  Float4 x = Float4{} + 1.0f;
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) acc[k] = acc[k] * x + x;
#if defined(__x86_64__)
    asm volatile("" : "+x"(x));
#endif
  }
  for (Float4& a : acc) asm volatile("" ::"m"(a));
}

}  // namespace

PeakLoop peak_loop(std::string_view kernels) {
#if defined(__x86_64__)
  if (kernels == "avx512-bf16") return {"bf16", kWideChains * 64.0, bf16_loop};
  if (kernels == "avx512") return {"fp32 in 512 bits", kWideChains * 32.0, avx512_loop};
  if (kernels == "avx2") return {"fp32 in 256 bits", kChains * 16.0, avx2_loop};
#elif defined(__aarch64__)
  if (kernels == "neon") return {"fp32 in 128 bits", kChains * 8.0, neon_loop};
#endif
  return {"fp32 in 128 bits, no fused multiply-add", kChains * 8.0, plain_loop};
}

}  // namespace deepinfer::bench
