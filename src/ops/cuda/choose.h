#pragma once

#include "ops/cuda/index.h"

namespace deepinfer::cuda {

/// The best of each row's ranks, in four passes over pieces that all multiprocessors share: two levels of histogram find the rank
/// of the last one chosen, a count and a write put the choice in order. Ties go to lower indices.
struct Choice {
  const uint16_t* rank = nullptr;  ///< [rows, stride]
  int64_t stride = 0;
  int64_t pieces = 0;  ///< of the longest row
  int64_t keep = 0;
  bool blocks = false;  ///< candidate blocks: the choice becomes bits
  int64_t block_size = 0;
  int64_t words = 0;
  uint64_t* bits = nullptr;  ///< [rows, words]
};
/// Ranks of a row that one block can hold.
inline constexpr int64_t kMostRowRanks = 57344;
/// The same by one block a row, in one pass over the ranks; of at most kMostRowRanks. Rows that are not scored take all they see.
void choose_by_row(const Choice& choice, const IndexRow* rows, int64_t row_count, LaunchStream& stream);
void choose(const Choice& choice, const IndexRow* rows, int64_t row_count, const IndexScratch& scratch, LaunchStream& stream);

}  // namespace deepinfer::cuda
