#pragma once

// The inner loops of the CPU backend as a table of functions, one table per instruction set, chosen at run time. The layouts of
// packed inputs are the table's own business; everything else (threads, order of work, buffers) is CpuBackend's.
//
// Summation order, the same for one row as for many: the columns of a product are dealt to the lanes of a vector in a fixed
// pattern, each lane adds in a fixed order, and the lanes are added as a fixed tree. How rows are tiled changes which registers
// hold the sums, not the sums. Who changes the order, or any other bit of a result, raises
// kCpuNumerics (ops/numerics.h).

#include <cstdint>
#include <span>

#include "base/status.h"
#include "ops/ops.h"

namespace deepinfer::cpu {

/// What kind of weights the packed input meets; each kind may want its columns in an order of its own.
enum class PackKind : uint8_t { kBf16, kFp8, kFp4 };

struct RowOps;

struct CpuKernels {
  const char* name;
  /// What goes row by row, for the same instruction set.
  const RowOps* rows;
  /// Bytes of scratch that a call of multiply_* needs, 64-byte aligned.
  int64_t scratch_bytes;

  /// Rows of a tile of packed inputs; they are interleaved, vector by vector.
  int64_t (*tile_rows)(PackKind kind);
  /// Bytes of one packed row of k columns; a multiple of 64.
  int64_t (*packed_row_bytes)(PackKind kind, int64_t k);
  /// Packs x [k] as row `row` of a tile of `rows` rows.
  void (*pack)(PackKind kind, const bf16* x, int64_t k, char* tile, int64_t rows, int64_t row);

  /// y[m * stride + o - begin] = weights row o times input row m, for o in [begin, end). Input: full tiles one after the other,
  /// then one of the remaining rows.
  void (*multiply_fp8)(const Fp8Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                       int64_t stride);
  void (*multiply_fp4)(const Fp4Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                       int64_t stride);
  void (*multiply_bf16)(const Bf16Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char* scratch, float* y,
                        int64_t stride);

  // Attention of one query: the list of keys is cut into blocks of kKeyBlock; `score_block` unpacks a block and scores it for all
  // heads, `weigh_heads` turns scores into probabilities and sums the values for some heads.

  /// Bytes of a query prepared for score_block / of the unpacked keys of a list of `count`.
  int64_t (*query_bytes)(int64_t heads, int64_t dim);
  int64_t (*keys_bytes)(int64_t count, int64_t dim);
  void (*pack_query)(const bf16* q, int64_t heads, int64_t dim, char* packed);
  /// scores [count, padded heads]; keys of list entries [first, last), first a multiple of kKeyBlock.
  void (*score_block)(const AttentionQuery& query, int64_t first, int64_t last, const char* packed_query, int64_t heads,
                      int64_t dim, float scale, char* keys, float* scores);
  /// out [heads, dim] rows [head_begin, head_end), multiples of kHeadLanes or the end. scores are used up.
  void (*weigh_heads)(int64_t head_begin, int64_t head_end, int64_t heads, int64_t dim, int64_t count, const float* sinks,
                      char* keys, float* scores, bf16* out);

  /// scores[j - first] of index keys [first, last) (spec §3.8, profile R); q packed by pack_query, weights [heads].
  void (*score_index)(const PagedRows& keys, int64_t first, int64_t last, const char* packed_query, const float* weights,
                      int64_t heads, int64_t dim, float* scores);
};

inline constexpr int64_t kKeyBlock = 64;
inline constexpr int64_t kHeadLanes = 16;
/// List entries whose probabilities are relative to the largest score up to the last of them (spec 3.10): with the next ones,
/// sums are multiplied by what that changes.
inline constexpr int64_t kAttentionTile = 64;
inline int64_t padded_heads(int64_t heads) { return (heads + kHeadLanes - 1) / kHeadLanes * kHeadLanes; }

/// The tables that this processor can run, the fastest first; the last runs on every processor of its architecture.
std::span<const CpuKernels* const> cpu_kernels();
/// Those among them that Highway's sources give: all but the one below.
std::span<const CpuKernels* const> portable_kernels();
/// With bf16 dot products; nullptr where the processor (or the build) has none.
const CpuKernels* avx512_bf16_kernels();

/// The table that DEEPINFER_CPU_KERNELS asks for (a name, or "portable": the first of portable_kernels()), else the first of
/// cpu_kernels(). An error if there is no such table, or if this processor cannot run it.
Result<const CpuKernels*> wanted_kernels();

}  // namespace deepinfer::cpu
