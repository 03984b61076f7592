#include "ops/cuda/choose.h"
#include "ops/cuda/choose_held.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBins = 256;

__device__ int64_t row_length(const Choice& c, const IndexRow& row) {
  return c.blocks ? (row.visible + c.block_size - 1) / c.block_size : row.visible;
}
__device__ bool takes_part(const Choice& c, const IndexRow& row) { return row.scored && (!c.blocks || row.restricted); }

// The bin in which the wanted-th largest lies, and how many of the wanted ones lie in it. All threads get the answer.
__device__ void find_bin(const uint32_t* histogram, uint32_t wanted, uint32_t* bin, uint32_t* inside) {
  __shared__ uint32_t counts[kBins];
  __shared__ uint32_t found[2];
  const uint32_t t = threadIdx.x;
  __syncthreads();
  counts[t] = histogram[kBins - 1 - t];  // from the best down
  __syncthreads();
  // Inclusive sums.
  for (uint32_t step = 1; step < kBins; step <<= 1) {
    const uint32_t other = t >= step ? counts[t - step] : 0;
    __syncthreads();
    counts[t] += other;
    __syncthreads();
  }
  const uint32_t before = t == 0 ? 0 : counts[t - 1];
  if (before < wanted && counts[t] >= wanted) {
    found[0] = kBins - 1 - t;
    found[1] = wanted - before;
  }
  __syncthreads();
  *bin = found[0];
  *inside = found[1];
}

__global__ void clear_kernel(uint32_t* histogram) {
  take_turn();
  histogram[blockIdx.x * kBins + threadIdx.x] = 0;
}

// Level 0 counts high bytes, level 1 low bytes of ranks with the chosen high byte.
template <int kLevel>
__global__ void __launch_bounds__(kThreads) histogram_kernel(const Choice c, const IndexRow* rows, uint32_t* histogram) {
  take_turn();
  __shared__ uint32_t counts[kBins];
  const int64_t r = blockIdx.y;
  const IndexRow& row = rows[r];
  const int64_t length = row_length(c, row);
  const int64_t begin = blockIdx.x * kChoicePiece;
  if (!takes_part(c, row) || begin >= length) return;
  uint32_t high = 0;
  if constexpr (kLevel == 1) {
    uint32_t inside = 0;
    find_bin(histogram + r * kBins, static_cast<uint32_t>(c.keep), &high, &inside);
  }
  counts[threadIdx.x] = 0;
  __syncthreads();
  const int64_t end = min(begin + kChoicePiece, length);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const uint32_t v = c.rank[r * c.stride + i];
    if constexpr (kLevel == 0) {
      atomicAdd(&counts[v >> 8], 1u);
    } else {
      if (v >> 8 == high) atomicAdd(&counts[v & 255], 1u);
    }
  }
  __syncthreads();
  uint32_t* out = histogram + (kLevel * gridDim.y + r) * kBins;
  if (counts[threadIdx.x] != 0) atomicAdd(out + threadIdx.x, counts[threadIdx.x]);
}

// Rank of the last one chosen, and how many of that rank are.
__device__ uint32_t threshold(const Choice& c, int64_t r, int64_t row_count, const uint32_t* histogram, uint32_t* equal) {
  uint32_t high = 0, low = 0, inside = 0;
  find_bin(histogram + r * kBins, static_cast<uint32_t>(c.keep), &high, &inside);
  find_bin(histogram + (row_count + r) * kBins, inside, &low, equal);
  return high << 8 | low;
}

__device__ uint32_t block_total(uint32_t v, uint32_t* scratch) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = v;
  __syncthreads();
  uint32_t total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) total += scratch[w];
  return total;
}

// counts [rows][pieces][2]: above the threshold, at it.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const Choice c, const IndexRow* rows, const uint32_t* histogram, uint32_t* counts) {
  take_turn();
  __shared__ uint32_t scratch[kThreads / kWarp];
  const int64_t r = blockIdx.y;
  const IndexRow& row = rows[r];
  const int64_t length = row_length(c, row);
  const int64_t begin = blockIdx.x * kChoicePiece;
  if (!takes_part(c, row) || begin >= length) return;
  uint32_t equal = 0;
  const uint32_t limit = threshold(c, r, gridDim.y, histogram, &equal);
  uint32_t above = 0, at = 0;
  const int64_t end = min(begin + kChoicePiece, length);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const uint32_t v = c.rank[r * c.stride + i];
    above += v > limit;
    at += v == limit;
  }
  above = block_total(above, scratch);
  at = block_total(at, scratch);
  if (threadIdx.x == 0) {
    counts[(r * gridDim.x + blockIdx.x) * 2] = above;
    counts[(r * gridDim.x + blockIdx.x) * 2 + 1] = at;
  }
}

__global__ void __launch_bounds__(kThreads)
    write_kernel(const Choice c, const IndexRow* rows, const uint32_t* histogram, const uint32_t* counts) {
  take_turn();
  __shared__ uint32_t scratch[kThreads / kWarp];
  __shared__ uint32_t warp_above[kThreads / kWarp], warp_at[kThreads / kWarp];
  const int64_t r = blockIdx.y;
  const IndexRow& row = rows[r];
  const int64_t length = row_length(c, row);
  const int64_t begin = blockIdx.x * kChoicePiece;
  if (!takes_part(c, row) || begin >= length) return;
  uint32_t equal = 0;
  const uint32_t limit = threshold(c, r, gridDim.y, histogram, &equal);
  uint32_t above = 0, at = 0;
  for (uint32_t p = threadIdx.x; p < blockIdx.x; p += kThreads) {
    above += counts[(r * gridDim.x + p) * 2];
    at += counts[(r * gridDim.x + p) * 2 + 1];
  }
  above = block_total(above, scratch);
  at = block_total(at, scratch);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t end = min(begin + kChoicePiece, length);
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const uint32_t v = i < end ? c.rank[r * c.stride + i] : 0;
    const bool is_above = i < end && v > limit;
    const bool is_at = i < end && v == limit;
    const uint32_t above_mask = __ballot_sync(0xffffffffu, is_above);
    const uint32_t at_mask = __ballot_sync(0xffffffffu, is_at);
    __syncthreads();
    if (lane == 0) {
      warp_above[warp] = static_cast<uint32_t>(__popc(above_mask));
      warp_at[warp] = static_cast<uint32_t>(__popc(at_mask));
    }
    __syncthreads();
    uint32_t my_above = above + static_cast<uint32_t>(__popc(above_mask & ((1u << lane) - 1)));
    uint32_t my_at = at + static_cast<uint32_t>(__popc(at_mask & ((1u << lane) - 1)));
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < warp) my_above += warp_above[w], my_at += warp_at[w];
      above += warp_above[w], at += warp_at[w];
    }
    if (!is_above && !(is_at && my_at < equal)) continue;
    if (c.blocks) {
      if (v >= kLowestFinite) atomicOr(reinterpret_cast<unsigned long long*>(c.bits + r * c.words + i / 64), 1ull << (i % 64));
    } else {
      row.chosen[my_above + min(my_at, equal)] = static_cast<int32_t>(i);
    }
  }
}

// One block a row, whose threads hold all its ranks. The worst rank, being last of its equals, is never chosen behind the row's
// end.
template <int kThreads, int kLoads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) choose_row_kernel(const Choice c, const IndexRow* rows) {
  take_turn();
  __shared__ ChoiceSums<kThreads> sums;
  const int64_t r = blockIdx.x;
  const IndexRow& row = rows[r];
  const auto t = static_cast<int>(threadIdx.x);
  int32_t* chosen = row.chosen;
  if (!c.blocks && !row.scored) {
    for (int64_t j = t; j < row.visible; j += kThreads) chosen[j] = static_cast<int32_t>(j);
  }
  if (!takes_part(c, row)) return;
  const auto length = static_cast<int>(row_length(c, row));
  uint32_t pairs[kLoads][kHeldRanks / 2];
#pragma unroll
  for (int i = 0; i < kLoads; ++i)
    load_ranks(c.rank + r * c.stride, held_load<kLoads>(i) * kHeldRanks, length, c.stride % kHeldRanks == 0, pairs[i]);
  const auto keep = static_cast<uint32_t>(c.keep);
  const uint32_t limit = find_limit<kThreads>(pairs, keep, sums);
  emit_chosen<kThreads>(pairs, limit, keep, sums, [&](int position, int i, int k, uint32_t v) {
    const int j = held_load<kLoads>(i) * kHeldRanks + k;
    if (!c.blocks) {
      chosen[position] = j;
    } else if (v >= kLowestFinite) {
      atomicOr(reinterpret_cast<unsigned long long*>(c.bits + r * c.words + j / 64), 1ull << (j % 64));
    }
  });
}

// Blocks of 1024 threads while every row has a multiprocessor; two rows of half as many threads each otherwise.
constexpr int64_t kFewBlocks = 132;
template <int kThreads, int kLoads>
constexpr int64_t kHeld = int64_t{kThreads} * kLoads* kHeldRanks;
static_assert(kHeld<1024, 1> == kMostRowRanks && kHeld<512, 2> == kMostRowRanks);

}  // namespace

void choose_by_row(const Choice& choice, const IndexRow* rows, int64_t row_count, LaunchStream& stream) {
  const auto count = static_cast<unsigned>(row_count);
  if (row_count > kFewBlocks) {
    stream.launch(choose_row_kernel<512, 2>, count, 512, 0, choice, rows);
  } else {
    stream.launch(choose_row_kernel<1024, 1>, count, 1024, 0, choice, rows);
  }
}

void choose(const Choice& choice, const IndexRow* rows, int64_t row_count, const IndexScratch& scratch, LaunchStream& stream) {
  stream.launch(clear_kernel, static_cast<unsigned>(2 * row_count), kBins, 0, scratch.histogram);
  const dim3 grid(static_cast<unsigned>(choice.pieces), static_cast<unsigned>(row_count));
  stream.launch(histogram_kernel<0>, grid, kThreads, 0, choice, rows, scratch.histogram);
  stream.launch(histogram_kernel<1>, grid, kThreads, 0, choice, rows, scratch.histogram);
  stream.launch(count_kernel, grid, kThreads, 0, choice, rows, scratch.histogram, scratch.counts);
  stream.launch(write_kernel, grid, kThreads, 0, choice, rows, scratch.histogram, scratch.counts);
}

}  // namespace deepinfer::cuda
