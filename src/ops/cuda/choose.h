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
inline constexpr int64_t kMostRowRanks = 8192;
/// The same by one block a row, in one pass over the ranks; of at most kMostRowRanks. Rows that are not scored take all they see.
void choose_by_row(const Choice& choice, const IndexRow* rows, int64_t row_count, LaunchStream& stream);
void choose(const Choice& choice, const IndexRow* rows, int64_t row_count, const IndexScratch& scratch, LaunchStream& stream);

/// The same by levels (choose_levels.cu), of many ranks and of those of listed blocks. Rows that are not scored take all they
/// see.
struct LevelChoice {
  const uint16_t* rank = nullptr;  ///< [rows, stride]
  uint16_t* eights = nullptr;      ///< [rows, stride / 8]: best of each eight ranks
  uint16_t* groups = nullptr;      ///< [rows, stride / 64]: the same of each 64
  int64_t stride = 0;              ///< a multiple of kLevelStride
  int64_t keep = 0;                ///< at most kMostLevelKeep
  /// Blocks of eight rows that are kept as candidates, at most kMostLevelBlocks; 0: none are.
  int64_t blocks = 0;
  uint64_t* bits = nullptr;  ///< [rows, words]
  int64_t words = 0;
  /// Rows of listed blocks: rank i is that of row list[i / 8] * 8 + i % 8. nullptr: rank i is that of row i.
  int32_t* list = nullptr;    ///< [rows, list_stride], ascending
  int32_t* listed = nullptr;  ///< [rows]: rows in the list
  int64_t list_stride = 0;
};
inline constexpr int64_t kLevelStride = 512;
inline constexpr int64_t kMostLevelKeep = 512;
inline constexpr int64_t kMostLevelBlocks = 2048;
inline constexpr int64_t kMostLevelRanks = 1310720;  ///< of a row: a bucket behind 2^20
/// Lists the blocks whose bits are set, or of rows that are not restricted all of them.
void list_blocks(const LevelChoice& choice, const IndexRow* rows, int64_t row_count, LaunchStream& stream);
void choose_by_levels(const LevelChoice& choice, const IndexRow* rows, int64_t row_count, LaunchStream& stream);

}  // namespace deepinfer::cuda
