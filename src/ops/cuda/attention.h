#pragma once

// Sparse attention (spec/backbone §3.10).

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// Scratch of some rows' attention: [rows, heads, keys] scores, in whose place are a tile's factors then, and probabilities, and
/// [rows, heads] denominators.
struct AttentionScratch {
  float* scores = nullptr;
  bf16* weights = nullptr;
  float* totals = nullptr;
};

/// Rows whose scratch stays in the second-level cache; longer steps are done piece by piece.
inline constexpr int64_t kAttentionRows = 256;

/// Room for the keys of a row, given the most that a query has: whole tiles, and a little more, so that rows are in different
/// banks.
inline int64_t padded_keys(int64_t longest) { return (longest + 63) / 64 * 64 + 8; }

/// `queries`: device copies of args.queries whose page tables are on the device. `longest`: most keys of a query.
void sparse_attention(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest,
                      const AttentionScratch& scratch, LaunchStream& stream);

/// Of few rows (attention_few.cu), the bits of the above; queries are rotated, and outputs back, if there are pairs. `scores`: as
/// of AttentionScratch. `early`: what is read but args.q is there when the kernel before begins to let the next one begin: it has
/// written nothing else, and taken its turn alone.
void sparse_attention_few(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest,
                          const RopeRows& rotation, float* scores, LaunchStream& stream, bool early = false);

/// Whether attention of many rows may be done by one kernel on warpgroups (attention_wide.cu): of the release's dimensions.
bool takes_wide_attention(const SparseAttentionArgs& args);
/// Rows from which on it is the better way.
inline constexpr size_t kWideAttentionRows = 9;
/// The bits of the above, without scratch.
void sparse_attention_wide(const SparseAttentionArgs& args, const AttentionQuery* queries, LaunchStream& stream);

}  // namespace deepinfer::cuda
