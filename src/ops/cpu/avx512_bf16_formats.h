#pragma once

// What the AVX-512 BF16 kernels share: E4M3 and E2M1 widened to bf16 in registers, which is exact (DESIGN §4), scales added to
// exponents, sums of lanes. Everything has internal linkage: the files that include this are compiled for one instruction set
// and must not define inline code that other files could share.

#include <immintrin.h>

#include "ops/cpu/kernels.h"

namespace deepinfer::cpu {
namespace {

using F = __m512;
using I = __m512i;
using B = __m512bh;

inline B as_bh(I v) { return (B)v; }
inline F dot(F acc, I a, I b) { return _mm512_dpbf16_ps(acc, as_bh(a), as_bh(b)); }
inline I load(const void* p) { return _mm512_loadu_si512(p); }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// The fixed tree of lanes: halves, quarters, pairs, one.
inline float reduce(F v) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

// bf16 bits of the 128 magnitudes of E4M3.
struct E4m3Table {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
};
constexpr E4m3Table make_e4m3_table() {
  E4m3Table t{};
  for (int b = 0; b < 128; ++b) {
    int exponent = b >> 3;
    int mantissa = b & 7;
    int bits = 0;
    if (b == 127) {
      bits = 0x7fc0;
    } else if (exponent > 0) {
      bits = (exponent + 120) << 7 | mantissa << 4;
    } else if (mantissa > 0) {
      exponent = 121;  // 2^-6 as a normal number's exponent; shift the leading one into place
      while ((mantissa & 8) == 0) {
        mantissa <<= 1;
        --exponent;
      }
      bits = exponent << 7 | (mantissa & 7) << 4;
    }
    t.low[b] = static_cast<uint8_t>(bits & 255);
    t.high[b] = static_cast<uint8_t>(bits >> 8);
  }
  return t;
}
constexpr E4m3Table kE4m3 = make_e4m3_table();

// 64 E4M3 bytes -> two vectors of bf16. Within each 128-bit lane L the first holds columns 16L..16L+7, the second 16L+8..16L+15.
class E4m3Decoder {
 public:
  E4m3Decoder() : low0_(load(kE4m3.low)), low1_(load(kE4m3.low + 64)), high0_(load(kE4m3.high)), high1_(load(kE4m3.high + 64)) {}

  void widen(I bytes, I* first, I* second) const {
    const I low = _mm512_permutex2var_epi8(low0_, bytes, low1_);
    I high = _mm512_permutex2var_epi8(high0_, bytes, high1_);
    high = _mm512_ternarylogic_epi64(high, bytes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);  // high | (bytes & sign)
    *first = _mm512_unpacklo_epi8(low, high);
    *second = _mm512_unpackhi_epi8(low, high);
  }

 private:
  I low0_, low1_, high0_, high1_;
};

// Adds `bias` to the exponent fields of non-zero bf16 values.
inline I add_exponent(I v, I bias) {
  return _mm512_mask_add_epi16(v, _mm512_test_epi16_mask(v, _mm512_set1_epi16(0x7fff)), v, bias);
}

inline int16_t exponent_bias(uint8_t scale) { return static_cast<int16_t>((static_cast<int>(scale) - 127) * 128); }

// Scratch of a call: on the stack for every size in use, from the heap for absurd ones.
template <int64_t kBytes>
class Scratch {
 public:
  explicit Scratch(int64_t bytes)
      : p_(bytes <= kBytes ? stack_ : static_cast<char*>(__builtin_malloc(static_cast<size_t>(bytes + 64)))) {
    if (p_ == nullptr) __builtin_trap();
  }
  ~Scratch() {
    if (p_ != stack_) __builtin_free(p_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  char* get() { return p_ + (-reinterpret_cast<intptr_t>(p_) & 63); }

 private:
  char* p_;
  alignas(64) char stack_[kBytes];
};

}  // namespace
}  // namespace deepinfer::cpu
