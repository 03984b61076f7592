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
void choose(const Choice& choice, const IndexRow* rows, int64_t row_count, const IndexScratch& scratch, LaunchStream& stream);

}  // namespace deepinfer::cuda
