// The choice among many ranks by levels: the best of each eight, and of each 64. The best K ranks lie in the best K eights, and
// those in the best K groups of 64, if of equal ones the first are taken: each of K groups has a rank as good as its own best, so
// what lies behind them all is wanted by nobody. So one pass makes the levels, and then one block a row chooses K groups, K
// eights of theirs, and K ranks of those; candidate blocks, which are eights, in another.
//
// A query that is restricted to candidates has no ranks but those of its blocks, which are listed ahead.

#include <algorithm>

#include "ops/cuda/choose.h"
#include "ops/cuda/choose_held.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kEight = 8;
constexpr int kGroup = 64;
constexpr int kMostGroupLoads = 5;
static_assert(kMostLevelKeep == kThreads && kMostLevelBlocks % kThreads == 0 && kEight == kHeldRanks);
static_assert(kMostLevelRanks == int64_t{kThreads} * kMostGroupLoads * kHeldRanks * kGroup);
static_assert(kLevelStride == kGroup * kHeldRanks, "groups of a row begin at multiples of 16 bytes");

__device__ int ceil_of(int n, int size) { return (n + size - 1) / size; }
// Ranks of a row.
__device__ int rank_count(const LevelChoice& c, int64_t r, const IndexRow& row) {
  return c.list != nullptr ? c.listed[r] : static_cast<int>(row.visible);
}

// Sum of what the block's threads before this one have, and of all. `sums`: one a warp, read by nobody any more.
__device__ uint32_t sum_before(uint32_t own, uint32_t* sums, uint32_t* all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  uint32_t behind = own;  // with the thread's own
#pragma unroll
  for (int step = 1; step < kWarp; step <<= 1) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, behind, step);
    if (lane >= step) behind += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) sums[warp] = behind;
  __syncthreads();
  const uint32_t of_warp = lane < kWarps ? sums[lane] : 0;
  *all = __reduce_add_sync(0xffffffffu, of_warp);
  return __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0) + behind - own;
}

// One block a row.
__global__ void __launch_bounds__(kThreads) list_kernel(const LevelChoice c, const IndexRow* rows) {
  take_turn();
  __shared__ uint32_t sums[kWarps];
  const int64_t r = blockIdx.x;
  const IndexRow& row = rows[r];
  const auto t = static_cast<int>(threadIdx.x);
  const auto visible = static_cast<int>(row.visible);
  if (!row.scored) {
    if (t == 0) c.listed[r] = 0;
    return;
  }
  const int blocks = ceil_of(visible, kEight);
  int32_t* list = c.list + r * c.list_stride;
  if (!row.restricted) {
    for (int b = t; b < blocks; b += kThreads) list[b] = b;
    if (t == 0) c.listed[r] = visible;
    return;
  }
  const auto* bits = reinterpret_cast<const uint32_t*>(c.bits + r * c.words);
  const int words = ceil_of(blocks, 32);
  const auto room = static_cast<uint32_t>(c.list_stride);  // no more are kept
  uint32_t before = 0;
  for (int first = 0; first < words; first += kThreads) {
    const int w = first + t;
    uint32_t word = w < words ? bits[w] : 0;
    if (w == words - 1 && blocks % 32 != 0) word &= (1u << blocks % 32) - 1;
    uint32_t all = 0;
    uint32_t at = before + sum_before(static_cast<uint32_t>(__popc(word)), sums, &all);
    for (; word != 0 && at < room; word &= word - 1) list[at++] = w * 32 + __popc((word & ~(word - 1)) - 1);
    before += all;
  }
  __syncthreads();
  const auto count = static_cast<int>(min(before, room));
  if (t == 0) c.listed[r] = count == 0 ? 0 : (count - 1) * kEight + min(kEight, visible - list[count - 1] * kEight);
}

// Grid: pieces of kEach times as many eights as threads, rows. Levels are whole groups, zero behind the last rank. Bits of
// candidate blocks are cleared.
constexpr int kLevelThreads = 256;
template <int kEach>
__global__ void __launch_bounds__(kLevelThreads) level_kernel(const LevelChoice c, const IndexRow* rows) {
  take_turn();
  const int64_t r = blockIdx.y;
  const IndexRow& row = rows[r];
  if (!row.scored) return;
  const int begin = static_cast<int>(blockIdx.x) * kEach * kLevelThreads + static_cast<int>(threadIdx.x);
  if (c.blocks > 0 && row.restricted) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (begin + i * kLevelThreads < c.words) c.bits[r * c.words + begin + i * kLevelThreads] = 0;
    }
  }
  const int length = rank_count(c, r, row);
  const int eights = ceil_of(length, kGroup) * (kGroup / kEight);
  if (begin - static_cast<int>(threadIdx.x) >= eights) return;
  uint32_t pairs[kEach][kHeldRanks / 2];
#pragma unroll
  for (int i = 0; i < kEach; ++i) load_ranks(c.rank + r * c.stride, (begin + i * kLevelThreads) * kEight, length, true, pairs[i]);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    uint32_t best = 0;
#pragma unroll
    for (int k = 0; k < kHeldRanks; ++k) best = max(best, held_rank(pairs[i], k));
    uint32_t of_group = best;
#pragma unroll
    for (int step = 1; step < kGroup / kEight; step <<= 1) of_group = max(of_group, __shfl_xor_sync(0xffffffffu, of_group, step));
    const int eight = begin + i * kLevelThreads;
    if (eight >= eights) continue;
    c.eights[r * (c.stride / kEight) + eight] = static_cast<uint16_t>(best);
    if (eight % (kGroup / kEight) == 0)
      c.groups[r * (c.stride / kGroup) + eight / (kGroup / kEight)] = static_cast<uint16_t>(of_group);
  }
}

struct Shared {
  ChoiceSums<kThreads> sums;
  int32_t groups[kMostLevelBlocks];
  int32_t eights[kMostLevelKeep];
  uint32_t warp_sums[kWarps];
};

constexpr uint32_t kForced = 0xffff;
// Makes rank `place` of the row, if it is among the eight from `first` on, the best there is.
__device__ void force_rank(int place, int first, uint32_t (&pairs)[kHeldRanks / 2]) {
#pragma unroll
  for (int k = 0; k < kHeldRanks; ++k) {
    if (first + k == place) pairs[k / 2] |= kForced << 16 * (k % 2);
  }
}

// The best `keep` groups of a row of `length` ranks, or all there are: their number. The one with the eight `forced`, if that is
// one, is among them.
template <int kGroupLoads>
__device__ int list_groups(const LevelChoice& c, int64_t r, int length, int keep, int forced, Shared& s) {
  const int groups = ceil_of(length, kGroup);
  if (groups <= keep) {
    for (int g = static_cast<int>(threadIdx.x); g < groups; g += kThreads) s.groups[g] = g;
    __syncthreads();
    return groups;
  }
  uint32_t pairs[kGroupLoads][kHeldRanks / 2];
#pragma unroll
  for (int i = 0; i < kGroupLoads; ++i) {
    const int first = held_load<kGroupLoads>(i) * kHeldRanks;
    load_ranks(c.groups + r * (c.stride / kGroup), first, groups, true, pairs[i]);
    if (forced >= 0) force_rank(forced / (kGroup / kEight), first, pairs[i]);
  }
  const auto wanted = static_cast<uint32_t>(keep);
  const uint32_t limit = find_limit<kThreads>(pairs, wanted, s.sums);
  emit_chosen<kThreads>(pairs, limit, wanted, s.sums, [&](int position, int i, int k, uint32_t /*rank*/) {
    s.groups[position] = held_load<kGroupLoads>(i) * kHeldRanks + k;
  });
  __syncthreads();
  return keep;
}
// The eights of `count` listed groups.
template <int kLoads>
__device__ void load_eights(const LevelChoice& c, int64_t r, int count, const Shared& s, int (&group)[kLoads],
                            uint32_t (&pairs)[kLoads][kHeldRanks / 2]) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int slot = held_load<kLoads>(i);
    group[i] = slot < count ? s.groups[slot] : 0;
    load_ranks(c.eights + r * (c.stride / kEight), group[i] * kHeldRanks, slot < count ? (group[i] + 1) * kHeldRanks : 0, true,
               pairs[i]);
  }
}

// Fewer listed ranks than are wanted are better than those of all other rows, which are at -inf: these come into it, and behind
// them what is no number.
__device__ void choose_among_all(const LevelChoice& c, int64_t r, const IndexRow& row, int keep, Shared& s) {
  const auto t = static_cast<int>(threadIdx.x);
  const int32_t* list = c.list + r * c.list_stride;
  const int count = ceil_of(c.listed[r], kEight);
  const auto visible = static_cast<int>(row.visible);
  int kept[3] = {0, 0, 0};  // of each class: above, at -inf, no number
  int done[3] = {0, 0, 0};
  int written = 0;
  for (int sweep = 0; sweep < 2; ++sweep) {
    for (int first = 0; first < visible; first += kThreads) {
      const int j = first + t;
      int low = 0;
      for (int high = count; low < high;) {
        const int middle = (low + high) / 2;
        if (list[middle] < j / kEight) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      const bool candidate = low < count && list[low] == j / kEight && low * kEight + j % kEight < c.listed[r];
      const uint32_t v = candidate ? c.rank[r * c.stride + low * kEight + j % kEight] : kMinusInfinity;
      const int own = v > kMinusInfinity ? 0 : v == kMinusInfinity ? 1 : 2;
      uint32_t all = 0;
      // Ten bits a class.
      const uint32_t before = sum_before(j < visible ? 1u << 10 * own : 0, s.warp_sums, &all);
      if (sweep == 1) {
        const int place = done[own] + static_cast<int>(before >> 10 * own & 1023);
        const bool is_chosen = j < visible && place < kept[own];
        uint32_t chosen = 0;
        const uint32_t position = sum_before(is_chosen ? 1 : 0, s.warp_sums, &chosen);
        if (is_chosen) row.chosen[written + static_cast<int>(position)] = j;
        written += static_cast<int>(chosen);
      }
      for (int k = 0; k < 3; ++k) done[k] += static_cast<int>(all >> 10 * k & 1023);
    }
    if (sweep == 0) {
      int left = keep;
      for (int k = 0; k < 3; ++k) {
        kept[k] = min(done[k], left);
        left -= kept[k];
        done[k] = 0;
      }
    }
  }
}

template <int kGroupLoads>
__device__ void choose_rows(const LevelChoice& c, int64_t r, const IndexRow& row, Shared& s) {
  const auto t = static_cast<int>(threadIdx.x);
  const auto keep = static_cast<int>(c.keep);
  const auto wanted = static_cast<uint32_t>(keep);
  if (!row.scored) {
    for (int j = t; j < row.visible; j += kThreads) row.chosen[j] = j;
    return;
  }
  const int length = rank_count(c, r, row);
  const int groups = list_groups<kGroupLoads>(c, r, length, keep, -1, s);
  uint32_t pairs[1][kHeldRanks / 2];
  int eights = ceil_of(length, kEight);
  if (eights <= keep) {
    for (int e = t; e < eights; e += kThreads) s.eights[e] = e;
  } else {
    int group[1];
    load_eights<1>(c, r, groups, s, group, pairs);
    const uint32_t limit = find_limit<kThreads>(pairs, wanted, s.sums);
    emit_chosen<kThreads>(pairs, limit, wanted, s.sums, [&](int position, int /*i*/, int k, uint32_t /*rank*/) {
      s.eights[position] = group[0] * kHeldRanks + k;
    });
    eights = keep;
  }
  __syncthreads();
  const int slot = held_load<1>(0);
  const int eight = slot < eights ? s.eights[slot] : 0;
  const int32_t block = c.list != nullptr && slot < eights ? c.list[r * c.list_stride + eight] : eight;
  load_ranks(c.rank + r * c.stride, eight * kEight, slot < eights ? length : 0, true, pairs[0]);
  const uint32_t limit = find_limit<kThreads>(pairs, wanted, s.sums);
  if (c.list != nullptr && limit <= kMinusInfinity) return choose_among_all(c, r, row, keep, s);
  emit_chosen<kThreads>(pairs, limit, wanted, s.sums,
                        [&](int position, int /*i*/, int k, uint32_t /*rank*/) { row.chosen[position] = block * kEight + k; });
}

// The block of the newest row is always kept.
template <int kGroupLoads>
__device__ void choose_blocks(const LevelChoice& c, int64_t r, const IndexRow& row, Shared& s) {
  if (!row.scored || !row.restricted) return;
  constexpr int kLoads = kMostLevelBlocks / kThreads;
  const auto keep = static_cast<int>(c.blocks);
  const auto length = static_cast<int>(row.visible);
  const int newest = (length - 1) / kEight;
  const int groups = list_groups<kGroupLoads>(c, r, length, keep, newest, s);
  int group[kLoads];
  uint32_t pairs[kLoads][kHeldRanks / 2];
  load_eights<kLoads>(c, r, groups, s, group, pairs);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (held_load<kLoads>(i) < groups) force_rank(newest, group[i] * kHeldRanks, pairs[i]);
  }
  const auto wanted = static_cast<uint32_t>(keep);
  const uint32_t limit = find_limit<kThreads>(pairs, wanted, s.sums);
  emit_chosen<kThreads>(pairs, limit, wanted, s.sums, [&](int /*position*/, int i, int k, uint32_t rank) {
    if (rank < kLowestFinite) return;
    const int block = group[i] * kHeldRanks + k;
    atomicOr(reinterpret_cast<unsigned long long*>(c.bits + r * c.words + block / 64), 1ull << (block % 64));
  });
}

// Grid: rows; and if candidate blocks are kept, those of each row.
template <int kGroupLoads>
__global__ void __launch_bounds__(kThreads, 2) choose_level_kernel(const LevelChoice c, const IndexRow* rows) {
  take_turn();
  __shared__ Shared s;
  const int64_t r = blockIdx.x;
  if (blockIdx.y == 0) {
    choose_rows<kGroupLoads>(c, r, rows[r], s);
  } else {
    choose_blocks<kGroupLoads>(c, r, rows[r], s);
  }
}

}  // namespace

void list_blocks(const LevelChoice& choice, const IndexRow* rows, int64_t row_count, LaunchStream& stream) {
  stream.launch(list_kernel, static_cast<unsigned>(row_count), kThreads, 0, choice, rows);
}

void choose_by_levels(const LevelChoice& choice, const IndexRow* rows, int64_t row_count, LaunchStream& stream) {
  if (choice.stride % kLevelStride != 0 || choice.stride > kMostLevelRanks || choice.keep > kMostLevelKeep ||
      choice.blocks > kMostLevelBlocks)
    cuda_failed(__FILE__, __LINE__, "choose_by_levels", "more ranks than it takes");
  const int64_t things = std::max(choice.stride / kEight, choice.blocks > 0 ? choice.words : 0);
  const auto make_levels = [&](auto kernel, int64_t each) {
    const dim3 grid(static_cast<unsigned>((things + each * kLevelThreads - 1) / (each * kLevelThreads)),
                    static_cast<unsigned>(row_count));
    stream.launch(kernel, grid, kLevelThreads, 0, choice, rows);
  };
  constexpr int64_t kManyEights = int64_t{132} * 8 * kLevelThreads;  // all multiprocessors have as many threads as they can
  if (things * row_count <= kManyEights) {
    make_levels(level_kernel<1>, 1);
  } else {
    make_levels(level_kernel<4>, 4);
  }
  const dim3 grid(static_cast<unsigned>(row_count), choice.blocks > 0 ? 2 : 1);
  const int64_t loads = (choice.stride / kGroup + kThreads * kHeldRanks - 1) / (kThreads * kHeldRanks);
  const auto launch = [&](auto kernel) { stream.launch(kernel, grid, kThreads, 0, choice, rows); };
  if (loads <= 1) {
    launch(choose_level_kernel<1>);
  } else if (loads <= 3) {
    launch(choose_level_kernel<3>);
  } else {
    launch(choose_level_kernel<kMostGroupLoads>);
  }
}

}  // namespace deepinfer::cuda
