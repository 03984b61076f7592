#pragma once

// What the attention kernels of few and of some rows have in common (attention_few.cu, attention.cu): scores of 32 keys, a
// quarter of the dims a warp, one quarter after the other.

#include "ops/cuda/attention_keys.cuh"
#include "ops/cuda/attention_softmax.cuh"

namespace deepinfer::cuda {

inline constexpr int kKeys = 32;        ///< of a score tile
inline constexpr int kQuarters = 4;     ///< warps that share a sum
inline constexpr int kScoreDims = 128;  ///< that a warp multiplies at a time
inline constexpr int kScoreStride = kKeys + 4;
inline constexpr int kSlice = 32;        ///< dims of a warp's values
inline constexpr int kValueKeys = 16;    ///< of a value tile
inline constexpr int kValueStride = 40;  ///< bf16: the rows of an ldmatrix lie in different banks

/// 128 dims of up to 32 keys, as a lane has them: 32 dims of rows g, g + 8, g + 16, g + 24.
struct KeyPiece {
  uint4 data[4][2];    // compressed: the first
  uint32_t scales[4];  // window: a byte; compressed: two
};

__device__ inline void load_keys(const AttentionQuery& a, bool in_window, int first, int keys, int dims, int dim,
                                 KeyPiece& piece) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int t = lane % 4;
  const uint8_t* rows[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rows[i] = key_row(a, first + min(lane / 4 + 8 * i, keys - 1));
  const bool whole = whole_rows(address_of(rows[0]) | address_of(rows[1]) | address_of(rows[2]) | address_of(rows[3]));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    piece.data[i][0] = piece.data[i][1] = make_uint4(0, 0, 0, 0);
    piece.scales[i] = 0;
    const int column = dims + t * 32;
    if (column >= dim) continue;
    if (in_window) {
      piece.data[i][0] = load_row(rows[i] + column, whole);
      piece.data[i][1] = load_row(rows[i] + column + 16, whole);
      piece.scales[i] = rows[i][dim + column / kScaleGroup];
    } else {
      piece.data[i][0] = load_row(rows[i] + column / 2, whole);
      piece.scales[i] = load_scales(rows[i] + dim / 2 + column / kCacheScaleGroup, whole && dim % 4 == 0);
    }
  }
}

/// Where the eight dims begin that a lane multiplies in step `slot` of four; t: lane % 4. In two products: 0 4 1 5, then 2 6 3 7.
__device__ inline int slot_column(int slot, int t) { return t * 32 + slot * 8; }

/// Their products with 8 kTiles heads. `query(tile, slot)`: the dims of the slot of the lane's head g of the tile, interleaved.
template <int kTiles, typename Query>
__device__ inline void multiply_keys(const KeyPiece& piece, bool in_window, const Query& query, float (&c)[2][kTiles][4]) {
  if (in_window) {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      WeightChunk<WeightFormat::kFp8> k;
#pragma unroll
      for (int i = 0; i < 4; ++i) k.rows[i] = piece.data[i][chunk], k.scales[i] = piece.scales[i];
      const auto inputs = [&](int tile, int pair) { return query(tile, chunk * 2 + pair); };
      multiply_chunk<WeightFormat::kFp8, true, kTiles>(k, inputs, c);
    }
    return;
  }
  uint32_t scales[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scales[i][0] = scale_of(piece.scales[i], 0);
    scales[i][1] = scale_of(piece.scales[i], 1);
  }
  multiply_pairs<4, kTiles>(
      [&](int i, int pair, uint32_t(&r)[4]) {
        const uint32_t words[4] = {piece.data[i][0].x, piece.data[i][0].y, piece.data[i][0].z, piece.data[i][0].w};
        widen_compressed(words[pair], scales[i][pair / 2], r);
      },
      query, c);
}

/// One quarter of the dims goes on where the one before it has stopped: sums of 32 keys and 8 kTiles heads at `part`, of a warp
/// each [heads][kScoreStride].
template <int kTiles>
__device__ inline void take_sums(const float* part, float (&c)[2][kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        c[m][n][i] = part[(n * 8 + lane % 4 * 2 + i % 2) * kScoreStride + m * 16 + lane / 4 + i / 2 * 8];
    }
  }
}
template <int kTiles>
__device__ inline void leave_sums(float* part, const float (&c)[2][kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        part[(n * 8 + lane % 4 * 2 + i % 2) * kScoreStride + m * 16 + lane / 4 + i / 2 * 8] = c[m][n][i];
    }
  }
}

/// 16 dims of a key from `column` on.
__device__ inline ValuePiece load_values(const uint8_t* row, bool window, int dim, int column) {
  ValuePiece piece;
  if (window) {
    piece.data = load_unaligned(row + column);
    piece.scale = row[dim + column / kScaleGroup];
  } else {
    const uint8_t* p = row + column / 2;
    if (reinterpret_cast<uintptr_t>(p) % 8 == 0) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      piece.data = make_uint4(v.x, v.y, 0, 0);
    } else {
      uint32_t words[2] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i) words[i / 4] |= static_cast<uint32_t>(p[i]) << (i % 4 * 8);
      piece.data = make_uint4(words[0], words[1], 0, 0);
    }
    piece.scale = row[dim / 2 + column / kCacheScaleGroup];
  }
  return piece;
}

}  // namespace deepinfer::cuda
