// Attention of many rows, on warpgroups: a block has one query and 64 heads at a time, and goes through the list tile by tile of
// 64 keys. Its four warpgroups have tasks of their own and hand tiles on:
//
//   widen    Keys of a tile, asked for a tile ahead, are widened into one of two buffers in shared memory, for scores and values.
//   score    Queries by a tile's keys, then the softmax so far: probabilities and the factor of the sums before.
//   value    Probabilities by values, 256 dims a warpgroup, onto sums in registers.
//
// A block goes on with another query without a stop: its keys are widened while the last ones are multiplied. The arithmetic is
// attention_softmax.cuh's: all kernels of attention have the same bits.
//
// For 640 keys a block multiplies for 20,500 cycles at the matrix rate, a tile 2,048, half of them scores; it widens 327,680
// values, some 6,000 instructions of each of four warps. Operands take as many cycles of shared memory as products do of the
// units: those of scores 1,024 a tile, of values 512, what is widened 512.

#include <algorithm>
#include <cmath>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_wide.cuh"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kValueGroups = 2;  // the first ones
constexpr int kGroups = kValueGroups + 2;
constexpr int kThreads = kGroups * kWarpgroup;
constexpr int kGroupWarps = kWarpgroup / kWarp;
constexpr int kScoreBarrier = 1;  // of a warpgroup's threads

struct WideWork {
  const AttentionQuery* queries;
  const bf16* q;
  const float* sinks;
  bf16* out;
  int rows, heads, groups;  // of heads
  float scale;
  uint32_t none;  // 0
};
// The items of a block: rows and groups of heads.
struct WideItem {
  int row, first_head, own_heads;
  __device__ WideItem(const WideWork& work, int item) : row(item / work.groups), first_head(item % work.groups * kWideHeads) {
    own_heads = min(kWideHeads, work.heads - first_head);
  }
  __device__ int64_t offset(const WideWork& work) const {
    return (static_cast<int64_t>(row) * work.heads + first_head) * kWideDim;
  }
};
__device__ int items_of(const WideWork& work) { return work.rows * work.groups; }
__device__ int tiles_of(int count) { return (count + kTileKeys - 1) / kTileKeys; }

// Steps of the warpgroup that widens, query after query.
struct WidenStep {
  int item;    // none: there are no more
  int number;  // of the block's items
  int tile = 0;
  int second = 0;  // half of the window's dims
  int steps = 0;   // of the item so far
  int window = 0, count = 0;

  __device__ WidenStep(const WideWork& work) : item(static_cast<int>(blockIdx.x)), number(0) { begin(work); }
  __device__ bool there(const WideWork& work) const { return item < items_of(work); }
  __device__ bool ends_tile() const { return second == 1 || tile * kTileKeys >= window; }
  __device__ void next(const WideWork& work) {
    ++steps;
    if (!ends_tile()) {
      second = 1;
      return;
    }
    second = 0;
    if (++tile < tiles_of(count)) return;
    item += static_cast<int>(gridDim.x);
    ++number;
    begin(work);
  }

 private:
  __device__ void begin(const WideWork& work) {
    tile = 0;
    steps = 0;
    if (!there(work)) return;
    const AttentionQuery& a = work.queries[item / work.groups];
    window = window_of(a);
    count = count_of(a);
  }
};

// Where the keys of an item lie, by the warpgroup that scores; the last one is repeated to the end of its tile.
__device__ void list_rows(WideAttentionShared& s, const WideWork& work, int item, int number) {
  if (item < items_of(work)) {
    const AttentionQuery& a = work.queries[item / work.groups];
    const int count = count_of(a);
    for (int i = thread_index() % kWarpgroup; i < tiles_of(count) * kTileKeys; i += kWarpgroup)
      s.rows[number % 2][i] = key_row(a, min(i, count - 1));
    // Its queries will be wanted next.
    if (thread_index() % kWarpgroup == 0) {
      const WideItem own(work, item);
      fetch_ahead(reinterpret_cast<const uint8_t*>(work.q + own.offset(work)), int64_t{own.own_heads} * kWideDim * 2);
    }
  }
  __syncwarp();
  if (lane_index() == 0) barrier_arrive(&s.listed[number % 2]);
}

__device__ bool in_window(const WidenStep& step, int n) {
  return min(step.tile * kTileKeys + piece_key(n), step.count - 1) < step.window;
}
// All pieces of a step. `none`: 0.
__device__ void load_step(const WideAttentionShared& s, const WidenStep& step, uint32_t none, WidePiece (&pieces)[kPieces]) {
  const uint8_t* rows[kPieces];
  uintptr_t all = 0;
#pragma unroll
  for (int n = 0; n < kPieces; ++n) {
    rows[n] = s.rows[step.number % 2][static_cast<uint32_t>(step.tile * kTileKeys + piece_key(n)) + none];
    all |= address_of(rows[n]);
  }
  const bool whole = whole_rows(all);
#pragma unroll
  for (int n = 0; n < kPieces; ++n) load_piece(rows[n], whole, in_window(step, n), step.second, n, pieces[n]);
}

__device__ void widen_tiles(WideAttentionShared& s, const WideWork& work) {
  WidenStep now(work);
  barrier_wait(&s.listed[0], 0);
  WidePiece pieces[kPieces];
  if (now.there(work)) load_step(s, now, 0, pieces);
  const uint32_t place = piece_place();
  int turn = 0;
#pragma unroll 1
  while (now.there(work)) {
    WidenStep next = now;
    next.next(work);
    const int buffer = turn % kBuffers;
    // What has come makes room for the next step's. A wait for one load is one for those behind it, too, as few counters as there
    // are; so nothing is asked for before everything has come. The compiler does not know that `none` is 0.
    WidePiece come[kPieces];
    uint32_t none = 0;
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      come[n] = pieces[n];
      none |= come[n].data[0].x | come[n].data[1].x | come[n].scales;
    }
    if (next.number != now.number) barrier_wait(&s.listed[next.number % 2], static_cast<uint32_t>(next.number / 2) & 1);
    if (next.there(work)) load_step(s, next, none & work.none, pieces);
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      if (n % 2 == 0 && now.second == 0 && turn >= kBuffers)
        barrier_wait(&s.empty[buffer][n / 2], static_cast<uint32_t>(turn / kBuffers - 1) & 1);
      store_piece(come[n], in_window(now, n), now.second, n, place, s.keys[buffer]);
    }
    if (now.ends_tile()) {
      __syncwarp();
      if (lane_index() == 0) barrier_arrive(&s.full[buffer]);
      ++turn;
    }
    now = next;
  }
}

// Scores, and what the softmax has so far: of the lane's heads lane / 4 and 8 behind it of the warp's 16, keys lane % 4 * 2 + {0,
// 1} of each eight.
__device__ void score_tiles(WideAttentionShared& s, const WideWork& work) {
  const int lane = lane_index();
  const int head = warp_in_group() * 16 + lane / 4;
  const uint64_t queries = swizzled_rows(shared_address(s.queries));
  const uint64_t keys = swizzled_rows(shared_address(s.keys[0]));
  constexpr uint32_t kUnit = 16;  // of addresses in descriptors
  list_rows(s, work, static_cast<int>(blockIdx.x), 0);
  int turn = 0;
  int number = 0;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < items_of(work); item += static_cast<int>(gridDim.x), ++number) {
    const WideItem own(work, item);
    const int count = count_of(work.queries[own.row]);
    float sink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) sink[i] = work.sinks[own.first_head + min(head + i * 8, own.own_heads - 1)];
    bring_queries(work.q + own.offset(work), own.own_heads, s.queries);
    show_shared_memory();
    named_barrier(kScoreBarrier, kWarpgroup);
    float top[2] = {kNoScore, kNoScore};
    float total[2][2] = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_of(count); ++tile, ++turn) {
      // The next item's, before the tile that is widened next but one: all of the item before have been read, as its tiles are
      // there.
      if (tile == min(1, tiles_of(count) - 1)) list_rows(s, work, item + static_cast<int>(gridDim.x), number + 1);
      const int buffer = turn % kBuffers;
      barrier_wait(&s.full[buffer], static_cast<uint32_t>(turn / kBuffers) & 1);
      show_shared_memory();  // what others stored
      float c[kTileKeys / 8][4];
      begin_products();
#pragma unroll
      for (uint32_t product = 0; product < kWideDim / 16; ++product) {
        const uint32_t at = (product / 4 * kBlockBytes + product % 4 * 32) / kUnit;
        multiply_shared<kTileKeys>(c, queries + at, keys + static_cast<uint32_t>(buffer) * (kRowsBytes / kUnit) + at,
                                   product > 0);
      }
      commit_products();
      wait_products<0>();
      settle(c);
#pragma unroll
      for (auto& eight : c) {
#pragma unroll
        for (float& score : eight) score = multiply_rounded(score, work.scale);
      }
      const int there = count - tile * kTileKeys;
      if (there < kTileKeys) {
#pragma unroll
        for (int j = 0; j < kTileKeys / 8; ++j) {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (j * 8 + lane % 4 * 2 + k % 2 >= there) c[j][k] = -INFINITY;
        }
      }
      const bool last = tile + 1 == tiles_of(count);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float before = top[i];
#pragma unroll
        for (int j = 0; j < kTileKeys / 8; ++j) top[i] = fmaxf(top[i], fmaxf(c[j][i * 2], c[j][i * 2 + 1]));
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
        const float factor = exponential(before, top[i]);
        float sum[2] = {};
#pragma unroll
        for (int j = 0; j < kTileKeys / 8; ++j) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            c[j][i * 2 + k] = exponential(c[j][i * 2 + k], top[i]);
            sum[k] += c[j][i * 2 + k];
          }
          *reinterpret_cast<uint32_t*>(s.probabilities[buffer] +
                                       swizzled_piece(static_cast<uint32_t>(head + i * 8), static_cast<uint32_t>(j)) +
                                       lane % 4 * 4) = narrow_pair(c[j][i * 2], c[j][i * 2 + 1]);
        }
        total[i][0] = fmaf(total[i][0], factor, sum[0]);
        total[i][1] = fmaf(total[i][1], factor, sum[1]);
        if (lane % 4 == 0) s.factors[buffer][head + i * 8] = factor;
        if (last) {
          float all = total[i][0] + total[i][1];
          all += __shfl_xor_sync(0xffffffffu, all, 1);
          all += __shfl_xor_sync(0xffffffffu, all, 2);
          if (lane % 4 == 0) s.totals[buffer][head + i * 8] = all + exponential(sink[i], top[i]);
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&s.ready[buffer]);
    }
    named_barrier(kScoreBarrier, kWarpgroup);  // nobody multiplies these queries any more
  }
}

__device__ void add_values(WideAttentionShared& s, const WideWork& work, int group) {
  const int lane = lane_index();
  const int head = warp_in_group() * 16 + lane / 4;
  const uint64_t probabilities = swizzled_rows(shared_address(s.probabilities[0]));
  const uint64_t values = swizzled_matrix(shared_address(s.keys[0]) + static_cast<uint32_t>(group) * (kRowsBytes / kValueGroups),
                                          kEightRows, kBlockBytes);
  constexpr uint32_t kUnit = 16;  // of addresses in descriptors
  int turn = 0;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < items_of(work); item += static_cast<int>(gridDim.x)) {
    const WideItem own(work, item);
    const int tiles = tiles_of(count_of(work.queries[own.row]));
    float c[32][4] = {};
    float total[2] = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile, ++turn) {
      const auto buffer = static_cast<uint32_t>(turn % kBuffers);
      barrier_wait(&s.ready[buffer], static_cast<uint32_t>(turn / kBuffers) & 1);
      const float factor[2] = {s.factors[buffer][head], s.factors[buffer][head + 8]};
      if (tile + 1 == tiles) total[0] = s.totals[buffer][head], total[1] = s.totals[buffer][head + 8];
      if (tile > 0 && __any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (auto& eight : c) {
#pragma unroll
          for (int k = 0; k < 4; ++k) eight[k] *= factor[k / 2];
        }
      }
      show_shared_memory();  // what others stored
      begin_products();
#pragma unroll
      for (uint32_t step = 0; step < kTileKeys / 16; ++step) {
        const uint64_t p = probabilities + (buffer * kBlockBytes + step * 32) / kUnit;
        const uint64_t v = values + (buffer * kRowsBytes + step * 16 * kSwizzledRow) / kUnit;
        multiply_across<0>(c, p, v);
        multiply_across<16>(c, p, v + 2 * kBlockBytes / kUnit);
        if (step % 2 == 1) commit_products();
      }
      wait_products<1>();
      __syncwarp();  // all lanes have read what they use of the buffer
      if (lane == 0) barrier_arrive(&s.empty[buffer][0]);
      wait_products<0>();
      settle(c);
      __syncwarp();
      if (lane == 0) barrier_arrive(&s.empty[buffer][1]);
    }
    write_outputs(total, own.own_heads, c, work.out + own.offset(work) + group * (kWideDim / kValueGroups));
  }
}

__global__ void __launch_bounds__(kThreads, 1) attention_wide_kernel(const WideWork work) {
  take_turn();
  auto& s = *dynamic_shared<WideAttentionShared>();
  if (shared_address(&s) % kEightRows != 0) __trap();
  if (thread_index() == 0) {
    for (int i = 0; i < kBuffers; ++i) {
      barrier_init(&s.listed[i], kGroupWarps);
      barrier_init(&s.full[i], kGroupWarps);
      barrier_init(&s.ready[i], kGroupWarps);
      for (uint64_t& half : s.empty[i]) barrier_init(&half, kValueGroups * kGroupWarps);
    }
    show_barriers();
  }
  __syncthreads();
  const int group = thread_index() / kWarpgroup;
  if (group < kValueGroups) {
    take_registers<160>();
    add_values(s, work, group);
  } else if (group == kValueGroups) {
    give_registers<88>();
    score_tiles(s, work);
  } else {
    give_registers<104>();
    widen_tiles(s, work);
  }
}

}  // namespace

bool takes_wide_attention(const SparseAttentionArgs& args) {
  if (args.dim != kWideDim) return false;
  return std::all_of(args.queries.begin(), args.queries.end(), [](const AttentionQuery& a) {
    const int64_t count = a.window_last - a.window_first + 1 + a.chosen_count;
    return count > 0 && count <= kMostKeys;
  });
}

void sparse_attention_wide(const SparseAttentionArgs& args, const AttentionQuery* queries, LaunchStream& stream) {
  constexpr int kMultiprocessors = 132;
  const auto rows = static_cast<int>(args.queries.size());
  const auto heads = static_cast<int>(args.heads);
  const int groups = (heads + kWideHeads - 1) / kWideHeads;
  const WideWork work{queries, args.q, args.sinks, args.out, rows, heads, groups, 1.0f / std::sqrt(static_cast<float>(args.dim)),
                      0};
  stream.launch(attention_wide_kernel, static_cast<unsigned>(std::min(rows * groups, kMultiprocessors)), kThreads,
                sizeof(WideAttentionShared), work);
}

}  // namespace deepinfer::cuda
