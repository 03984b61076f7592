// Kernels for processors with AVX-512 BF16 and VBMI: `vdpbf16ps` multiplies pairs of bf16 and adds them to fp32 lanes. FP8 and
// FP4 weights are widened to bf16 in registers, which is exact (DESIGN §4); the E8M0 scale of an FP8 tile is added to the
// exponent of the widened weights, the scale of an FP4 group multiplies the group's lane sums.
//
// This file is compiled for one instruction set and must stay free of inline code that other files could share.

#include "ops/cpu/kernels.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include <immintrin.h>

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

// ---- formats ------------------------------------------------------------------------------------------------------------------

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

// Exponent biases of the two groups of 32 columns in each block of 64: one vector a block.
inline void fill_biases(const uint8_t* scales, int64_t groups, I* biases) {
  for (int64_t g = 0; g < groups; g += 2) {
    const __m256i a = _mm256_set1_epi16(exponent_bias(scales[g]));
    const __m256i b = _mm256_set1_epi16(g + 1 < groups ? exponent_bias(scales[g + 1]) : int16_t{0});
    biases[g / 2] = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  }
}

// Packed inputs [blocks][2][rows] of 64 bytes times the scales of their groups.
inline void scale_inputs(const uint8_t* scales, int64_t groups, const char* x, int64_t rows, char* out) {
  for (int64_t g = 0; g < groups; g += 2) {
    I bias;
    fill_biases(scales + g, least(2, groups - g), &bias);
    for (int64_t r = 0; r < 2 * rows; ++r)
      _mm512_store_si512(out + (g * rows + r) * 64, add_exponent(_mm512_load_si512(x + (g * rows + r) * 64), bias));
  }
}

alignas(64) constexpr uint16_t kE2m1Bf16[32] = {0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                                0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0,
                                                0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                                0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

// 64 bytes of codes -> four vectors of bf16; vector n holds columns 4i + n, i = 0..31. The table has each value twice, because
// the index is five bits wide and the fifth belongs to the neighbour.
inline void widen_e2m1(I words, I table, I* out) {
  out[0] = _mm512_permutexvar_epi16(words, table);
  out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
  out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table);
  out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table);
}

// Scales of the four groups in a block of 128 columns, each in the four lanes that its columns add to.
inline F e8m0_lanes(uint32_t bytes) {
  const __m128i s = _mm_slli_epi32(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(static_cast<int>(bytes))), 23);
  const I spread = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_castsi128_ps(s)));
}

inline uint32_t load_scales(const uint8_t* p, int64_t count) {
  uint32_t v = 0;
  __builtin_memcpy(&v, p, static_cast<size_t>(count));
  return v;
}

// ---- packed inputs
// --------------------------------------------------------------------------------------------------------------

// bf16: natural order, 32 columns a vector. fp8: the order of E4m3Decoder, per block of 64. fp4: that of widen_e2m1, per 128.
int64_t PackedRowBytes(PackKind kind, int64_t k) {
  const int64_t block = kind == PackKind::kBf16 ? 32 : kind == PackKind::kFp8 ? 64 : 128;
  return (k + block - 1) / block * block * 2;
}

inline I load_columns(const bf16* x, int64_t at, int64_t k) {
  const int64_t left = k - at;
  if (left >= 32) return load(x + at);
  if (left <= 0) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16((1u << left) - 1u, x + at);
}

// Values below 2^-60 become zero: times a scale of 2^-60 (the smallest that a checkpoint may have) they would leave the normal
// range. Quantised inputs are never that small; the attention output, which is not quantised, may be.
inline I flush_small(I v) {
  const I magnitude = _mm512_and_si512(v, _mm512_set1_epi16(0x7fff));
  return _mm512_maskz_mov_epi16(_mm512_cmp_epu16_mask(magnitude, _mm512_set1_epi16((127 - 60) << 7), _MM_CMPINT_NLT), v);
}

void Pack(PackKind kind, const bf16* x, int64_t k, char* tile, int64_t rows, int64_t row) {
  const auto out = [&](int64_t v) { return static_cast<void*>(tile + (v * rows + row) * 64); };
  if (kind == PackKind::kBf16) {
    for (int64_t c = 0; c < k; c += 32) _mm512_store_si512(out(c / 32), load_columns(x, c, k));
  } else if (kind == PackKind::kFp8) {
    for (int64_t c = 0; c < k; c += 64) {
      const I a = flush_small(load_columns(x, c, k));
      const I b = flush_small(load_columns(x, c + 32, k));
      _mm512_store_si512(out(c / 32), _mm512_shuffle_i64x2(a, b, 0x88));
      _mm512_store_si512(out(c / 32 + 1), _mm512_shuffle_i64x2(a, b, 0xdd));
    }
  } else {
    for (int64_t c = 0; c < k; c += 128) {
      const I a = load_columns(x, c, k);
      const I b = load_columns(x, c + 32, k);
      const I d = load_columns(x, c + 64, k);
      const I e = load_columns(x, c + 96, k);
      alignas(64) int16_t index[32];
      for (int16_t n = 0; n < 4; ++n) {
        for (int16_t i = 0; i < 32; ++i) index[i] = static_cast<int16_t>((4 * (i % 16) + n) & 63);
        const I pick = load(index);
        const I low = _mm512_permutex2var_epi16(a, pick, b);
        const I high = _mm512_permutex2var_epi16(d, pick, e);
        _mm512_store_si512(out(c / 32 + n), _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1));
      }
    }
  }
}

// ---- products
// -------------------------------------------------------------------------------------------------------------------

template <int kRows, int kWeights>
struct Sums {
  F v[kWeights][kRows];
};

template <int kRows, int kWeights>
inline void write_sums(const Sums<kRows, kWeights>& s, float* y, int64_t stride, int64_t m, int64_t o) {
  for (int w = 0; w < kWeights; ++w) {
    for (int r = 0; r < kRows; ++r) y[(m + r) * stride + o + w] = reduce(s.v[w][r]);
  }
}

// Lane sums of kSpan column vectors start from zero and are then added to the total, in order. Without that, one row's sum is a
// single chain of dependent instructions, and the chain, not memory, sets the pace; with it, spans overlap.
constexpr int64_t kSpan = 40;

// Few input rows: weights are read once, row after row, as one stream per thread. Several rows at a time read memory 10 to 15 %
// slower (bench/lab/README.md).
constexpr int64_t kPrefetchBytes = 4096;

template <int kRows>
void row_bf16(const char* weights, int64_t vectors, const char* x, float* y, int64_t stride, int64_t o) {
  F s[kRows];
  for (F& v : s) v = _mm512_setzero_ps();
  for (int64_t v0 = 0; v0 < vectors; v0 += kSpan) {
    F t[kRows];
    for (F& v : t) v = _mm512_setzero_ps();
    const int64_t v1 = least(vectors, v0 + kSpan);
    for (int64_t v = v0; v < v1; ++v) {
      const char* p = weights + v * 64;
      _mm_prefetch(p + kPrefetchBytes, _MM_HINT_T0);
      const I w = load(p);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) t[r] = dot(t[r], w, _mm512_load_si512(x + (v * kRows + r) * 64));
    }
    for (int r = 0; r < kRows; ++r) s[r] = _mm512_add_ps(s[r], t[r]);
  }
  for (int r = 0; r < kRows; ++r) y[r * stride + o] = reduce(s[r]);
}

template <int kRows>
void row_fp8(const E4m3Decoder& shared, const uint8_t* values, int64_t in, const char* x, float* y, int64_t stride, int64_t o) {
  const E4m3Decoder decoder = shared;  // in registers
  F s[kRows];
  for (F& v : s) v = _mm512_setzero_ps();
  const int64_t blocks = (in + 63) / 64;
  for (int64_t b0 = 0; b0 < blocks; b0 += kSpan / 2) {
    F t[kRows];
    for (F& v : t) v = _mm512_setzero_ps();
    const int64_t b1 = least(blocks, b0 + kSpan / 2);
    for (int64_t b = b0; b < b1; ++b) {
      const uint8_t* p = values + b * 64;
      _mm_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T0);
      I w0, w1;
      decoder.widen(in - b * 64 >= 64 ? load(p) : _mm512_maskz_loadu_epi8(0xffffffffull, p), &w0, &w1);
      const char* a = x + b * 2 * kRows * 64;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        t[r] = dot(t[r], w0, _mm512_load_si512(a + r * 64));
        t[r] = dot(t[r], w1, _mm512_load_si512(a + (kRows + r) * 64));
      }
    }
    for (int r = 0; r < kRows; ++r) s[r] = _mm512_add_ps(s[r], t[r]);
  }
  for (int r = 0; r < kRows; ++r) y[r * stride + o] = reduce(s[r]);
}

// Calls fn with `rows` as a compile-time number.
template <int kMax, typename Fn>
inline void with_rows(int64_t rows, Fn fn) {
  if constexpr (kMax > 1) {
    if (rows < kMax) return with_rows<kMax - 1>(rows, fn);
  }
  fn.template operator()<kMax>();
}

constexpr int64_t kDirectRows = 4;  // up to so many input rows, weights are widened and used at once

// Many input rows: blocks of kBlockRows inputs meet blocks of kBlockWeights weight rows, kBlockVectors column vectors at a time.
// The widened weights of a block and its lane sums stay in the second-level cache, a tile of inputs and a pair of weight rows in
// the first. The sums are stored and taken up again between column blocks, so the order of additions is that of a single row.
constexpr int64_t kBlockRows = 96;
constexpr int64_t kBlockWeights = 64;
constexpr int64_t kBlockVectors = 40;
static_assert(kBlockVectors % kSpan == 0 && kBlockRows % kTileRows == 0 && kBlockRows % kTileRowsFp4 == 0);
constexpr int64_t kSumBytes = kBlockRows * kBlockWeights * 64;
constexpr int64_t kWideBytes = kBlockWeights * (kBlockVectors + kBlockVectors / 4) * 64;  // FP4 stores scales as well
constexpr int64_t kScratchBytes = kSumBytes + kWideBytes;

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

// Asks for the packed weights of the next column block, or of the next rows' first, while the present one is being multiplied:
// rows are far apart, so the processor does not see a stream.
inline void prefetch_row(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + i, _MM_HINT_T1);
}

// Walks the blocks described above. widen(o, v0, v1, out) writes the weight rows' column vectors [v0, v1) to `out`;
// tile(sums, first, weights, pair rows, tile rows, vectors, inputs) adds one column block to one tile's sums.
template <int64_t kTile, int64_t kVectorUnit, typename Widen, typename Tile>
void multiply_blocks(int64_t begin, int64_t end, int64_t vectors, const char* x, int64_t m, char* scratch, float* y,
                     int64_t stride, Widen widen, Tile tile) {
  F* sums = reinterpret_cast<F*>(scratch);
  char* wide = scratch + kSumBytes;
  const int64_t column_blocks = (vectors + kBlockVectors - 1) / kBlockVectors;
  const int64_t step = ((vectors + column_blocks - 1) / column_blocks + kVectorUnit - 1) / kVectorUnit * kVectorUnit;
  for (int64_t m0 = 0; m0 < m; m0 += kBlockRows) {
    const int64_t block = least(kBlockRows, m - m0);
    for (int64_t o = begin; o < end; o += kBlockWeights) {
      const int64_t weights = least(kBlockWeights, end - o);
      for (int64_t v0 = 0; v0 < vectors; v0 += step) {
        const int64_t v1 = least(vectors, v0 + step);
        int64_t pitch = 0;
        const char* rows = widen(o, weights, v0, v1, wide, &pitch);
        for (int64_t t = 0; t < block; t += kTile) {
          const int64_t tile_rows = least(kTile, block - t);
          const char* input = x + (m0 + t) * vectors * 64 + v0 * tile_rows * 64;
          for (int64_t w = 0; w < weights; w += 2) {
            tile(sums + t * kBlockWeights + w * tile_rows, v0 == 0, rows + w * pitch, pitch, least(2, weights - w), tile_rows,
                 v1 - v0, input);
          }
        }
      }
      for (int64_t t = 0; t < block; t += kTile) {
        const int64_t tile_rows = least(kTile, block - t);
        for (int64_t w = 0; w < weights; ++w) {
          for (int64_t r = 0; r < tile_rows; ++r) {
            y[(m0 + t + r) * stride + o + w - begin] = reduce(sums[t * kBlockWeights + w * tile_rows + r]);
          }
        }
      }
    }
  }
}

// Adds `vectors` column vectors to the sums [kWeights][kRows] of a tile, span by span.
template <int kRows, int kWeights>
void tile_bf16(F* sums, bool first, const char* weights, int64_t pitch, int64_t vectors, const char* x) {
  for (int64_t v0 = 0; v0 < vectors; v0 += kSpan) {
    F s[kWeights][kRows];
#pragma GCC unroll 24
    for (int k = 0; k < kWeights * kRows; ++k) s[k / kRows][k % kRows] = _mm512_setzero_ps();
    const int64_t v1 = least(vectors, v0 + kSpan);
    for (int64_t v = v0; v < v1; ++v) {
      I w[kWeights];
#pragma GCC unroll 2
      for (int i = 0; i < kWeights; ++i) w[i] = load(weights + i * pitch + v * 64);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const I a = _mm512_load_si512(x + (v * kRows + r) * 64);
#pragma GCC unroll 2
        for (int i = 0; i < kWeights; ++i) s[i][r] = dot(s[i][r], w[i], a);
      }
    }
    const bool start = first && v0 == 0;
#pragma GCC unroll 24
    for (int k = 0; k < kWeights * kRows; ++k) {
      sums[k] = _mm512_add_ps(start ? _mm512_setzero_ps() : sums[k], s[k / kRows][k % kRows]);
    }
  }
}

void any_tile_bf16(F* sums, bool first, const char* weights, int64_t pitch, int64_t pair, int64_t rows, int64_t vectors,
                   const char* x) {
  with_rows<kTileRows>(rows, [&]<int kRows>() {
    if (pair == 2) {
      tile_bf16<kRows, 2>(sums, first, weights, pitch, vectors, x);
    } else {
      tile_bf16<kRows, 1>(sums, first, weights, pitch, vectors, x);
    }
  });
}

void MultiplyFp8(const Fp8Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                 int64_t stride) {
  const E4m3Decoder decoder;
  const int64_t groups = w.in / kScaleGroup;
  if (m <= kDirectRows) {
    // 32 rows share their scales, so it is the input that gets them here; a product of numbers and powers of two is the same
    // either way (Pack keeps inputs away from where bf16 ends).
    Scratch<20 << 10> scaled((groups + 1) / 2 * 128 * m);
    for (int64_t o = begin; o < end;) {
      const int64_t tile_end = least(end, (o / kScaleGroup + 1) * kScaleGroup);
      scale_inputs(w.scales + o / kScaleGroup * groups, groups, x, m, scaled.get());
      with_rows<kDirectRows>(m, [&]<int kRows>() {
        for (; o < tile_end; ++o) row_fp8<kRows>(decoder, w.values + o * w.in, w.in, scaled.get(), y, stride, o - begin);
      });
    }
    return;
  }
  const auto widen = [&](int64_t o, int64_t rows, int64_t v0, int64_t v1, char* out, int64_t* pitch) -> const char* {
    *pitch = (v1 - v0) * 64;
    alignas(64) I biases[kBlockVectors / 2 + 1];
    int64_t scale_row = -1;
    for (int64_t i = 0; i < rows; ++i) {
      if ((o + i) / kScaleGroup != scale_row) {
        scale_row = (o + i) / kScaleGroup;
        fill_biases(w.scales + scale_row * groups + v0, least(groups - v0, v1 - v0), biases);
      }
      for (int64_t v = v0; v < v1; v += 2) {
        const uint8_t* p = w.values + (o + i) * w.in + v * 32;
        I w0, w1;
        decoder.widen(w.in - v * 32 >= 64 ? load(p) : _mm512_maskz_loadu_epi8(0xffffffffull, p), &w0, &w1);
        _mm512_store_si512(out + i * *pitch + (v - v0) * 64, add_exponent(w0, biases[(v - v0) / 2]));
        _mm512_store_si512(out + i * *pitch + (v - v0) * 64 + 64, add_exponent(w1, biases[(v - v0) / 2]));
      }
      if (v1 * 32 < w.in) {
        prefetch_row(w.values + (o + i) * w.in + v1 * 32, least(w.in - v1 * 32, (v1 - v0) * 32));
      } else if (o + i + kBlockWeights < w.out) {
        prefetch_row(w.values + (o + i + kBlockWeights) * w.in, (v1 - v0) * 32);
      }
    }
    return out;
  };
  multiply_blocks<kTileRows, kSpan>(begin, end, PackedRowBytes(PackKind::kFp8, w.in) / 64, x, m, scratch, y, stride, widen,
                                    any_tile_bf16);
}

void MultiplyBf16(const Bf16Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                  int64_t stride) {
  // Columns are a multiple of 32 (ModelConfig::validate), so rows need no tail.
  const auto* values = reinterpret_cast<const char*>(w.values);
  const int64_t row_bytes = w.in * 2;
  if (m <= kDirectRows) {
    with_rows<kDirectRows>(m, [&]<int kRows>() {
      for (int64_t o = begin; o < end; ++o) row_bf16<kRows>(values + o * row_bytes, w.in / 32, x, y, stride, o - begin);
    });
    return;
  }
  const auto in_place = [&](int64_t o, int64_t, int64_t v0, int64_t, char*, int64_t* pitch) -> const char* {
    *pitch = row_bytes;
    return values + o * row_bytes + v0 * 64;
  };
  multiply_blocks<kTileRows, kSpan>(begin, end, w.in / 32, x, m, scratch, y, stride, in_place, any_tile_bf16);
}

// One block of 128 columns: lane sums of each group, times the group's scale, join the total.
template <int kRows, int kWeights>
inline void block_fp4(Sums<kRows, kWeights>& s, const I (*w)[4], const F* scale, const char* a) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    F t[kWeights];
#pragma GCC unroll 4
    for (int i = 0; i < kWeights; ++i) t[i] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      const I v = _mm512_load_si512(a + (n * kRows + r) * 64);
#pragma GCC unroll 4
      for (int i = 0; i < kWeights; ++i) t[i] = dot(t[i], w[i][n], v);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kWeights; ++i) s.v[i][r] = _mm512_fmadd_ps(t[i], scale[i], s.v[i][r]);
  }
}

template <int kRows, int kWeights>
void rows_fp4(const uint8_t* codes, const uint8_t* scales, int64_t in, const char* x, float* y, int64_t stride, int64_t m,
              int64_t o) {
  Sums<kRows, kWeights> s;
  for (auto& row : s.v) {
    for (F& v : row) v = _mm512_setzero_ps();
  }
  const I table = load(kE2m1Bf16);
  const int64_t blocks = in / 128;
  for (int64_t b = 0; b < blocks; ++b) {
    I w[kWeights][4];
    F scale[kWeights];
#pragma GCC unroll 4
    for (int i = 0; i < kWeights; ++i) {
      const uint8_t* p = codes + i * (in / 2) + b * 64;
      if constexpr (kRows == 1) _mm_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T0);
      widen_e2m1(load(p), table, w[i]);
      scale[i] = e8m0_lanes(load_scales(scales + i * (in / kScaleGroup) + b * 4, 4));
    }
    block_fp4<kRows, kWeights>(s, w, scale, x + b * 4 * kRows * 64);
  }
  if (const int64_t left = in - blocks * 128; left > 0) {
    I w[kWeights][4];
    F scale[kWeights];
    for (int i = 0; i < kWeights; ++i) {
      const __mmask64 mask = (uint64_t{1} << (left / 2)) - 1;
      widen_e2m1(_mm512_maskz_loadu_epi8(mask, codes + i * (in / 2) + blocks * 64), table, w[i]);
      scale[i] = e8m0_lanes(load_scales(scales + i * (in / kScaleGroup) + blocks * 4, left / kScaleGroup));
    }
    block_fp4<kRows, kWeights>(s, w, scale, x + blocks * 4 * kRows * 64);
  }
  write_sums(s, y, stride, m, o);
}

// Widened FP4 weights in memory: per block of 128 columns four vectors of bf16 and the lane scales.
constexpr int64_t kFp4BlockBytes = 5 * 64;

template <int kRows, int kWeights>
void tile_fp4(F* sums, bool first, const char* weights, int64_t pitch, int64_t blocks, const char* x) {
  Sums<kRows, kWeights> s;
#pragma GCC unroll 16
  for (int k = 0; k < kWeights * kRows; ++k) s.v[k / kRows][k % kRows] = first ? _mm512_setzero_ps() : sums[k];
  for (int64_t b = 0; b < blocks; ++b) {
    I w[kWeights][4];
    F scale[kWeights];
#pragma GCC unroll 2
    for (int i = 0; i < kWeights; ++i) {
      const char* p = weights + i * pitch + b * kFp4BlockBytes;
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) w[i][n] = _mm512_load_si512(p + n * 64);
      scale[i] = _mm512_load_ps(p + 256);
    }
    block_fp4<kRows, kWeights>(s, w, scale, x + b * 4 * kRows * 64);
  }
#pragma GCC unroll 16
  for (int k = 0; k < kWeights * kRows; ++k) sums[k] = s.v[k / kRows][k % kRows];
}

void MultiplyFp4(const Fp4Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                 int64_t stride) {
  const int64_t scale_step = w.in / kScaleGroup;
  const auto codes = [&](int64_t o) { return w.codes + o * (w.in / 2); };
  const auto scales = [&](int64_t o) { return w.scales + o * scale_step; };
  if (m <= 2 * kTileRowsFp4) {  // widening twice costs less than keeping the widened weights
    int64_t o = begin;
    if (m == 1) {
      for (; o < end; ++o) rows_fp4<1, 1>(codes(o), scales(o), w.in, x, y, stride, 0, o - begin);
    }
    const int64_t tile_bytes = kTileRowsFp4 * PackedRowBytes(PackKind::kFp4, w.in);
    for (int64_t step = 2; step >= 1; --step) {
      for (; o + step <= end; o += step) {
        for (int64_t t = 0; t * kTileRowsFp4 < m; ++t) {
          with_rows<kTileRowsFp4>(least(kTileRowsFp4, m - t * kTileRowsFp4), [&]<int kRows>() {
            if (step == 2) {
              rows_fp4<kRows, 2>(codes(o), scales(o), w.in, x + t * tile_bytes, y, stride, t * kTileRowsFp4, o - begin);
            } else {
              rows_fp4<kRows, 1>(codes(o), scales(o), w.in, x + t * tile_bytes, y, stride, t * kTileRowsFp4, o - begin);
            }
          });
        }
      }
    }
    return;
  }
  const I table = load(kE2m1Bf16);
  const auto widen = [&](int64_t o, int64_t rows, int64_t v0, int64_t v1, char* out, int64_t* pitch) -> const char* {
    *pitch = (v1 - v0) / 4 * kFp4BlockBytes;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t b = v0 / 4; b < v1 / 4; ++b) {
        const int64_t columns = w.in - b * 128;
        const uint8_t* source = codes(o + i) + b * 64;
        const uint8_t* scale = scales(o + i) + b * 4;
        I wide[4];
        widen_e2m1(columns >= 128 ? load(source) : _mm512_maskz_loadu_epi8((__mmask64{1} << (columns / 2)) - 1, source), table,
                   wide);
        char* p = out + i * *pitch + (b - v0 / 4) * kFp4BlockBytes;
        for (int n = 0; n < 4; ++n) _mm512_store_si512(p + n * 64, wide[n]);
        _mm512_store_ps(p + 256, e8m0_lanes(columns >= 128 ? load_scales(scale, 4) : load_scales(scale, columns / kScaleGroup)));
      }
      if (v1 * 32 < w.in) {
        prefetch_row(codes(o + i) + v1 * 16, least(w.in / 2 - v1 * 16, (v1 - v0) * 16));
      } else if (o + i + kBlockWeights < w.out) {
        prefetch_row(codes(o + i + kBlockWeights), (v1 - v0) * 16);
      }
    }
    return out;
  };
  const auto tile = [](F* sums, bool first, const char* weights, int64_t pitch, int64_t pair, int64_t rows, int64_t vectors,
                       const char* input) {
    with_rows<kTileRowsFp4>(rows, [&]<int kRows>() {
      if (pair == 2) {
        tile_fp4<kRows, 2>(sums, first, weights, pitch, vectors / 4, input);
      } else {
        tile_fp4<kRows, 1>(sums, first, weights, pitch, vectors / 4, input);
      }
    });
  };
  multiply_blocks<kTileRowsFp4, 4>(begin, end, PackedRowBytes(PackKind::kFp4, w.in) / 64, x, m, scratch, y, stride, widen, tile);
}

// ---- attention
// --------------------------------------------------------------------------------------------------------------------

// Queries: pairs of columns [dim / 2][padded heads], 32 bits each, so that a lane is a head. Values: pairs of list entries
// [count / 2][dim], 32 bits each, so that a lane is a column.
int64_t QueryBytes(int64_t heads, int64_t dim) { return padded_heads(heads) * dim * 2; }
int64_t KeysBytes(int64_t count, int64_t dim) { return (count + 1) / 2 * dim * 4; }

void PackQuery(const bf16* q, int64_t heads, int64_t dim, char* packed) {
  const int64_t padded = padded_heads(heads);
  const I step = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                    _mm512_set1_epi32(static_cast<int>(dim / 2)));
  for (int64_t h = 0; h < padded; h += kHeadLanes) {
    const auto mask = static_cast<__mmask16>((1u << least(kHeadLanes, heads - h)) - 1u);
    for (int64_t p = 0; p < dim / 2; ++p) {
      const I v = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, step, q + h * dim + 2 * p, 4);
      _mm512_store_si512(packed + (p * padded + h) * 4, v);
    }
  }
}

inline F clamp_exp_argument(F x) { return _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(88.0f)); }

// e^x to about one unit in the last place; below -87 it gives 0.
inline F exp16(F x) {
  const F c = clamp_exp_argument(x);
  const F n =
      _mm512_roundscale_ps(_mm512_mul_ps(c, _mm512_set1_ps(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  F r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), c);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  F p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  const F e = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ), e, n);
}

inline F round_to_bf16(F v) {
  const I u = _mm512_castps_si512(v);
  const I odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const I r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Rows of the caches as bf16 in natural order.
void unpack_window(const E4m3Decoder& decoder, const uint8_t* row, int64_t dim, char* out) {
  const I first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const I second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  for (int64_t c = 0; c < dim; c += 64) {
    const bool whole = dim - c >= 64;
    I a, b;
    decoder.widen(whole ? load(row + c) : _mm512_maskz_loadu_epi8(0xffffffffull, row + c), &a, &b);
    const uint8_t* scales = row + dim + c / kScaleGroup;
    _mm512_storeu_si512(out + c * 2,
                        add_exponent(_mm512_permutex2var_epi64(a, first, b), _mm512_set1_epi16(exponent_bias(scales[0]))));
    if (!whole) continue;
    _mm512_storeu_si512(out + c * 2 + 64,
                        add_exponent(_mm512_permutex2var_epi64(a, second, b), _mm512_set1_epi16(exponent_bias(scales[1]))));
  }
}

// 16 columns of packed E2M1 codes (8 bytes) as fp32.
inline F widen_codes(const uint8_t* codes) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
  const F values = _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
  return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high)), values);
}

inline void store_pair(char* out, F low, F high) { _mm512_storeu_si512(out, (I)_mm512_cvtne2ps_pbh(high, low)); }

void unpack_compressed(const uint8_t* row, int64_t dim, char* out) {
  const uint8_t* scales = row + dim / 2;
  for (int64_t c = 0; c < dim; c += 32) {
    const F low = _mm512_mul_ps(widen_codes(row + c / 2), _mm512_set1_ps(kE4m3Values[scales[c / kCacheScaleGroup]]));
    const F high = _mm512_mul_ps(widen_codes(row + c / 2 + 8), _mm512_set1_ps(kE4m3Values[scales[c / kCacheScaleGroup + 1]]));
    store_pair(out + c * 2, low, high);
  }
}

void unpack_index_key(const uint8_t* row, int64_t dim, char* out) {
  for (int64_t c = 0; c < dim; c += 32) {
    const F scale = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(row[dim / 2 + c / kScaleGroup]) << 23));
    store_pair(out + c * 2, _mm512_mul_ps(widen_codes(row + c / 2), scale), _mm512_mul_ps(widen_codes(row + c / 2 + 8), scale));
  }
}

constexpr int64_t kEntries = 4;  // list entries (or index keys) scored together

// acc[e][v] = query heads [16 v ..] . key e, for kVectors vectors of heads.
template <int kVectors>
inline void head_dots(const char* query, int64_t padded, const char* keys, int64_t key_bytes, int64_t pairs,
                      F (&acc)[kEntries][kVectors]) {
  for (auto& entry : acc) {
    for (F& v : entry) v = _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < pairs; ++p) {
    I q[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) q[v] = load(query + (p * padded + v * kHeadLanes) * 4);
#pragma GCC unroll 4
    for (int e = 0; e < kEntries; ++e) {
      int pair;
      __builtin_memcpy(&pair, keys + e * key_bytes + p * 4, 4);
      const I k = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[e][v] = dot(acc[e][v], q[v], k);
    }
  }
}

// Calls fn<n>(first head) for vectors of heads, up to four at a time.
template <typename Fn>
inline void for_head_vectors(int64_t padded, Fn fn) {
  for (int64_t h = 0; h < padded;) {
    const int64_t vectors = (padded - h) / kHeadLanes;
    if (vectors >= 4) {
      fn.template operator()<4>(h);
      h += 4 * kHeadLanes;
    } else if (vectors >= 2) {
      fn.template operator()<2>(h);
      h += 2 * kHeadLanes;
    } else {
      fn.template operator()<1>(h);
      h += kHeadLanes;
    }
  }
}

void ScoreBlock(const AttentionQuery& query, int64_t first, int64_t last, const char* packed_query, int64_t heads, int64_t dim,
                float scale, char* keys, float* scores) {
  const E4m3Decoder decoder;
  const int64_t padded = padded_heads(heads);
  const int64_t window = query.window_last - query.window_first + 1;
  const int64_t key_bytes = dim * 2;
  Scratch<kEntries * 1024> scratch(kEntries * key_bytes + 64);
  char* rows = scratch.get();
  alignas(64) int16_t index[64];
  for (int16_t i = 0; i < 64; ++i) index[i] = static_cast<int16_t>(i / 2 + (i % 2) * 32);
  const I low = load(index);
  const I high = load(index + 32);
  const I factor = _mm512_castps_si512(_mm512_set1_ps(scale));
  for (int64_t i = first; i < last; i += kEntries) {
    for (int64_t e = 0; e < kEntries; ++e) {
      if (i + e >= last) {
        __builtin_memset(rows + e * key_bytes, 0, static_cast<size_t>(key_bytes));
      } else if (i + e < window) {
        unpack_window(decoder, query.window.row(query.window_first + i + e), dim, rows + e * key_bytes);
      } else {
        unpack_compressed(query.compressed.row(query.chosen[i + e - window]), dim, rows + e * key_bytes);
      }
    }
    for (int64_t e = 0; e < kEntries && i + e < last; e += 2) {
      char* out = keys + (i + e) / 2 * dim * 4;
      for (int64_t c = 0; c < dim; c += 32) {
        const I a = load(rows + e * key_bytes + c * 2);
        const I b = load(rows + (e + 1) * key_bytes + c * 2);
        _mm512_storeu_si512(out + c * 4, _mm512_permutex2var_epi16(a, low, b));
        _mm512_storeu_si512(out + c * 4 + 64, _mm512_permutex2var_epi16(a, high, b));
      }
    }
    const int64_t entries = least(kEntries, last - i);
    for_head_vectors(padded, [&]<int kVectors>(int64_t h) {
      F acc[kEntries][kVectors];
      head_dots<kVectors>(packed_query + h * 4, padded, rows, key_bytes, dim / 2, acc);
      for (int64_t e = 0; e < entries; ++e) {
        for (int v = 0; v < kVectors; ++v) {
          _mm512_storeu_ps(scores + (i + e) * padded + h + v * kHeadLanes, _mm512_mul_ps(acc[e][v], _mm512_castsi512_ps(factor)));
        }
      }
    });
  }
}

// Sum over pairs of entries of probability times value, kHeads heads and kVectors vectors of 16 columns.
template <int kHeads, int kVectors>
inline void weigh_values(const float* probabilities, int64_t padded, int64_t pairs, const char* values, int64_t dim,
                         const float* totals, bf16* out) {
  F acc[kHeads][kVectors];
  for (auto& head : acc) {
    for (F& v : head) v = _mm512_setzero_ps();
  }
  for (int64_t j = 0; j < pairs; ++j) {
    I v[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) v[c] = load(values + j * dim * 4 + c * 64);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      int pair;
      __builtin_memcpy(&pair, probabilities + 2 * j * padded + h, 4);
      const I p = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) acc[h][c] = dot(acc[h][c], p, v[c]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < kVectors; ++c) {
      const F o = _mm512_div_ps(acc[h][c], _mm512_set1_ps(totals[h]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + h * dim + c * 16), (__m256i)_mm512_cvtneps_pbh(o));
    }
  }
}

template <int kHeads>
inline void weigh_columns(const float* probabilities, int64_t padded, int64_t pairs, const char* values, int64_t dim,
                          const float* totals, bf16* out) {
  int64_t d = 0;
  for (; d + 64 <= dim; d += 64) weigh_values<kHeads, 4>(probabilities, padded, pairs, values + d * 4, dim, totals, out + d);
  for (; d < dim; d += 32) weigh_values<kHeads, 2>(probabilities, padded, pairs, values + d * 4, dim, totals, out + d);
}

void WeighHeads(int64_t head_begin, int64_t head_end, int64_t heads, int64_t dim, int64_t count, const float* sinks, char* keys,
                float* scores, bf16* out) {
  const int64_t padded = padded_heads(heads);
  const int64_t pairs = (count + 1) / 2;
  for (int64_t h0 = head_begin; h0 < head_end; h0 += kHeadLanes) {
    const int64_t lanes = least(kHeadLanes, heads - h0);
    float* column = scores + h0;
    F top = _mm512_set1_ps(-1e30f);
    for (int64_t i = 0; i < count; ++i) top = _mm512_max_ps(top, _mm512_loadu_ps(column + i * padded));
    F total = _mm512_setzero_ps();
    for (int64_t i = 0; i < count; i += 2) {
      const F a = exp16(_mm512_sub_ps(_mm512_loadu_ps(column + i * padded), top));
      F b = _mm512_setzero_ps();
      total = _mm512_add_ps(total, a);
      if (i + 1 < count) {
        b = exp16(_mm512_sub_ps(_mm512_loadu_ps(column + (i + 1) * padded), top));
        total = _mm512_add_ps(total, b);
      }
      // Probabilities are rounded to bf16 (spec 3.10); entry i in the low half of each lane, i + 1 in the high half.
      const I low = _mm512_srli_epi32(_mm512_castps_si512(round_to_bf16(a)), 16);
      _mm512_storeu_si512(column + i * padded, _mm512_or_si512(low, _mm512_castps_si512(round_to_bf16(b))));
    }
    const auto mask = static_cast<__mmask16>((1u << lanes) - 1u);
    total = _mm512_add_ps(total, exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, sinks + h0), top)));
    alignas(64) float totals[kHeadLanes];
    _mm512_store_ps(totals, total);
    int64_t h = 0;
    for (; h + 4 <= lanes; h += 4) weigh_columns<4>(column + h, padded, pairs, keys, dim, totals + h, out + (h0 + h) * dim);
    for (; h < lanes; ++h) weigh_columns<1>(column + h, padded, pairs, keys, dim, totals + h, out + (h0 + h) * dim);
  }
}

void ScoreIndex(const PagedRows& keys, int64_t first, int64_t last, const char* packed_query, const float* weights, int64_t heads,
                int64_t dim, float* scores) {
  const int64_t padded = padded_heads(heads);
  const int64_t key_bytes = dim * 2;
  Scratch<kEntries * 512> scratch(kEntries * key_bytes + 64);
  char* rows = scratch.get();
  for (int64_t j = first; j < last; j += kEntries) {
    const int64_t entries = least(kEntries, last - j);
    for (int64_t e = 0; e < entries; ++e) unpack_index_key(keys.row(j + e), dim, rows + e * key_bytes);
    F sums[kEntries];
    for (F& s : sums) s = _mm512_setzero_ps();
    for_head_vectors(padded, [&]<int kVectors>(int64_t h) {
      F acc[kEntries][kVectors];
      head_dots<kVectors>(packed_query + h * 4, padded, rows, key_bytes, dim / 2, acc);
      for (int e = 0; e < kEntries; ++e) {
        for (int v = 0; v < kVectors; ++v) {
          const F relu = _mm512_max_ps(round_to_bf16(acc[e][v]), _mm512_setzero_ps());
          sums[e] = _mm512_add_ps(sums[e], round_to_bf16(_mm512_mul_ps(relu, _mm512_loadu_ps(weights + h + v * kHeadLanes))));
        }
      }
    });
    for (int64_t e = 0; e < entries; ++e) {
      alignas(64) float rounded[16];
      _mm512_store_ps(rounded, round_to_bf16(_mm512_set1_ps(reduce(sums[e]))));
      scores[j - first + e] = rounded[0];
    }
  }
}

constexpr CpuKernels kKernels = {"avx512-bf16", kScratchBytes, PackedRowBytes, Pack,       MultiplyFp8, MultiplyFp4, MultiplyBf16,
                                 QueryBytes,    KeysBytes,     PackQuery,      ScoreBlock, WeighHeads,  ScoreIndex};

}  // namespace

const CpuKernels* avx512_bf16_kernels() {
  static const bool have = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
                           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512dq");
  return have ? &kKernels : nullptr;
}

}  // namespace deepinfer::cpu

#else

namespace deepinfer::cpu {
const CpuKernels* avx512_bf16_kernels() { return nullptr; }
}  // namespace deepinfer::cpu

#endif
