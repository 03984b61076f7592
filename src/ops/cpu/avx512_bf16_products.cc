// Matrix products for processors with AVX-512 BF16 and VBMI: `vdpbf16ps` multiplies pairs of bf16 and adds them to fp32 lanes.
// The E8M0 scale of an FP8 tile is added to an exponent (of the inputs for few rows, of the widened weights for many), the scale
// of an FP4 group multiplies the group's lane sums.

#include "ops/cpu/avx512_bf16_formats.h"
#include "ops/cpu/avx512_bf16_kernels.h"

namespace deepinfer::cpu {
namespace {

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

// Row i of column vector v of a tile of r rows lies at (v * r + i) * 64 bytes. bf16: natural order, 32 columns a vector. fp8: the
// order of E4m3Decoder, per block of 64. fp4: that of widen_e2m1, per 128.
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

constexpr int64_t kTileRows = 12;
constexpr int64_t kTileRowsFp4 = 8;
int64_t TileRows(PackKind kind) { return kind == PackKind::kFp4 ? kTileRowsFp4 : kTileRows; }

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

}  // namespace

void set_avx512_bf16_products(CpuKernels& kernels) {
  kernels.scratch_bytes = kScratchBytes;
  kernels.tile_rows = TileRows;
  kernels.packed_row_bytes = PackedRowBytes;
  kernels.pack = Pack;
  kernels.multiply_fp8 = MultiplyFp8;
  kernels.multiply_fp4 = MultiplyFp4;
  kernels.multiply_bf16 = MultiplyBf16;
}

}  // namespace deepinfer::cpu
