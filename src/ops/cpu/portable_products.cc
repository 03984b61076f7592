// Matrix products for processors without bf16 dot products, written with Google Highway and compiled for several instruction
// sets. Packed weights are widened to fp32, which is exact, and meet fp32 inputs in fused multiply-adds.
//
// Order of summation of a dense row (FP8, bf16): the columns of a stretch of kStretchColumns are dealt to four chains of lane
// sums, which start from zero and are added to the total one after the other. With one input row the chains run side by side,
// with many one after the other from the widened weights; the additions are the same. FP4: the lane sums of a block start from
// zero and join the total times the scales of their groups.

#include "ops/cpu/portable_targets.h"

// Before foreach_target: what follows is compiled several times.
#include <utility>

#include "ops/cpu/portable_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/portable_products.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ops/cpu/portable_formats.h"

#if HWY_TARGET & DEEPINFER_PORTABLE_TARGETS

HWY_BEFORE_NAMESPACE();
namespace deepinfer::cpu::HWY_NAMESPACE {

constexpr int64_t kStretchColumns = 512;
constexpr int64_t kChains = 4;
constexpr int64_t kChainVectors = kStretchColumns / kBlockColumns;
constexpr int64_t kStretchFp4Blocks = kStretchColumns / kFp4Columns;
constexpr int64_t kPrefetchBytes = 4096;

// A tile of inputs and weight rows has the sums of a span in registers, 12 of them, and, where there are 32 registers, the totals
// of its spans as well.
constexpr int64_t kTileRows = 6;
constexpr int64_t tile_weights(int64_t rows) { return rows <= 3 ? 4 : 2; }
constexpr bool kTotalsInRegisters = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON;

int64_t TileRows(PackKind) { return kTileRows; }

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Packed inputs: fp32. FP4: block by block in the order of E2m1Decoder. Else stretch by stretch, in it chain by chain.
int64_t PackedRowBytes(PackKind kind, int64_t k) { return 4 * round_up(k, kind == PackKind::kFp4 ? kFp4Columns : kBlockColumns); }

void pack_fp4(const bf16* x, int64_t k, float* out, int64_t pitch) {
  for (int64_t block = 0; block * kFp4Columns < k; ++block, out += kFp4Vectors * pitch) {
    for (int64_t g = 0; g < kFp4Groups; ++g) {
      const int64_t first = block * kFp4Columns + g * kScaleGroup;
      for (int64_t n = 0; n < kFp4Vectors; ++n) {
        for (int64_t i = 0; i < 4; ++i) {
          out[n * pitch + g * 4 + i] = first < k ? to_float(x[first + E2m1Decoder::column(n, i)]) : 0.0f;
        }
      }
    }
  }
}

// Values below 2^-60 become zero: times a scale of 2^-60 (the smallest that a checkpoint may have) they would leave the normal
// range, and it would matter whether the input or the weight is scaled. Quantised inputs are never that small.
HWY_INLINE F flush_small(F v) { return hn::IfThenElseZero(hn::Ge(hn::Abs(v), hn::Set(FloatTag(), 0x1p-60f)), v); }

void pack_chains(const bf16* x, int64_t k, bool flush, float* out, int64_t pitch) {
  const int64_t blocks = round_up(k, kBlockColumns) / kBlockColumns;
  for (int64_t b0 = 0; b0 < blocks; b0 += kChainVectors) {
    const int64_t count = least(kChainVectors, blocks - b0);
    for (int64_t b = 0; b < count; ++b) {
      const bf16* p = x + (b0 + b) * kBlockColumns;
      bf16 rest[kBlockColumns] = {};
      if (const int64_t left = k - (b0 + b) * kBlockColumns; left < kBlockColumns) {
        std::memcpy(static_cast<void*>(rest), p, static_cast<size_t>(left) * sizeof(bf16));
        p = rest;
      }
      F v[kChains];
      Bf16Format::widen(reinterpret_cast<const uint8_t*>(p), v);
      for (int64_t j = 0; j < kChains; ++j) store(out + (b0 * kChains + j * count + b) * pitch, flush ? flush_small(v[j]) : v[j]);
    }
  }
}

void Pack(PackKind kind, const bf16* x, int64_t k, char* tile, int64_t rows, int64_t row) {
  float* out = reinterpret_cast<float*>(tile) + row * kLanes;
  if (kind == PackKind::kFp4) return pack_fp4(x, k, out, rows * kLanes);
  pack_chains(x, k, kind == PackKind::kFp8, out, rows * kLanes);
}

// --- one or two input rows: weights are widened and used at once, row after row, as one stream per thread ------------------

template <typename Format, int kRows>
HWY_INLINE void add_block(const uint8_t* weights, const float* x, int64_t chain_pitch, F (&sums)[kChains][kRows]) {
  F w[kChains];
  Format::widen(weights, w);
#pragma GCC unroll 4
  for (int64_t j = 0; j < kChains; ++j) {
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) sums[j][r] = hn::MulAdd(w[j], load(x + j * chain_pitch + r * kLanes), sums[j][r]);
  }
}

template <typename Format, int kRows>
void row_chains(const uint8_t* weights, int64_t in, const float* x, float* y, int64_t stride) {
  F total[kRows];
  for (F& t : total) t = zero();
  const int64_t blocks = round_up(in, kBlockColumns) / kBlockColumns;
  const int64_t whole = in / kBlockColumns;
  for (int64_t b0 = 0; b0 < blocks; b0 += kChainVectors) {
    const int64_t count = least(kChainVectors, blocks - b0);
    const int64_t chain_pitch = count * kRows * kLanes;
    F sums[kChains][kRows];
    for (auto& chain : sums) {
      for (F& s : chain) s = zero();
    }
    const uint8_t* p = weights + b0 * Format::kBlockBytes;
    for (int64_t b = least(count, whole - b0); b > 0; --b, p += Format::kBlockBytes, x += kRows * kLanes) {
      hwy::Prefetch(p + kPrefetchBytes);
      add_block<Format, kRows>(p, x, chain_pitch, sums);
    }
    if (b0 + count > whole) {
      uint8_t rest[Format::kBlockBytes] = {};
      std::memcpy(rest, p, static_cast<size_t>(in - whole * kBlockColumns) * (Format::kBlockBytes / kBlockColumns));
      add_block<Format, kRows>(rest, x, chain_pitch, sums);
      x += kRows * kLanes;
    }
    x += (kChains - 1) * chain_pitch;
    for (auto& chain : sums) {
      for (int r = 0; r < kRows; ++r) total[r] = hn::Add(total[r], chain[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) y[r * stride] = reduce(total[r]);
}

template <int kRows>
HWY_INLINE void add_fp4_block(const E2m1Decoder& decoder, const uint8_t* codes, F scale, const float* x, F (&total)[kRows]) {
  F w[kFp4Vectors];
  decoder.widen(codes, w);
  F sums[kRows];
  for (F& s : sums) s = zero();
#pragma GCC unroll 8
  for (int n = 0; n < kFp4Vectors; ++n) {
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) sums[r] = hn::MulAdd(w[n], load(x + (n * kRows + r) * kLanes), sums[r]);
  }
  for (int r = 0; r < kRows; ++r) total[r] = hn::MulAdd(sums[r], scale, total[r]);
}

template <int kRows>
void row_fp4(const E2m1Decoder& decoder, const uint8_t* codes, const uint8_t* scales, int64_t in, const float* x, float* y,
             int64_t stride) {
  constexpr int64_t kBlockFloats = kFp4Vectors * kRows * kLanes;
  F total[kRows];
  for (F& t : total) t = zero();
  const int64_t whole = in / kFp4Columns / 4 * 4;
  for (int64_t b = 0; b < whole; b += 4, codes += 4 * kFp4Bytes, scales += kLanes, x += 4 * kBlockFloats) {
    const F four = load_scales(scales);
#pragma GCC unroll 4
    for (int64_t q = 0; q < 4; ++q) {
      hwy::Prefetch(codes + q * kFp4Bytes + kPrefetchBytes);
      add_fp4_block<kRows>(decoder, codes + q * kFp4Bytes, spread_scales(four, q), x + q * kBlockFloats, total);
    }
  }
  if (const int64_t left = in - whole * kFp4Columns; left > 0) {
    uint8_t rest[4 * kFp4Bytes] = {};
    uint8_t rest_scales[kLanes] = {};
    std::memcpy(rest, codes, static_cast<size_t>(left / 2));
    std::memcpy(rest_scales, scales, static_cast<size_t>(left / kScaleGroup));
    const F four = load_scales(rest_scales);
    for (int64_t q = 0; q * kFp4Columns < left; ++q) {
      add_fp4_block<kRows>(decoder, rest + q * kFp4Bytes, spread_scales(four, q), x + q * kBlockFloats, total);
    }
  }
  for (int r = 0; r < kRows; ++r) y[r * stride] = reduce(total[r]);
}

// --- many input rows: blocks of weights are widened once for kBatchRows inputs and stay in the second-level cache ------------

constexpr int64_t kBatchRows = 96;
constexpr int64_t kBatchWeights = 32;
constexpr int64_t kFewRows = 2 * kTileRows;  // up to so many, a few weight rows at a time, which stay in the first level
constexpr int64_t kFewWeights = 4;
constexpr int64_t kWidePitch = kStretchColumns + kStretchFp4Blocks * kLanes;  // scales of FP4 blocks follow the weights
constexpr int64_t kSumFloats = kBatchRows * kBatchWeights * kLanes;
constexpr int64_t kScratchBytes = 4 * (kSumFloats + kBatchWeights * kWidePitch);
static_assert(kBatchRows % kTileRows == 0);

// Otherwise each multiply-add loads the input anew, and loads, not multiplications, set the pace.
HWY_INLINE void keep_in_register(F& v) {
#if HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#elif HWY_ARCH_ARM
  asm("" : "+w"(v.raw));
#endif
}

// What a tile adds to its sums [kWeights][kRows]: `spans` spans of `vectors` vectors, each summed from zero.
struct Spans {
  int64_t spans;
  int64_t vectors;
};

// One vector of every input times one of every weight row. Those of which there are fewer are in registers.
template <int kRows, int kWeights>
HWY_INLINE void add_vector(const float* weights, const float* x, F (&s)[kRows * kWeights]) {
  if constexpr (kRows > kWeights) {
    F w[kWeights];
#pragma GCC unroll 2
    for (int i = 0; i < kWeights; ++i) w[i] = load(weights + i * kWidePitch);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      F a = load(x + r * kLanes);
      if constexpr (kWeights > 1) keep_in_register(a);
#pragma GCC unroll 2
      for (int i = 0; i < kWeights; ++i) s[i * kRows + r] = hn::MulAdd(w[i], a, s[i * kRows + r]);
    }
  } else {
    F a[kRows];
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) a[r] = load(x + r * kLanes);
#pragma GCC unroll 4
    for (int i = 0; i < kWeights; ++i) {
      F w = load(weights + i * kWidePitch);
      if constexpr (kRows > 1) keep_in_register(w);
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) s[i * kRows + r] = hn::MulAdd(w, a[r], s[i * kRows + r]);
    }
  }
}

template <int kRows, int kWeights, bool kScaled>
void add_tile(float* sums, bool first, const float* weights, Spans n, const float* x) {
  constexpr int kSums = kRows * kWeights;
  const float* scales = weights + kStretchColumns;
  F totals[kSums];
  if constexpr (kTotalsInRegisters) {
#pragma GCC unroll 12
    for (int k = 0; k < kSums; ++k) totals[k] = first ? zero() : load(sums + k * kLanes);
  }
  for (int64_t span = 0; span < n.spans; ++span, scales += kLanes) {
    F s[kSums];
#pragma GCC unroll 12
    for (int k = 0; k < kSums; ++k) s[k] = zero();
    for (int64_t v = 0; v < n.vectors; ++v, weights += kLanes, x += kRows * kLanes) {
      add_vector<kRows, kWeights>(weights, x, s);
    }
    const auto add = [&](F part, int k, F old) HWY_ATTR {
      return kScaled ? hn::MulAdd(part, load(scales + k / kRows * kWidePitch), old) : hn::Add(old, part);
    };
    if constexpr (kTotalsInRegisters) {
#pragma GCC unroll 12
      for (int k = 0; k < kSums; ++k) totals[k] = add(s[k], k, totals[k]);
    } else {
      const bool start = first && span == 0;
#pragma GCC unroll 12
      for (int k = 0; k < kSums; ++k) store(sums + k * kLanes, add(s[k], k, start ? zero() : load(sums + k * kLanes)));
    }
  }
  if constexpr (kTotalsInRegisters) {
#pragma GCC unroll 12
    for (int k = 0; k < kSums; ++k) store(sums + k * kLanes, totals[k]);
  }
}

using TileFunction = void (*)(float* sums, bool first, const float* weights, Spans n, const float* x);
template <bool kScaled, int... kRows>
constexpr TileFunction tile_function(int64_t rows, bool single, std::integer_sequence<int, kRows...>) {
  constexpr TileFunction kWhole[] = {add_tile<kRows + 1, tile_weights(kRows + 1), kScaled>...};
  constexpr TileFunction kSingle[] = {add_tile<kRows + 1, 1, kScaled>...};
  return single ? kSingle[rows - 1] : kWhole[rows - 1];
}

// widen(o, stretch, out): weight row o's columns of a stretch. spans(stretch): how they are summed.
template <bool kScaled, typename Widen, typename SpansOf>
void multiply_batch(int64_t begin, int64_t end, PackKind kind, int64_t k, const char* x, int64_t m, char* scratch, float* y,
                    int64_t stride, Widen widen, SpansOf spans) {
  float* sums = reinterpret_cast<float*>(scratch);
  float* wide = sums + kSumFloats;
  const int64_t row_floats = PackedRowBytes(kind, k) / 4;
  const int64_t stretches = round_up(k, kStretchColumns) / kStretchColumns;
  const int64_t step = m <= kFewRows ? kFewWeights : kBatchWeights;
  constexpr std::make_integer_sequence<int, kTileRows> kRowCounts{};
  for (int64_t m0 = 0; m0 < m; m0 += kBatchRows) {
    const int64_t batch = least(kBatchRows, m - m0);
    for (int64_t o = begin; o < end; o += step) {
      const int64_t weights = least(step, end - o);
      for (int64_t c = 0; c < stretches; ++c) {
        for (int64_t w = 0; w < weights; ++w) widen(o + w, c, wide + w * kWidePitch);
        for (int64_t t = 0; t < batch; t += kTileRows) {
          const int64_t rows = least(kTileRows, batch - t);
          const float* input = reinterpret_cast<const float*>(x) + (m0 + t) * row_floats + c * kStretchColumns * rows;
          float* tile = sums + t * kBatchWeights * kLanes;
          const TileFunction whole = tile_function<kScaled>(rows, false, kRowCounts);
          const TileFunction single = tile_function<kScaled>(rows, true, kRowCounts);
          int64_t w = 0;
          for (; w + tile_weights(rows) <= weights; w += tile_weights(rows)) {
            whole(tile + w * rows * kLanes, c == 0, wide + w * kWidePitch, spans(c), input);
          }
          for (; w < weights; ++w) single(tile + w * rows * kLanes, c == 0, wide + w * kWidePitch, spans(c), input);
        }
      }
      for (int64_t t = 0; t < batch; t += kTileRows) {
        const int64_t rows = least(kTileRows, batch - t);
        const float* tile = sums + t * kBatchWeights * kLanes;
        for (int64_t w = 0; w < weights; ++w) {
          for (int64_t r = 0; r < rows; ++r)
            y[(m0 + t + r) * stride + o + w - begin] = reduce(load(tile + (w * rows + r) * kLanes));
        }
      }
    }
  }
}

// Asks for what is widened next: rows are far apart, so the processor does not see a stream.
inline void prefetch_bytes(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(p + i);
}

// Blocks of a stretch; they are as many vectors in each of the chains.
inline int64_t stretch_blocks(int64_t in, int64_t stretch) {
  return least(kChainVectors, round_up(in, kBlockColumns) / kBlockColumns - stretch * kChainVectors);
}

// One row's blocks of a stretch, chain by chain; scale_of(first column) is what half a block is multiplied with.
template <typename Format, typename ScaleOf>
HWY_INLINE void widen_stretch(const uint8_t* weights, int64_t in, int64_t stretch, float* out, ScaleOf scale_of) {
  const int64_t count = stretch_blocks(in, stretch);
  int64_t column = stretch * kStretchColumns;
  const auto widen = [&](const uint8_t* p) HWY_ATTR {
    F w[kChains];
    Format::widen(p, w);
    const F scales[2] = {scale_of(column), scale_of(column + kBlockColumns / 2)};
#pragma GCC unroll 4
    for (int64_t j = 0; j < kChains; ++j) store(out + j * count * kLanes, hn::Mul(w[j], scales[j & 1]));
    out += kLanes;
    column += kBlockColumns;
  };
  constexpr int64_t kColumnBytes = Format::kBlockBytes / kBlockColumns;
  const int64_t end = least(in, column + kStretchColumns);
  while (column + kBlockColumns <= end) widen(weights + column * kColumnBytes);
  if (column < end) {
    uint8_t rest[Format::kBlockBytes] = {};
    std::memcpy(rest, weights + column * kColumnBytes, static_cast<size_t>((end - column) * kColumnBytes));
    widen(rest);
  }
}

// --- the table's products -------------------------------------------------------------------------------------------------

// Scale of a tile of dense weights, which E4m3Format leaves divided by 2^kE4m3Shift; 2^-60 .. 2^60 (checked at load).
HWY_INLINE F tile_scale(uint8_t byte) {
  const hn::Repartition<uint32_t, FloatTag> d32;
  return hn::BitCast(FloatTag(), hn::ShiftLeft<23>(hn::Set(d32, static_cast<uint32_t>(byte) + kE4m3Shift)));
}

// Packed inputs times the scales of a row of tiles; a product of numbers and powers of two is the same either way.
void scale_inputs(const uint8_t* scales, int64_t in, const float* x, int64_t rows, float* out) {
  const int64_t blocks = round_up(in, kBlockColumns) / kBlockColumns;
  for (int64_t b0 = 0; b0 < blocks; b0 += kChainVectors) {
    const int64_t count = least(kChainVectors, blocks - b0);
    for (int64_t j = 0; j < kChains; ++j) {
      for (int64_t b = b0; b < b0 + count; ++b) {
        const int64_t column = b * kBlockColumns + (j & 1) * (kBlockColumns / 2);
        const F scale = column < in ? tile_scale(scales[column / kScaleGroup]) : zero();
        for (int64_t r = 0; r < rows; ++r, x += kLanes, out += kLanes) store(out, hn::Mul(load(x), scale));
      }
    }
  }
}

void MultiplyFp8(const Fp8Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                 int64_t stride) {
  const int64_t groups = w.in / kScaleGroup;
  if (m <= 2 && m * PackedRowBytes(PackKind::kFp8, w.in) <= kScratchBytes) {
    float* scaled = reinterpret_cast<float*>(scratch);
    for (int64_t o = begin; o < end;) {
      const int64_t tile_end = least(end, (o / kScaleGroup + 1) * kScaleGroup);
      scale_inputs(w.scales + o / kScaleGroup * groups, w.in, reinterpret_cast<const float*>(x), m, scaled);
      for (; o < tile_end; ++o) {
        const auto row = m == 1 ? row_chains<E4m3Format, 1> : row_chains<E4m3Format, 2>;
        row(w.values + o * w.in, w.in, scaled, y + o - begin, stride);
      }
    }
    return;
  }
  const auto widen = [&](int64_t o, int64_t stretch, float* out) HWY_ATTR {
    const uint8_t* row = w.values + o * w.in;
    const uint8_t* scales = w.scales + o / kScaleGroup * groups;
    const auto scale_of = [&](int64_t column)
                              HWY_ATTR { return column < w.in ? tile_scale(scales[column / kScaleGroup]) : zero(); };
    widen_stretch<E4m3Format>(row, w.in, stretch, out, scale_of);
    const int64_t next = (stretch + 1) * kStretchColumns;
    if (next < w.in) prefetch_bytes(row + next, least(w.in - next, kStretchColumns));
  };
  const auto spans = [&](int64_t stretch) { return Spans{kChains, stretch_blocks(w.in, stretch)}; };
  multiply_batch<false>(begin, end, PackKind::kFp8, w.in, x, m, scratch, y, stride, widen, spans);
}

void MultiplyBf16(const Bf16Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                  int64_t stride) {
  const auto* values = reinterpret_cast<const uint8_t*>(w.values);
  if (m <= 2) {
    const auto row = m == 1 ? row_chains<Bf16Format, 1> : row_chains<Bf16Format, 2>;
    for (int64_t o = begin; o < end; ++o) {
      row(values + o * w.in * 2, w.in, reinterpret_cast<const float*>(x), y + o - begin, stride);
    }
    return;
  }
  const auto widen = [&](int64_t o, int64_t stretch, float* out) HWY_ATTR {
    const auto scale_of = [](int64_t) HWY_ATTR { return hn::Set(FloatTag(), 1.0f); };
    widen_stretch<Bf16Format>(values + o * w.in * 2, w.in, stretch, out, scale_of);
  };
  const auto spans = [&](int64_t stretch) { return Spans{kChains, stretch_blocks(w.in, stretch)}; };
  multiply_batch<false>(begin, end, PackKind::kBf16, w.in, x, m, scratch, y, stride, widen, spans);
}

// One row's columns of a stretch, then the scales of its blocks.
HWY_INLINE void widen_fp4_stretch(const E2m1Decoder& decoder, const uint8_t* codes, const uint8_t* scales, int64_t columns,
                                  float* out) {
  for (int64_t b = 0; b * kFp4Columns < columns; b += 4) {
    const uint8_t* p = codes + b * kFp4Bytes;
    const uint8_t* s = scales + b * kFp4Groups;
    uint8_t rest[4 * kFp4Bytes];
    uint8_t rest_scales[kLanes];
    if (const int64_t left = columns - b * kFp4Columns; left < 4 * kFp4Columns) {
      std::memset(rest, 0, sizeof(rest));
      std::memset(rest_scales, 0, sizeof(rest_scales));
      std::memcpy(rest, p, static_cast<size_t>(left / 2));
      std::memcpy(rest_scales, s, static_cast<size_t>(left / kScaleGroup));
      p = rest;
      s = rest_scales;
    }
    const F four = load_scales(s);
    for (int64_t q = 0; q < 4 && (b + q) * kFp4Columns < columns; ++q) {
      F w[kFp4Vectors];
      decoder.widen(p + q * kFp4Bytes, w);
      for (int64_t n = 0; n < kFp4Vectors; ++n) store(out + ((b + q) * kFp4Vectors + n) * kLanes, w[n]);
      store(out + kStretchColumns + (b + q) * kLanes, spread_scales(four, q));
    }
  }
}

void MultiplyFp4(const Fp4Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                 int64_t stride) {
  const E2m1Decoder decoder;
  const int64_t groups = w.in / kScaleGroup;
  if (m <= 2) {
    const auto row = m == 1 ? row_fp4<1> : row_fp4<2>;
    for (int64_t o = begin; o < end; ++o) {
      row(decoder, w.codes + o * (w.in / 2), w.scales + o * groups, w.in, reinterpret_cast<const float*>(x), y + o - begin,
          stride);
    }
    return;
  }
  const auto columns_of = [&](int64_t stretch) { return least(kStretchColumns, w.in - stretch * kStretchColumns); };
  const auto widen = [&](int64_t o, int64_t stretch, float* out) HWY_ATTR {
    const int64_t first = stretch * kStretchColumns;
    const uint8_t* codes = w.codes + (o * w.in + first) / 2;
    widen_fp4_stretch(decoder, codes, w.scales + o * groups + first / kScaleGroup, columns_of(stretch), out);
    const int64_t next = first + kStretchColumns;
    if (next < w.in) prefetch_bytes(codes + kStretchColumns / 2, least(w.in - next, kStretchColumns) / 2);
  };
  const auto spans = [&](int64_t stretch) {
    return Spans{round_up(columns_of(stretch), kFp4Columns) / kFp4Columns, kFp4Vectors};
  };
  multiply_batch<true>(begin, end, PackKind::kFp4, w.in, x, m, scratch, y, stride, widen, spans);
}

void SetProducts(CpuKernels& kernels) {
  kernels.scratch_bytes = kScratchBytes;
  kernels.tile_rows = TileRows;
  kernels.packed_row_bytes = PackedRowBytes;
  kernels.pack = Pack;
  kernels.multiply_fp8 = MultiplyFp8;
  kernels.multiply_fp4 = MultiplyFp4;
  kernels.multiply_bf16 = MultiplyBf16;
}

}  // namespace deepinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE
namespace deepinfer::cpu {

void set_portable_products(CpuKernels& kernels, int64_t target) {
  void (*set)(CpuKernels&) = DEEPINFER_CHOOSE(target, SetProducts);
  set(kernels);
}

}  // namespace deepinfer::cpu
#endif
