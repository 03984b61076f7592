#pragma once

// The arithmetic of attention, that all of its kernels have in common (spec/backbone §3.10), so that they have the same bits.
//
// Scores are one chain of products over all dims, in ascending order of what attention_tiles.cuh has for each 16. The list of a
// row is cut into tiles of 64 entries. Probabilities are relative to the largest score of the tiles up to their own, rounded to
// bf16, and multiplied by values 16 entries at a time, onto the sums so far. Where a tile has a larger score than those before
// it, sums are multiplied by 2^(the difference) first. Denominators are fp32: entries of the same place among eight neighbours
// have a sum of their own, of a tile in ascending order, then of tile after tile; the eight are added as a tree, and the sink at
// the end. Outputs are sums divided by it.
//
// A largest score that does not change has a factor of exactly 1, so whether it is multiplied by does not matter.

#include <cmath>

#include "ops/cuda/attention_instructions.cuh"

namespace deepinfer::cuda {

inline constexpr int kTileKeys = 64;
inline constexpr float kNoScore = -1e30f;  ///< the largest before the first

/// e^(score - top) of a score, of a sink, or of the largest score before, for the factor of the sums so far.
__device__ inline float exponential(float score, float top) { return exp2_approx((score - top) * 1.44269504088896341f); }

/// Probabilities of one row and head by a warp, which has all scores, yet to be multiplied by `scale`: lane i has entries i % 8,
/// i % 8 + 8, ... of every fourth tile. `store(i, p)` up to the end of the last tile, `factor(tile, f)`; scores of the first
/// tiles are read before the first factor is given. The denominator, in every lane.
template <typename Score, typename Store, typename Factor>
__device__ inline float tile_softmax(int count, float scale, float sink, const Score& score, const Store& store,
                                     const Factor& factor) {
  constexpr int kTogether = kWarp / 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int tiles = (count + kTileKeys - 1) / kTileKeys;
  float before = kNoScore;
  float total = 0;
  // Scores of two rounds are on their way.
  float ahead[2][8];
  const auto ask = [&](int first, float(&v)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int entry = (first + lane / 8) * kTileKeys + lane % 8 + j * 8;
      v[j] = entry < count ? score(entry) : 0.0f;
    }
  };
  ask(0, ahead[0]);
  ask(kTogether, ahead[1]);
  for (int first = 0; first < tiles; first += kTogether) {
    const int tile = first + lane / 8;
    const int entry = tile * kTileKeys + lane % 8;
    float v[8];
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      v[j] = entry + j * 8 < count ? multiply_rounded(ahead[0][j], scale) : -INFINITY;
      ahead[0][j] = ahead[1][j];
      top = fmaxf(top, v[j]);
    }
    ask(first + 2 * kTogether, ahead[1]);
#pragma unroll
    for (int step = 1; step < 8; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    top = fmaxf(top, before);
    float previous = before;
#pragma unroll
    for (int step = 1; step < kTogether; step *= 2) {
      const float lower = __shfl_up_sync(0xffffffffu, top, step * 8);
      if (lane / 8 >= step) top = fmaxf(top, lower);
    }
    const float lower = __shfl_up_sync(0xffffffffu, top, 8);
    if (lane >= 8) previous = lower;
    before = __shfl_sync(0xffffffffu, top, kWarp - 1);
    const float change = exponential(previous, top);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float p = exponential(v[j], top);
      sum += p;
      if (tile < tiles) store(entry + j * 8, p);
    }
    if (tile < tiles && lane % 8 == 0) factor(tile, change);
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const float of_tile = __shfl_sync(0xffffffffu, sum, u * 8 + lane % 8);
      total = fmaf(total, __shfl_sync(0xffffffffu, change, u * 8), of_tile);
    }
  }
#pragma unroll
  for (int step = 1; step < 8; step *= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  return total + exponential(sink, before);
}

}  // namespace deepinfer::cuda
