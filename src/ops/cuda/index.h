#pragma once

// Indexer (spec/backbone §3.8, §3.9).

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// One query as the kernels see it. `keys.pages` is a device table.
struct IndexRow {
  PagedRows keys;
  int64_t visible = 0;
  int32_t* chosen = nullptr;
  bool scored = false;      ///< false: takes all it sees
  bool restricted = false;  ///< bits are read, or written if they are built
};

/// Scratch of a step.
struct IndexScratch {
  uint16_t* rank = nullptr;        ///< [rows, row_stride]: larger is better; equal scores are equal
  uint16_t* block_rank = nullptr;  ///< [rows, block_stride] best of each candidate block
  uint16_t* eights = nullptr;      ///< levels of the choice (choose.h, LevelChoice)
  uint16_t* groups = nullptr;
  int32_t* list = nullptr;
  int32_t* listed = nullptr;
  uint32_t* histogram = nullptr;  ///< [2 levels][rows][256], zero between uses
  uint32_t* counts = nullptr;     ///< [rows, pieces, 2]
  int64_t row_stride = 0;
  int64_t block_stride = 0;
  int64_t list_stride = 0;
};

/// Ranks that a piece of the choice looks at.
inline constexpr int64_t kChoicePiece = 4096;

/// How scores are made on warpgroups, if they are.
enum class WideIndex : uint8_t {
  kNo,
  kManyRows,  ///< index_wide.cu: 16 rows of one sequence a block, each key widened once for all of them
  kOneRow,    ///< index_row.cu: a row a block: rows that share no keys
};
/// The best way for some rows.
WideIndex wide_index_of(const IndexSelectArgs& args);
/// How some rows are done; the choice is the same.
struct IndexWays {
  WideIndex wide = WideIndex::kNo;
  bool few = false;     ///< few rows: keys go to more blocks
  bool by_row = false;  ///< a row's choice is made by one block, from all ranks or by levels
  bool listed = false;  ///< candidates are listed, and no other keys have ranks
};
/// `wide`, `few`: those kernels may be used.
IndexWays index_ways(const IndexSelectArgs& args, bool wide, bool few);

struct IndexSizes {
  int64_t longest = 0;  ///< most rows that a scored query sees, or that it has ranks of
  int64_t row_stride = 0;
  int64_t block_stride = 0;
  int64_t pieces = 0;
  int64_t list_stride = 0;  ///< blocks in a list
};
IndexSizes index_sizes(const IndexSelectArgs& args, const IndexWays& ways);
void select_rows(const IndexSelectArgs& args, const IndexRow* rows, const IndexSizes& sizes, const IndexScratch& scratch,
                 const IndexWays& ways, LaunchStream& stream);

}  // namespace deepinfer::cuda
