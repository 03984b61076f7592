#pragma once

// Sparse attention (spec/backbone §3.10).

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// Scratch of some rows' attention: [rows, heads, keys] scores, then probabilities, and [rows, heads] denominators.
struct AttentionScratch {
  float* scores = nullptr;
  bf16* weights = nullptr;
  float* totals = nullptr;
};

/// Rows whose scratch stays in the second-level cache; longer steps are done piece by piece.
inline constexpr int64_t kAttentionRows = 256;

/// Room for the keys of a row, given the most that a query has.
inline int64_t padded_keys(int64_t longest) { return (longest + 31) / 32 * 32 + 8; }

/// `queries`: device copies of args.queries whose page tables are on the device. `longest`: most keys of a query.
void sparse_attention(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest,
                      const AttentionScratch& scratch, LaunchStream& stream);

/// Of few rows (attention_few.cu), the bits of the above; queries are rotated, and outputs back, if there are pairs. `scores`: as
/// of AttentionScratch.
void sparse_attention_few(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest,
                          const RopeRows& rotation, float* scores, LaunchStream& stream);

/// How attention of many rows is done by one kernel on warpgroups (attention_wide.cu), if it may be: of the release's dimensions.
enum class WideAttention : uint8_t {
  kNo,
  kAnyKeys,
  kWindow,  ///< smaller blocks: every row has keys of its window alone
};
WideAttention wide_attention_of(const SparseAttentionArgs& args);
/// Rows from which on it is the better way (H200: 51 to 47 us at 32, 52 to 87 at 64).
inline constexpr size_t kWideAttentionRows = 33;
/// The bits of the above, without scratch. `way`: not kNo.
void sparse_attention_wide(const SparseAttentionArgs& args, WideAttention way, const AttentionQuery* queries,
                           LaunchStream& stream);

}  // namespace deepinfer::cuda
