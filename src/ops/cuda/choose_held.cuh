#pragma once

// A choice by one block, whose threads hold all ranks it is made from, eight in 16 bytes: first the rank of the last one chosen,
// two bits at a time, then the choice in order. Ties go to the lower place.

#include "ops/cuda/device_math.cuh"
#include "ops/cuda/index_scores.cuh"

namespace deepinfer::cuda {

inline constexpr int kHeldRanks = 8;  ///< ranks of a load
/// Block-wide counts under way, two words a warp. Two of them are used in turns: one barrier a count.
template <int kThreads>
struct ChoiceSums {
  uint2 of_warp[2][kThreads / kWarp];
};

/// The place of a thread's load i, of all threads' loads: those of a warp lie one after the other.
template <int kLoads>
__device__ inline int held_load(int i) {
  const auto t = static_cast<int>(threadIdx.x);
  return t / kWarp * kLoads * kWarp + i * kWarp + t % kWarp;
}

/// Eight ranks as pairs; what lies behind the row's end is taken for the worst rank.
__device__ inline void load_ranks(const uint16_t* from, int first, int length, bool aligned, uint32_t (&pairs)[kHeldRanks / 2]) {
  if (aligned && first + kHeldRanks <= length) {
    const uint4 v = *reinterpret_cast<const uint4*>(from + first);
    pairs[0] = v.x, pairs[1] = v.y, pairs[2] = v.z, pairs[3] = v.w;
    return;
  }
#pragma unroll
  for (int k = 0; k < kHeldRanks / 2; ++k) {
    const int at = first + k * 2;
    pairs[k] = at < length ? from[at] : 0;
    if (at + 1 < length) pairs[k] |= static_cast<uint32_t>(from[at + 1]) << 16;
  }
}
__device__ inline uint32_t held_rank(const uint32_t (&pairs)[kHeldRanks / 2], int k) {
  return k % 2 == 0 ? pairs[k / 2] & 0xffff : pairs[k / 2] >> 16;
}

/// The block's sums of two words of each thread, in all threads. `sums`: not read by anyone since the last barrier but one.
template <int kThreads>
__device__ uint2 block_sums(uint32_t a, uint32_t b, uint2* sums) {
  const uint32_t lane = threadIdx.x % kWarp;
  a = __reduce_add_sync(0xffffffffu, a);
  b = __reduce_add_sync(0xffffffffu, b);
  if (lane == 0) sums[threadIdx.x / kWarp] = make_uint2(a, b);
  __syncthreads();
  const uint2 own = lane < kThreads / kWarp ? sums[lane] : make_uint2(0, 0);
  return make_uint2(__reduce_add_sync(0xffffffffu, own.x), __reduce_add_sync(0xffffffffu, own.y));
}

/// The keep-th largest of the ranks that are held; there are no fewer, those behind the end with them.
template <int kThreads, int kLoads>
__device__ uint32_t find_limit(uint32_t (&pairs)[kLoads][kHeldRanks / 2], uint32_t keep, ChoiceSums<kThreads>& s) {
  static_assert(kThreads * kLoads * kHeldRanks < 1 << 16);
  uint32_t limit = 0;
#pragma unroll 1
  for (int bit = 14; bit >= 0; bit -= 2) {
    const uint32_t one = (limit | 1u << bit) << 16;  // both ranks of a pair are compared where the upper one lies
    const uint32_t two = (limit | 2u << bit) << 16;
    const uint32_t three = (limit | 3u << bit) << 16;
    uint32_t some = 0;  // as good as `one`, and in the upper half as `two`
    uint32_t few = 0;
#pragma unroll
    for (auto& load : pairs) {
#pragma unroll
      for (uint32_t& pair : load) {
        forget_uses(pair);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t v = half == 0 ? pair << 16 : pair;
          some += v >= one ? 1u : 0u;
          some += v >= two ? 1u << 16 : 0u;
          few += v >= three ? 1u : 0u;
        }
      }
    }
    const uint2 all = block_sums<kThreads>(some, few, s.of_warp[bit / 2 % 2]);
    limit |= (all.y >= keep ? 3u : all.x >> 16 >= keep ? 2u : (all.x & 0xffff) >= keep ? 1u : 0u) << bit;
  }
  return limit;
}

/// emit(position, i, k, rank): for each of the keep best, rank k of the thread's load i. Behind find_limit with the same `s`; and
/// a barrier must come before the next one.
template <int kThreads, int kLoads, typename Emit>
__device__ void emit_chosen(const uint32_t (&pairs)[kLoads][kHeldRanks / 2], uint32_t limit, uint32_t keep,
                            ChoiceSums<kThreads>& s, const Emit& emit) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  // Both counts in one word: better in the upper half, as good in the lower. Neither reaches 2^16.
  const auto count = [&](int i) {
    uint32_t n = 0;
#pragma unroll
    for (int k = 0; k < kHeldRanks; ++k) {
      const uint32_t v = held_rank(pairs[i], k);
      n += v > limit ? 1u << 16 : v == limit ? 1u : 0u;
    }
    return n;
  };
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) own += count(i);
  own = __reduce_add_sync(0xffffffffu, own);
  if (lane == 0) s.of_warp[1][warp].x = own;  // find_limit used the other one last
  __syncthreads();
  const uint32_t of_warp = lane < kWarps ? s.of_warp[1][lane].x : 0;
  const uint32_t all = __reduce_add_sync(0xffffffffu, of_warp);
  uint32_t before = __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0);
  const uint32_t equal = keep - (all >> 16);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const uint32_t of_load = count(i);
    uint32_t behind = of_load;  // with the lane's own
#pragma unroll
    for (int step = 1; step < kWarp; step <<= 1) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, behind, step);
      if (lane >= step) behind += other;
    }
    const uint32_t start = before + behind - of_load;
    before += __shfl_sync(0xffffffffu, behind, kWarp - 1);
    if (of_load == 0) continue;
    uint32_t above = start >> 16;
    uint32_t at = start & 0xffff;
#pragma unroll
    for (int k = 0; k < kHeldRanks; ++k) {
      const uint32_t v = held_rank(pairs[i], k);
      const bool is_at = v == limit;
      if (v > limit || (is_at && at < equal)) emit(static_cast<int>(above + min(at, equal)), i, k, v);
      above += v > limit;
      at += is_at;
    }
  }
}

}  // namespace deepinfer::cuda
