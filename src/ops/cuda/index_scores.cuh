#pragma once

// What the kernels that score index keys have in common.

#include "ops/cuda/fragments.cuh"
#include "ops/cuda/index.h"

namespace deepinfer::cuda {

inline constexpr uint16_t kMinusInfinity = 0x007f;  ///< NaN is 0
inline constexpr uint32_t kLowestFinite = 0x0080;

/// A score, a bf16, as a number that is larger if it is better.
__device__ inline uint16_t rank_of(float score) {
  if (score != score) return 0;
  const uint32_t u = __float_as_uint(score + 0.0f) >> 16;  // the score is a bf16
  return static_cast<uint16_t>((u & 0x8000u) != 0 ? ~u : u | 0x8000u);
}

inline constexpr int kListedKeys = 8;  ///< of a listed block

/// Scores of some rows. Dots, products and sums are rounded as spec §6.4 says.
struct ScoreArgs {
  const bf16* q;         ///< [rows, heads, dim]
  const bf16* weights;   ///< [rows, heads]
  const IndexRow* rows;  ///< device
  int64_t row_count;
  int heads;
  int dim;
  uint16_t* rank;  ///< [rows, row_stride]
  int64_t row_stride;
  bool restrict_rows;    ///< to the candidate blocks
  const uint64_t* bits;  ///< [rows, words]
  int64_t words;
  int64_t block_size;
  /// Keys are those of listed blocks of eight (choose.h, LevelChoice); nullptr: all that a row sees.
  const int32_t* list;
  const int32_t* listed;
  int64_t list_stride;
  int64_t block_keys = 0;  ///< of a thread block
};

__device__ inline uint32_t round_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// On warpgroups (index_row.cu): a row a block, of up to 32 heads of 128 dims.
void score_each_row(const ScoreArgs& args, int64_t longest, LaunchStream& stream);
/// On warpgroups (index_wide.cu): the same ranks. `way`: not kNo.
void score_wide(const ScoreArgs& args, WideIndex way, int64_t longest, LaunchStream& stream);

}  // namespace deepinfer::cuda
