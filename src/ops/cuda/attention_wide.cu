// Attention of many rows, on warpgroups: a block has one query and 64 heads at a time, and goes through the list tile by tile of
// 64 keys. Two warpgroups widen, two multiply:
//
//   widen     Half of a tile's keys each, asked for a tile ahead, into one of two buffers in shared memory: keys are values, too.
//             They list the keys of the next query and bring its numbers.
//   multiply  Queries by half of a tile's keys each, then the softmax so far, of which the largest scores, probabilities and the
//             denominator's sums are exchanged; then probabilities by values, 256 dims each, onto sums in registers, and the next
//             tile's scores behind them.
//
// A block goes on with another query without a stop: its keys are widened while the last ones are multiplied. The arithmetic is
// attention_softmax.cuh's: all kernels of attention have the same bits.
//
// For 640 keys a block multiplies for 20,500 cycles at the matrix rate, a tile 2,048, half of them scores; but those of 32 keys
// take their operands from shared memory in 1,536 cycles, values in 768, and widening puts a tile there in 512. Of a compressed
// key a lane widens 64 dims, twice, in some 210 instructions each.

#include <algorithm>
#include <cmath>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_wide.cuh"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kValueGroups = 2;  // the first ones
constexpr int kWidenGroups = 2;
constexpr int kGroups = kValueGroups + kWidenGroups;
constexpr int kThreads = kGroups * kWarpgroup;
constexpr int kGroupWarps = kWarpgroup / kWarp;
// Of the threads of both value groups.
constexpr int kTopsBarrier = 1;
constexpr int kProbabilitiesBarrier = 2;
constexpr int kTotalsBarrier = 3;

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

// Steps of a warpgroup that widens, query after query.
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

// Where the keys of an item lie that this warp will widen: entries of the list, the last one repeated to the end of its tile.
// First a lane asks for rows that were chosen, which come to the places of what is made of them a step later: nobody waits for
// both.
constexpr int kListStep = 3;  // of a query, in which the next one's rows are listed, or else in its last
template <typename Each>
__device__ void each_listed(int half, int count, const Each& each) {
  // Places are computed here, not kept in registers from query to query.
  const int thread = thread_read_anew();
  const int first = thread % kWarp / 8 * kTileKeys + half * 32 + thread % kWarpgroup / kWarp * 8 + thread % 8;
#pragma unroll
  for (int at = first; at < first + kMostKeys; at += kWarp / 8 * kTileKeys)
    if (at < tiles_of(count) * kTileKeys) each(at, min(at, count - 1));
}
__device__ void ask_chosen(WideAttentionShared& s, const WideWork& work, int half, int item, int number) {
  if (item >= items_of(work)) return;
  const AttentionQuery& a = work.queries[item / work.groups];
  const int window = window_of(a);
  __syncwarp();  // all lanes have read what was there
  each_listed(half, count_of(a), [&](int at, int entry) {
    if (entry >= window) copy_word_async(shared_address(&s.rows[number % 2][at]), a.chosen + (entry - window));
  });
  commit_copies();
}
__device__ void list_rows(WideAttentionShared& s, const WideWork& work, int half, int item, int number) {
  if (item >= items_of(work)) return;
  const AttentionQuery& a = work.queries[item / work.groups];
  const int window = window_of(a);
  const int count = count_of(a);
  wait_copies<0>();
  each_listed(half, count, [&](int at, int entry) {
    const uint8_t*& row = s.rows[number % 2][at];
    if (entry >= window) {
      const uint32_t chosen = *reinterpret_cast<const uint32_t*>(&row);
      row = row_in_page(a, page_of(a, chosen), chosen);
    } else {
      row = window_row(a, entry);
    }
  });
  __syncwarp();
  // Its queries will be wanted next.
  if (thread_read_anew() == kValueGroups * kWarpgroup) {
    const WideItem own(work, item);
    fetch_ahead(reinterpret_cast<const uint8_t*>(work.q + own.offset(work)), int64_t{own.own_heads} * kWideDim * 2);
  }
}

__device__ bool in_window(const WidenStep& step, int half) {
  return min(step.tile * kTileKeys + piece_key(half), step.count - 1) < step.window;
}
// All pieces of a step. `none`: 0.
__device__ void load_step(const WideAttentionShared& s, const WidenStep& step, int half, uint32_t none,
                          WidePiece (&pieces)[kPieces]) {
  const uint8_t* row = s.rows[step.number % 2][static_cast<uint32_t>(step.tile * kTileKeys + piece_key(half)) + none];
  const bool whole = whole_rows(address_of(row));
  const bool window = in_window(step, half);
#pragma unroll
  for (int n = 0; n < kPieces; ++n) load_piece(row, whole, window, step.second, n, pieces[n]);
}

// One half of every tile's keys.
__device__ void widen_tiles(WideAttentionShared& s, const WideWork& work, int half) {
  WidenStep now(work);
  ask_chosen(s, work, half, now.item, 0);
  list_rows(s, work, half, now.item, 0);
  WidePiece pieces[kPieces] = {};
  if (now.there(work)) load_step(s, now, half, 0, pieces);
  uint32_t place = piece_place(half);
  // The compiler does not know that `none` is 0: it cannot but keep these in registers.
  const Fp4Bytes bytes{kFp4High | (pieces[0].scales & work.none), kFp4Low | (pieces[0].scales & work.none)};
  int turn = 0;
#pragma unroll 1
  while (now.there(work)) {
    WidenStep next = now;
    next.next(work);
    const bool ends = next.number != now.number;
    const bool late = ends && now.steps <= kListStep;  // the next one's rows are not listed yet
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
    if (now.steps == kListStep - 1 || (ends && now.steps < kListStep))
      ask_chosen(s, work, half, now.item + static_cast<int>(gridDim.x), now.number + 1);
    if (now.steps == kListStep || late) list_rows(s, work, half, now.item + static_cast<int>(gridDim.x), now.number + 1);
    if (next.there(work)) load_step(s, next, half, none & work.none, pieces);
    if (now.second == 0 && turn >= kBuffers) barrier_wait(&s.empty[buffer][half], static_cast<uint32_t>(turn / kBuffers - 1) & 1);
    const bool window = in_window(now, half);
    forget_uses(place);
#pragma unroll
    for (int n = 0; n < kPieces; ++n) store_piece(come[n], bytes, window, now.second, n, place, s.keys[buffer]);
    if (now.ends_tile()) {
      if (now.tile == 0) {
        // The scores of the query before are there.
        if (now.number > 0) barrier_wait(&s.asked, static_cast<uint32_t>(now.number - 1) & 1);
        const WideItem own(work, now.item);
        bring_queries(work.q + own.offset(work), own.own_heads, half, s.queries);
      }
      show_shared_memory();
      __syncwarp();
      if (lane_index() == 0) barrier_arrive(&s.full[buffer]);
      ++turn;
    }
    now = next;
  }
}

// Scores of half of a tile's keys, of the lane's heads lane / 4 and 8 behind it of the warp's 16, keys lane % 4 * 2 + {0, 1} of
// each eight.
constexpr int kHalfEights = kTileKeys / 8 / 2;
constexpr uint32_t kUnit = 16;  // of addresses in descriptors
// A descriptor with another place.
__device__ uint64_t placed(uint64_t descriptor, uint32_t low) { return (descriptor & ~uint64_t{0xffffffffu}) | low; }
__device__ void ask(WideAttentionShared& s, uint64_t queries, uint64_t keys, int turn, float (&c)[kHalfEights][4]) {
  const auto buffer = static_cast<uint32_t>(turn % kBuffers);
  barrier_wait(&s.full[buffer], static_cast<uint32_t>(turn / kBuffers) & 1);
  begin_products();
  auto of_queries = static_cast<uint32_t>(queries);
  auto of_keys = static_cast<uint32_t>(keys) + buffer * (kRowsBytes / kUnit);
#pragma unroll
  for (int block = 0; block < kWideDim / 64; ++block) {
    // Places of products are not kept in registers, which sums of values need.
    forget_uses(of_queries);
    forget_uses(of_keys);
#pragma unroll
    for (uint32_t product = 0; product < 4; ++product) {
      const uint32_t at = product * 32 / kUnit;
      multiply_half_tile(c, placed(queries, of_queries + at), placed(keys, of_keys + at), block > 0 || product > 0);
    }
    of_queries += kBlockBytes / kUnit;
    of_keys += kBlockBytes / kUnit;
  }
}

// Scores of half of each tile's keys and what the softmax has so far, then values of half of the dims: while these are
// multiplied, the next tile's scores are under way.
__device__ void multiply_tiles(WideAttentionShared& s, const WideWork& work, int group) {
  const int lane = lane_index();
  const int head = warp_in_group() * 16 + lane / 4;
  const uint64_t queries = swizzled_rows(shared_address(s.queries));
  const uint64_t keys = swizzled_rows(shared_address(s.keys[0]) + static_cast<uint32_t>(group) * kHalfEights * kEightRows);
  const uint64_t probabilities = swizzled_rows(shared_address(s.probabilities[0]));
  const uint64_t values = swizzled_matrix(shared_address(s.keys[0]) + static_cast<uint32_t>(group) * (kRowsBytes / kValueGroups),
                                          kEightRows, kBlockBytes);
  int turn = 0;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < items_of(work); item += static_cast<int>(gridDim.x)) {
    const int count = count_of(work.queries[item / work.groups]);
    const int tiles = tiles_of(count);
    float c[32][4] = {};
    float top[2] = {kNoScore, kNoScore};
    float total[2][2] = {};
    float scores[kHalfEights][4];
    ask(s, queries, keys, turn, scores);
    commit_products();
    wait_products<0>();
    settle(scores);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile, ++turn) {
      const auto buffer = static_cast<uint32_t>(turn % kBuffers);
      const bool last = tile + 1 == tiles;
      if (last) {
        __syncwarp();
        if (lane == 0) barrier_arrive(&s.asked);
      }
#pragma unroll
      for (auto& eight : scores) {
#pragma unroll
        for (float& score : eight) score = multiply_rounded(score, work.scale);
      }
      const int there = count - tile * kTileKeys - group * (kTileKeys / 2);
      if (there < kTileKeys / 2) {
#pragma unroll
        for (int j = 0; j < kHalfEights; ++j) {
#pragma unroll
          for (int k = 0; k < 4; ++k)
            if (j * 8 + lane % 4 * 2 + k % 2 >= there) scores[j][k] = -INFINITY;
        }
      }
      float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (auto& eight : scores) largest[i] = fmaxf(largest[i], fmaxf(eight[i * 2], eight[i * 2 + 1]));
        largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], 1));
        largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], 2));
        if (lane % 4 == 0) s.tops[group][head + i * 8] = largest[i];
      }
      named_barrier(kTopsBarrier, kValueGroups * kWarpgroup);
      float factor[2];
      float sums[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float before = top[i];
        top[i] = fmaxf(top[i], fmaxf(largest[i], s.tops[1 - group][head + i * 8]));
        factor[i] = exponential(before, top[i]);
        sums[i][0] = sums[i][1] = 0;
#pragma unroll
        for (int j = 0; j < kHalfEights; ++j) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            scores[j][i * 2 + k] = exponential(scores[j][i * 2 + k], top[i]);
            sums[i][k] += scores[j][i * 2 + k];
          }
          *reinterpret_cast<uint32_t*>(
              s.probabilities[buffer] +
              swizzled_piece(static_cast<uint32_t>(head + i * 8), static_cast<uint32_t>(group * kHalfEights + j)) +
              lane % 4 * 4) = narrow_pair(scores[j][i * 2], scores[j][i * 2 + 1]);
        }
      }
      // A tile's sums go on in the second half, which has them of all tiles.
      float4& first_half = s.sums[thread_index() % kWarpgroup];
      if (group == 0) first_half = make_float4(sums[0][0], sums[0][1], sums[1][0], sums[1][1]);
      if (tile > 0 && __any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (auto& eight : c) {
#pragma unroll
          for (int k = 0; k < 4; ++k) eight[k] *= factor[k / 2];
        }
      }
      show_shared_memory();
      named_barrier(kProbabilitiesBarrier, kValueGroups * kWarpgroup);
      if (group == 1) {
        const float4 sum = first_half;
        sums[0][0] = sum.x, sums[0][1] = sum.y, sums[1][0] = sum.z, sums[1][1] = sum.w;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
#pragma unroll
            for (auto& eight : scores) sums[i][k] += eight[i * 2 + k];
            total[i][k] = fmaf(total[i][k], factor[i], sums[i][k]);
          }
        }
      }
      begin_products();
#pragma unroll
      for (uint32_t step = 0; step < kTileKeys / 16; ++step) {
        const uint64_t p = probabilities + (buffer * kBlockBytes + step * 32) / kUnit;
        const uint64_t v = values + (buffer * kRowsBytes + step * 16 * kSwizzledRow) / kUnit;
        multiply_across<0>(c, p, v);
        multiply_across<16>(c, p, v + 2 * kBlockBytes / kUnit);
        if (step % 2 == 1) commit_products();
      }
      if (!last) ask(s, queries, keys, turn + 1, scores);
      commit_products();  // of nothing behind the last tile
      wait_products<2>();
      __syncwarp();
      if (lane == 0) barrier_arrive(&s.empty[buffer][0]);
      wait_products<1>();
      __syncwarp();
      if (lane == 0) barrier_arrive(&s.empty[buffer][1]);
      wait_products<0>();
      settle(c);
      settle(scores);
    }
    const WideItem own(work, item);
    float denominator[2];
    if (group == 1) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float all = total[i][0] + total[i][1];
        all += __shfl_xor_sync(0xffffffffu, all, 1);
        all += __shfl_xor_sync(0xffffffffu, all, 2);
        const float sink = work.sinks[own.first_head + min(head + i * 8, own.own_heads - 1)];
        denominator[i] = all + exponential(sink, top[i]);
        if (lane % 4 == 0) s.totals[head + i * 8] = denominator[i];
      }
    }
    named_barrier(kTotalsBarrier, kValueGroups * kWarpgroup);
    if (group == 0) denominator[0] = s.totals[head], denominator[1] = s.totals[head + 8];
    write_outputs(denominator, own.own_heads, c, work.out + own.offset(work) + group * (kWideDim / kValueGroups));
  }
}

__global__ void __launch_bounds__(kThreads, 1) attention_wide_kernel(const WideWork work) {
  take_turn();
  auto& s = *dynamic_shared<WideAttentionShared>();
  if (shared_address(&s) % kEightRows != 0) __trap();
  if (thread_index() == 0) {
    for (int i = 0; i < kBuffers; ++i) {
      barrier_init(&s.full[i], kWidenGroups * kGroupWarps);
      for (uint64_t& half : s.empty[i]) barrier_init(&half, kValueGroups * kGroupWarps);
    }
    barrier_init(&s.asked, kValueGroups * kGroupWarps);
    show_barriers();
  }
  __syncthreads();
  const int group = thread_index() / kWarpgroup;
  if (group < kValueGroups) {
    take_registers<176>();
    multiply_tiles(s, work, group);
  } else {
    give_registers<80>();
    widen_tiles(s, work, group - kValueGroups);
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
