#pragma once

// Choosing rows from index scores (spec §3.8, §3.9), shared by all backends: it works on scores, whoever computed them.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/ops.h"
#include "ops/top_k.h"

namespace deepinfer {

/// A query that sees no more than topk rows chooses all of them, whatever they score.
inline bool choose_all(IndexQuery& query, int64_t topk) {
  if (query.visible > topk) return false;
  query.chosen_count = query.visible;
  for (int64_t j = 0; j < query.visible; ++j) query.chosen[j] = static_cast<int32_t>(j);
  return true;
}

/// With so few visible rows every block is kept, and no bits are written or read.
inline bool all_blocks_kept(int64_t visible, const IndexSelectArgs& args) {
  return (visible + args.candidate_block_size - 1) / args.candidate_block_size <= args.candidate_blocks;
}

/// Marks in `bits` the blocks to keep, given the scores of the visible rows.
inline void build_candidates(const float* scores, int64_t visible, const IndexSelectArgs& args, std::vector<uint64_t>& keys,
                             std::vector<float>& block_scores, std::vector<int32_t>& blocks, uint64_t* bits) {
  if (all_blocks_kept(visible, args)) return;
  std::fill_n(bits, args.candidate_words, uint64_t{0});
  const int64_t size = args.candidate_block_size;
  const int64_t count = (visible + size - 1) / size;
  const int64_t keep = args.candidate_blocks;
  const float inf = std::numeric_limits<float>::infinity();
  block_scores.assign(static_cast<size_t>(count), -inf);
  for (int64_t j = 0; j < visible; ++j) {
    float& best = block_scores[static_cast<size_t>(j / size)];
    best = std::max(best, scores[j]);
  }
  block_scores[static_cast<size_t>((visible - 1) / size)] = inf;  // the newest visible row's block is always kept
  blocks.resize(static_cast<size_t>(keep));
  choose_top(block_scores.data(), count, keep, keys, blocks.data());
  for (int32_t b : blocks) {
    if (block_scores[static_cast<size_t>(b)] > -inf) bits[b / 64] |= uint64_t{1} << (b % 64);
  }
}

/// Rows outside the kept blocks get -inf.
inline void apply_candidates(float* scores, int64_t visible, const IndexSelectArgs& args, const uint64_t* bits) {
  if (all_blocks_kept(visible, args)) return;
  for (int64_t j = 0; j < visible; ++j) {
    const int64_t b = j / args.candidate_block_size;
    if ((bits[b / 64] >> (b % 64) & 1) == 0) scores[j] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace deepinfer
