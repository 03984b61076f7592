#pragma once

// What the kernels that score index keys on warpgroups have in common: queries in shared memory in the order of the products,
// keys as the A operand, 64 a warpgroup, and the sum over the heads. The arithmetic is that of index.cu, to the bit.

#include "ops/cuda/index_scores.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda::wide_index {

inline constexpr int kHeads = 32;
inline constexpr int kDim = 128;
inline constexpr int kGroups = 3;  // warpgroups
inline constexpr int kThreads = kGroups * kWarpgroup;
inline constexpr int kTileKeys = 64;
inline constexpr int kProducts = kDim / 16;
inline constexpr int kRound = kGroups * kTileKeys;
inline constexpr int kMostRounds = 48;  // of a block

// Blocks of many rows, and of one.
template <int kBlockRows, int kProductRows>
struct Shape {
  static constexpr int kRows = kBlockRows;
  static constexpr int kTileRows = kProductRows;  // queries of a product
  static constexpr int kInputs = kTileRows * kHeads;
  static constexpr uint32_t kBlockBytes = kInputs * kSwizzledRow;  // 64 columns of a product's queries
  static constexpr uint32_t kTileBytes = kDim / 64 * kBlockBytes;

  struct Shared {
    uint8_t queries[kRows / kTileRows * kTileBytes];
    uint32_t weights[kRows][kHeads / 2];  // pairs
    int visible[kRows];                   // 0: not scored
    bool restricted[kRows];
  };
};
__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }

// Keys that row r is scored by.
__device__ inline int key_count(const ScoreArgs& args, int64_t r) {
  const IndexRow& row = args.rows[r];
  if (!row.scored) return 0;
  return args.list != nullptr ? args.listed[r] : static_cast<int>(row.visible);
}

// Queries and weights of rows first .. first + count - 1; others, and heads and dims that are not there, are zero.
template <typename Rows>
__device__ void load_rows(const ScoreArgs& args, int64_t first, int count, typename Rows::Shared& s) {
  const int lane = thread_index() % kWarp;
  // A warp takes four heads and, of each 64 columns, eight of every lane that widens keys: stores meet in no bank.
  constexpr int kFours = Rows::kRows * kHeads / 4;
  constexpr int kBatch = 4;  // loads under way
  for (int first_four = thread_index() / kWarp * kBatch; first_four < kFours * (kDim / 64);
       first_four += kThreads / kWarp * kBatch) {
    const int part = first_four / kFours;
    const int column = lane % 8 / 2 * 32 + part * 16 + lane % 2 * 8;
    const int first_input = first_four % kFours * 4 + lane / 8;
    uint4 v[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int row = (first_input + k * 4) / kHeads;
      const int head = (first_input + k * 4) % kHeads;
      v[k] = make_uint4(0, 0, 0, 0);
      if (row < count && head < args.heads && column < args.dim) {
        const bf16* from = args.q + ((first + row) * args.heads + head) * args.dim + column;
        v[k] = load_unaligned(reinterpret_cast<const uint8_t*>(from));
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int input = first_input + k * 4;
      uint8_t* to = s.queries + input / Rows::kInputs * Rows::kTileBytes;
      const uint4 ordered = interleave(v[k]);
      const uint32_t pairs[4] = {ordered.x, ordered.y, ordered.z, ordered.w};
#pragma unroll
      for (uint32_t pair = 0; pair < 4; ++pair) {
        const PairPlace p = pair_place(false, static_cast<uint32_t>(column), pair);
        *reinterpret_cast<uint32_t*>(to + p.block * Rows::kBlockBytes +
                                     swizzled_piece(static_cast<uint32_t>(input % Rows::kInputs), p.piece) + p.word * 4) =
            pairs[pair];
      }
    }
  }
  for (int i = thread_index(); i < Rows::kRows * kHeads; i += kThreads) {
    const int row = i / kHeads;
    const int head = i % kHeads;
    reinterpret_cast<bf16*>(s.weights)[i] =
        row < count && head < args.heads ? args.weights[(first + row) * args.heads + head] : bf16{};
  }
  if (thread_index() < Rows::kRows) {
    const bool there = thread_index() < count;
    const IndexRow& row = args.rows[first + (there ? thread_index() : 0)];
    s.visible[thread_index()] = there ? key_count(args, first + thread_index()) : 0;
    s.restricted[thread_index()] = args.restrict_rows && row.restricted;
  }
}

// The lane's two keys of a tile: rows lane / 4 and 8 behind it of the warp's 16. Keys that are not there repeat the last one.
__device__ inline int row_in_tile() { return thread_index() % kWarpgroup / kWarp * 16 + thread_index() % kWarp / 4; }
// Where the keys of some rows lie, in 32 bits: a page's rows are fewer bytes than that.
struct KeyPages {
  uint8_t* const* pages;
  int64_t offset;
  uint32_t rows_per_page, row_bytes;
  __device__ explicit KeyPages(const PagedRows& keys)
      : pages(keys.pages),
        offset(keys.offset),
        rows_per_page(static_cast<uint32_t>(keys.rows_per_page)),
        row_bytes(static_cast<uint32_t>(keys.row_bytes)) {}
  __device__ const uint8_t* row(uint32_t j) const { return pages[j / rows_per_page] + offset + j % rows_per_page * row_bytes; }
};
// The lane's part of them: 32 dims each.
struct KeyPiece {
  uint4 codes[2];
  uint32_t scales[2];
};
// A operands of all products.
__device__ inline void widen_keys(const KeyPiece& piece, uint32_t (&a)[kProducts][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t scale = scale_pair(piece.scales[i], kFp4Bias);
    const uint32_t words[4] = {piece.codes[i].x, piece.codes[i].y, piece.codes[i].z, piece.codes[i].w};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t r[4];
      widen_fp4(words[pair], r);
#pragma unroll
      for (int k = 0; k < 4; ++k) a[pair * 2 + k / 2][i + k % 2 * 2] = multiply_bf16x2(r[k], scale);
    }
  }
  if (!__any_sync(0xffffffffu, max(piece.scales[0], piece.scales[1]) > kMostScale<WeightFormat::kFp4>)) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t excess = excess_pair(piece.scales[i], kFp4Bias);
#pragma unroll
    for (auto& product : a) {
      product[i] = multiply_bf16x2(product[i], excess);
      product[i + 2] = multiply_bf16x2(product[i + 2], excess);
    }
  }
}

// Sums of the lane's two keys by each query of the tile: `c` has heads 2 t and 2 t + 1 of every eight, t: lane % 4.
// weight(row, eight): a pair, the weights of those two.
template <typename Rows, typename Weight>
__device__ inline void add_heads(const float (&c)[Rows::kInputs / 8][4], const Weight& weight,
                                 float (&sums)[Rows::kTileRows][2]) {
#pragma unroll
  for (int row = 0; row < Rows::kTileRows; ++row) {
    sums[row][0] = sums[row][1] = 0;
#pragma unroll
    for (int eight = 0; eight < kHeads / 8; ++eight) {
      const uint32_t w = weight(row, eight);
      const float(&dots)[4] = c[row * (kHeads / 8) + eight];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t product = multiply_bf16x2(positive_pair(round_pair(dots[2 * half], dots[2 * half + 1])), w);
        sums[row][half] += widen_low(product);
        sums[row][half] += widen_high(product);
      }
    }
  }
}
// The four lanes of a key add theirs as (0 + 1) + (2 + 3). Of four queries each lane gets the scores of query t, by both keys; of
// one, lanes 0 and 1 get that of their key.
__device__ inline void add_lanes(const float (&sums)[4][2], float (&score)[2]) {
  const bool odd = thread_index() % 2 == 1;
  const bool high = thread_index() % 4 / 2 == 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float first = odd ? sums[1][half] : sums[0][half];
    float second = odd ? sums[3][half] : sums[2][half];
    first += __shfl_xor_sync(0xffffffffu, odd ? sums[0][half] : sums[1][half], 1);
    second += __shfl_xor_sync(0xffffffffu, odd ? sums[2][half] : sums[3][half], 1);
    score[half] = (high ? second : first) + __shfl_xor_sync(0xffffffffu, high ? first : second, 2);
  }
}
__device__ inline void add_lanes(const float (&sums)[1][2], float (&score)[1]) {
  const bool odd = thread_index() % 2 == 1;
  float sum = odd ? sums[0][1] : sums[0][0];
  sum += __shfl_xor_sync(0xffffffffu, odd ? sums[0][0] : sums[0][1], 1);
  score[0] = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

}  // namespace deepinfer::cuda::wide_index
