#pragma once

// How a warp multiplies 32 rows of a packed weight matrix by up to 8 kTiles input rows. Weights are the A operand of
// mma.m16n8k16 (two tiles of 16 rows), inputs the B operand, so that the columns are added in one order whatever the number of
// input rows. Every lane loads 16 contiguous bytes of each of its four rows and widens them to bf16 in registers, which is exact
// (DESIGN §4); which columns meet in one mma follows from that and is the same everywhere.
//
// Columns are cut into segments of kSegment. A segment is one chain of mma; segments are added in fp32, in ascending order. So no
// chain is long, and segments can be given to several warps.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/fp4_order.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/scratch_sizes.h"
#include "ops/cuda/weight_view.h"

namespace deepinfer::cuda {

inline constexpr int kSegment = static_cast<int>(kSegmentColumns);
inline constexpr int kPanelRows = 32;  ///< weight rows of a warp

/// Columns that the four lanes of a row load at a time.
__host__ __device__ constexpr int chunk_columns(WeightFormat f) { return f == WeightFormat::kFp8 ? 64 : is_fp4(f) ? 128 : 32; }

__device__ inline uint4 load_again(const bf16* p) { return *reinterpret_cast<const uint4*>(p); }

// E4M3 and E2M1 bits put where bf16 has its sign, low exponent and high mantissa bits are the value times 2^-120 or 2^-126,
// subnormals too; the product with 2^120 or 2^126 times the scale is exact.
inline constexpr uint32_t kFp8Bias = 120;
inline constexpr uint32_t kFp4Bias = 126;

__device__ inline uint32_t spread_fp8(uint32_t high_bytes) {
  return (high_bytes & 0x80008000u) | (high_bytes >> 4 & 0x07f007f0u);
}
/// Columns (0, 1), (2, 3), (4, 5), (6, 7) of 8 bytes.
__device__ inline void widen_fp8(uint32_t w0, uint32_t w1, uint32_t (&r)[4]) {
  r[0] = spread_signed_fp8(permute_signed(w0, 0, 0x1800));
  r[1] = spread_signed_fp8(permute_signed(w0, 0, 0x3a20));
  r[2] = spread_signed_fp8(permute_signed(w1, 0, 0x1800));
  r[3] = spread_signed_fp8(permute_signed(w1, 0, 0x3a20));
}
/// Columns (0, 4), (1, 5), (2, 6), (3, 7) of 8 bytes.
__device__ inline void widen_fp8_interleaved(uint32_t w0, uint32_t w1, uint32_t (&r)[4]) {
  r[0] = spread_signed_fp8(permute_signed(w0, w1, 0x4800));
  r[1] = spread_signed_fp8(permute_signed(w0, w1, 0x5910));
  r[2] = spread_signed_fp8(permute_signed(w0, w1, 0x6a20));
  r[3] = spread_signed_fp8(permute_signed(w0, w1, 0x7b30));
}
/// Columns (0, 4), (1, 5), (2, 6), (3, 7) of 8 codes.
template <WeightFormat kFormat = WeightFormat::kFp4>
__device__ inline void widen_fp4(uint32_t w, uint32_t (&r)[4]) {
  if constexpr (kFormat == WeightFormat::kFp4Panels) {
    spread_arranged_fp4(w, r);
  } else {
    spread_fp4(w, r);
  }
}

/// Eight columns, 0 4 1 5 2 6 3 7.
__device__ inline uint4 interleave(const uint4& v) {
  return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
                    __byte_perm(v.y, v.w, 0x7632));
}

/// bf16 pair of 2^(byte - 127 + bias). Above `limit` the rest is in `excess`.
__device__ inline uint32_t scale_pair(uint32_t byte, uint32_t bias) { return (min(byte + bias, 254u) << 7) * 0x10001u; }
__device__ inline uint32_t excess_pair(uint32_t byte, uint32_t bias) {
  if (byte == 0xff) return 0x7fc07fc0u;
  const uint32_t over = byte + bias > 254 ? byte + bias - 254 : 0;
  return ((127 + over) << 7) * 0x10001u;
}

template <WeightFormat kFormat>
struct WeightChunk {
  uint4 rows[4];
  uint32_t scales[4];
};

/// What a lane needs to find its four rows: g, and those 8, 16, 24, or others, behind it. Of kFp4Panels rows and scales are
/// those of a whole chunk.
template <WeightFormat kFormat>
struct WeightPanel {
  static constexpr bool kPanels = kFormat == WeightFormat::kFp4Panels;
  static constexpr int kChunkBytes = kPanels ? kFp4ChunkBytes : 64;  ///< from a chunk of a row to the next
  static constexpr int kChunkScales = kPanels                          ? kFp4ChunkScales
                                      : kFormat == WeightFormat::kBf16 ? 1
                                                                       : chunk_columns(kFormat) / kScaleGroup;
  const uint8_t* values;   ///< row g, from the lane's first byte on
  const uint8_t* scales;   ///< row g; kFp4Panels: the lane's group
  uint32_t value_step[3];  ///< from row g to the others; rows that do not exist repeat the last one
  uint32_t scale_step[3];
  int columns;
  uint32_t rows;  ///< kFp4Panels: a byte for each row, which it is in its panel

  __device__ WeightPanel(const WeightView& w, int64_t first_row, int64_t last_row, int lane, int second = 8, int third = 16,
                         int fourth = 24)
      : columns(static_cast<int>(w.in)), rows(0) {
    const int g = lane / 4;
    if constexpr (kPanels) {
      const int64_t r0 = min(first_row + g, last_row);
      const auto place = [&](int64_t r) { return r / kFp4PanelRows * kFp4PanelRows * (w.in / 2) + r % kFp4PanelRows * 64; };
      const auto scale_place = [&](int64_t r) { return r / kFp4PanelRows * w.in + r % 8 * 16 + r % kFp4PanelRows / 8; };
      values = w.values + place(r0) + lane % 4 * 16;
      scales = w.scales + scale_place(r0) + lane % 4 * 4;
      rows = static_cast<uint32_t>(r0 % kFp4PanelRows);
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const int64_t r = min(first_row + g + (i == 0 ? second : i == 1 ? third : fourth), last_row);
        value_step[i] = static_cast<uint32_t>(place(r) - place(r0));
        scale_step[i] = static_cast<uint32_t>(scale_place(r) - scale_place(r0));
        rows |= static_cast<uint32_t>(r % kFp4PanelRows) << 8 * (i + 1);
      }
      return;
    }
    const int64_t row_bytes = kFormat == WeightFormat::kFp8 ? w.in : is_fp4(kFormat) ? w.in / 2 : w.in * 2;
    const int64_t r0 = min(first_row + g, last_row);
    values = w.values + r0 * row_bytes + lane % 4 * 16;
    const int64_t scale_bytes = w.in / kScaleGroup;
    const auto scale_row = [&](int64_t r) { return (kFormat == WeightFormat::kFp8 ? r / kScaleGroup : r) * scale_bytes; };
    scales = kFormat == WeightFormat::kBf16 ? nullptr : w.scales + scale_row(r0);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int64_t r = min(first_row + g + (i == 0 ? second : i == 1 ? third : fourth), last_row);
      value_step[i] = static_cast<uint32_t>((r - r0) * row_bytes);
      scale_step[i] = static_cast<uint32_t>(scale_row(r) - scale_row(r0));
    }
  }

  /// Where the lane's row g begins in a segment of which every column exists: chunks are at constant distances.
  struct Segment {
    const uint8_t* row;
    const uint8_t* scales;
  };
  __device__ Segment whole_segment(int column, int lane) const {
    if constexpr (kPanels) return {values + column / 128 * kChunkBytes, scales + column / 128 * kChunkScales};
    const int at = kFormat == WeightFormat::kFp8 ? column : is_fp4(kFormat) ? column / 2 : column * 2;
    return {values + at, scales + (column + lane % 4 * (chunk_columns(kFormat) / 4)) / kScaleGroup};
  }
  /// Chunk number `c`, a constant, of a whole segment.
  __device__ void load(const Segment& segment, int c, WeightChunk<kFormat>& chunk) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) chunk.rows[i] = load_once(segment.row + (i == 0 ? 0 : value_step[i - 1]) + c * kChunkBytes);
    if constexpr (kFormat != WeightFormat::kBf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        chunk.scales[i] = load_byte(segment.scales + (i == 0 ? 0 : scale_step[i - 1]) + c * kChunkScales);
    }
  }

  /// `column`: first of the chunk. Columns behind the last are zero.
  __device__ void load(int column, int lane, WeightChunk<kFormat>& chunk) const {
    const int lane_columns = chunk_columns(kFormat) / 4;
    const bool inside = column + lane % 4 * lane_columns < columns;
    if constexpr (kPanels) {
      const int missing = max(column + 128 - columns, 0) / kScaleGroup;  // groups of the chunk
      const auto segment = whole_segment(column, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto row = static_cast<int>(rows >> 8 * i & 0xff);
        const uint32_t at = (i == 0 ? 0 : value_step[i - 1]) - static_cast<uint32_t>(row * missing * 16);
        const uint32_t scale_at = (i == 0 ? 0 : scale_step[i - 1]) - static_cast<uint32_t>(row % 8 * missing * 4);
        chunk.rows[i] = inside ? load_once(segment.row + static_cast<int32_t>(at)) : make_uint4(0, 0, 0, 0);
        chunk.scales[i] = inside ? load_byte(segment.scales + static_cast<int32_t>(scale_at)) : 127;
      }
      return;
    }
    const int64_t at = kFormat == WeightFormat::kFp8 ? column : is_fp4(kFormat) ? column / 2 : column * 2;
    const int group = (column + lane % 4 * lane_columns) / kScaleGroup;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      chunk.rows[i] = inside ? load_once(values + (i == 0 ? 0 : value_step[i - 1]) + at) : make_uint4(0, 0, 0, 0);
    }
    if constexpr (kFormat != WeightFormat::kBf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) chunk.scales[i] = inside ? load_byte(scales + (i == 0 ? 0 : scale_step[i - 1]) + group) : 127;
    }
  }
};

/// Four words of a row, 2 mma steps of 4 columns a lane each, as A registers in the order of the inputs.
template <WeightFormat kFormat, bool kInterleaved, bool kWide>
__device__ inline void widen_words(const uint4& row, int pair, uint32_t scale, uint32_t excess, uint32_t (&r)[4]) {
  const uint32_t words[4] = {row.x, row.y, row.z, row.w};
  if constexpr (kFormat == WeightFormat::kBf16) {
    r[0] = words[0], r[1] = words[1], r[2] = words[2], r[3] = words[3];
  } else {
    if constexpr (is_fp4(kFormat)) {
      static_assert(kInterleaved);
      widen_fp4<kFormat>(words[pair], r);
    } else if constexpr (kInterleaved) {
      widen_fp8_interleaved(words[2 * pair], words[2 * pair + 1], r);
    } else {
      widen_fp8(words[2 * pair], words[2 * pair + 1], r);
    }
#pragma unroll
    for (uint32_t& v : r) v = multiply_bf16x2(v, scale);
    if constexpr (kWide) {
#pragma unroll
      for (uint32_t& v : r) v = multiply_bf16x2(v, excess);
    }
  }
}

/// Adds the products of kPairs times 8 columns a lane. `widen(i, pair, r)`: the columns of the lane's row i as A registers;
/// `inputs(tile, pair)`: the four B registers of the same columns, for input tile `tile`.
template <int kPairs, int kTiles, typename Widen, typename Inputs>
__device__ inline void multiply_pairs(const Widen& widen, const Inputs& inputs, float (&c)[2][kTiles][4]) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint32_t w[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) widen(i, pair, w[i]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4 x = inputs(tile, pair);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t a0[4] = {w[2 * m][0], w[2 * m + 1][0], w[2 * m][1], w[2 * m + 1][1]};
        const uint32_t a1[4] = {w[2 * m][2], w[2 * m + 1][2], w[2 * m][3], w[2 * m + 1][3]};
        mma(c[m][tile], a0, x.x, x.y);
        mma(c[m][tile], a1, x.z, x.w);
      }
    }
  }
}

template <WeightFormat kFormat, bool kInterleaved, bool kWide, int kTiles, typename Inputs>
__device__ inline void multiply_scaled(const WeightChunk<kFormat>& chunk, const Inputs& inputs, float (&c)[2][kTiles][4]) {
  constexpr uint32_t kBias = kFormat == WeightFormat::kFp8 ? kFp8Bias : kFp4Bias;
  constexpr int kPairs = kFormat == WeightFormat::kFp8 ? 2 : is_fp4(kFormat) ? 4 : 1;
  uint32_t scale[4] = {}, excess[4] = {};
  if constexpr (kFormat != WeightFormat::kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scale[i] = kWide ? scale_pair(chunk.scales[i], kBias) : ((chunk.scales[i] + kBias) << 7) * 0x10001u;
      if (kWide) excess[i] = excess_pair(chunk.scales[i], kBias);
    }
  }
  multiply_pairs<kPairs, kTiles>(
      [&](int i, int pair, uint32_t(&r)[4]) {
        widen_words<kFormat, kInterleaved, kWide>(chunk.rows[i], pair, scale[i], excess[i], r);
      },
      inputs, c);
}

/// The largest scale byte of a chunk, and the largest that one factor can hold.
template <WeightFormat kFormat>
__device__ inline uint32_t largest_scale(const WeightChunk<kFormat>& chunk) {
  return max(max(chunk.scales[0], chunk.scales[1]), max(chunk.scales[2], chunk.scales[3]));
}
template <WeightFormat kFormat>
inline constexpr uint32_t kMostScale = 254 - (kFormat == WeightFormat::kFp8 ? kFp8Bias : kFp4Bias);

/// Adds the products of one chunk. Scales that need two factors are rare, and have a path of their own.
template <WeightFormat kFormat, bool kInterleaved, int kTiles, typename Inputs>
__device__ inline void multiply_chunk(const WeightChunk<kFormat>& chunk, const Inputs& inputs, float (&c)[2][kTiles][4]) {
  if constexpr (kFormat != WeightFormat::kBf16) {
    if (__any_sync(0xffffffffu, largest_scale(chunk) > kMostScale<kFormat>)) {
      multiply_scaled<kFormat, kInterleaved, true, kTiles>(chunk, inputs, c);
      return;
    }
  }
  multiply_scaled<kFormat, kInterleaved, false, kTiles>(chunk, inputs, c);
}

/// 16 bytes at any address: rows of narrow models lie at any byte.
__device__ inline uint4 load_unaligned(const uint8_t* p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  if (at % 16 == 0) return *reinterpret_cast<const uint4*>(p);
  if (at % 4 == 0) {
    const auto* words = reinterpret_cast<const uint32_t*>(p);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) words[i / 4] |= static_cast<uint32_t>(p[i]) << (i % 4 * 8);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// The A registers of one product of a warpgroup: columns 4 half .. 4 half + 3 of the lane's eight of `pair`, of one row.
template <WeightFormat kFormat, bool kInterleaved>
__device__ inline void widen_half(const uint4& row, int pair, int half, uint32_t scale, uint32_t (&r)[2]) {
  const uint32_t words[4] = {row.x, row.y, row.z, row.w};
  if constexpr (is_fp4(kFormat)) {
    static_assert(kInterleaved);
    uint32_t all[4];  // what is not used is not computed
    widen_fp4<kFormat>(words[pair], all);
    r[0] = all[half * 2];
    r[1] = all[half * 2 + 1];
  } else if constexpr (kInterleaved) {
    r[0] = spread_signed_fp8(permute_signed(words[2 * pair], words[2 * pair + 1], half == 0 ? 0x4800 : 0x6a20));
    r[1] = spread_signed_fp8(permute_signed(words[2 * pair], words[2 * pair + 1], half == 0 ? 0x5910 : 0x7b30));
  } else {
    r[0] = spread_signed_fp8(permute_signed(words[2 * pair + half], 0, 0x1800));
    r[1] = spread_signed_fp8(permute_signed(words[2 * pair + half], 0, 0x3a20));
  }
  r[0] = multiply_bf16x2(r[0], scale);
  r[1] = multiply_bf16x2(r[1], scale);
}

}  // namespace deepinfer::cuda
