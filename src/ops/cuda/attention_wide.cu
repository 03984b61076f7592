// Attention at many rows, on warpgroups: a block has one query and 64 heads, and keeps its scores. The arithmetic is that of
// attention.cu, to the bit: which 16 columns or keys are one product, the quarters they are added in and their order, the
// softmax.
//
//   scores   A tile of 64 keys a warpgroup at a time. Keys are the A operand, widened in registers; the queries of all heads are
//            B, in shared memory in the order of the products. Quarters of the dims are chains, added in registers.
//   softmax  A warp a head. Probabilities take the place of the scores.
//   values   Probabilities are A, 64 heads; values are B, 32 keys by 256 or 128 dims a stage, widened once into shared memory by
//            half of the warpgroups for the others, which multiply. Quarters of the keys are chains; some dims come after the
//            others, so that sums and chains are in registers.
//
// Queries that have a window alone are done by smaller blocks, two a multiprocessor. Values lie where the queries were.
//
// For 640 keys a block multiplies for 14 us at the matrix rate and widens 2 x 327,680 values, some 19,000 instructions of each of
// the four schedulers, in 11 us at 1.75 GHz; it moves 2 x 215 kB of keys and 128 kB of queries and outputs.

#include <algorithm>
#include <cmath>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_wide_values.cuh"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

using AnyKeys = AttentionShape<4, 640, true>;
using WindowKeys = AttentionShape<2, 128, false>;  // smaller blocks, two of which wait for different things

// Probabilities of kTogether heads from `head` on in place of their scores, zero behind the last key; and their sums, the sinks'
// too. `sink(i)`: of head + i.
constexpr int kTogether = 2;
template <typename Shape, typename Sink>
__device__ void softmax(typename Shape::Shared& s, int head, int count, const Sink& sink) {
  const int lane = thread_index() % kWarp;
  constexpr int kLaneKeys = Shape::kMostKeys / kWarp;
  constexpr float kNone = -INFINITY;  // its exponential is zero, and nothing in the sum
  float v[kTogether][kLaneKeys];
  float top[kTogether];
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    const float* row = s.scores[head + i] + lane;
    top[i] = -1e30f;
#pragma unroll
    for (int k = 0; k < kLaneKeys; ++k) v[i][k] = k * kWarp + lane < count ? row[k * kWarp] : kNone;
#pragma unroll
    for (int k = 0; k < kLaneKeys; ++k) top[i] = fmaxf(top[i], v[i][k]);
  }
#pragma unroll
  for (int i = 0; i < kTogether; ++i) top[i] = warp_max(top[i]);
  __syncwarp();
  float total[kTogether];
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    auto* p = reinterpret_cast<bf16*>(s.scores[head + i]) + lane;
    total[i] = 0;
#pragma unroll
    for (int k = 0; k < kLaneKeys; ++k) {
      const float e = expf(v[i][k] - top[i]);
      total[i] += e;
      p[k * kWarp] = narrow(e);
    }
  }
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    total[i] = warp_sum(total[i]);
    const float all = total[i] + expf(sink(i) - top[i]);
    if (lane == 0) s.totals[head + i] = all;
  }
}

// Grid: rows, groups of heads.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    attention_wide_kernel(const AttentionQuery* queries, const bf16* q, int heads, const float* sinks, float scale, bf16* out) {
  take_turn();
  auto& s = *dynamic_shared<typename Shape::Shared>();
  if (shared_address(&s) % kEightRows != 0) __trap();
  const AttentionQuery& a = queries[blockIdx.x];
  const int first_head = static_cast<int>(blockIdx.y) * kWideHeads;
  const int own_heads = min(kWideHeads, heads - first_head);
  const int64_t first_output = (static_cast<int64_t>(blockIdx.x) * heads + first_head) * kWideDim;
  const int group = thread_index() / kWarpgroup;
  const int lane = thread_index() % kWarp;
  const int warp = thread_index() / kWarp;

  // Queries begin on their way, then the look-up of keys, then the first compressed keys.
  constexpr int kTurns = kWideHeads / (Shape::kWarps * 4);
  uint4 query_parts[kTurns][kParts];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn)
    load_queries(q + first_output, turn * Shape::kWarps * 4, own_heads, query_parts[turn]);
  constexpr int kWarpHeads = kWideHeads / Shape::kWarps;  // of the softmax
  const float sink = sinks[first_head + min(warp * kWarpHeads + lane % kWarpHeads, own_heads - 1)];
  if (thread_index() == 0) {
    s.odd_rows = 0;
    for (int i = 0; i < kValueStages; ++i) {
      barrier_init(&s.full[i], Shape::kWidenWarps);
      barrier_init(&s.empty[i], Shape::kMultiplyWarps);
    }
    show_barriers();
  }
  const Tiles tiles(a);
  const WarpRows rows = look_up<Shape::kGroups>(a, tiles, group);
  CompressedPiece piece{};
  if constexpr (Shape::kCompressed) load_piece(lane_rows(rows, group < tiles.of_window ? 1 : 0), rows.whole, 0, piece);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn)
    order_queries<Shape::kCompressed>(query_parts[turn], turn * Shape::kWarps * 4, s.queries, Shape::window_queries(s));
  show_shared_memory();
  __syncthreads();

#pragma unroll 1
  for (int number = 0; number == 0 || group + number * Shape::kGroups < tiles.all; ++number) {
    const int tile = group + number * Shape::kGroups;
    float sum[kWideHeads / 8][4] = {};
    if (tile < tiles.of_window) {
      window_tile(lane_rows(rows, 0), rows.whole, shared_address(Shape::window_queries(s)), sum);
    } else if (tile < tiles.all) {
      if constexpr (Shape::kCompressed) compressed_tile(rows, number, piece, shared_address(s.queries), sum);
    }
    if (Shape::kQueriesInScores && number == 0) __syncthreads();
    if (tile < tiles.all) store_scores<Shape>(s, tiles.first(tile), tiles.keys(tile), scale, sum);
  }
  if (!rows.whole && lane == 0) s.odd_rows = 1;
  __syncthreads();

  list_rows<Shape>(s, rows, tiles, group);
  __syncthreads();
  // The first values come while probabilities are made.
  ValuePieces pieces[kValueStages] = {};
  ValueLoader<Shape> loader(s, tiles.window, tiles.count, s.odd_rows == 0);
  if (group >= Shape::kMultipliers) {
#pragma unroll
    for (int i = 0; i < kValueStages; ++i) {
      if (i < stages_of_pass(tiles.count) * (kWideDim / Shape::kStageDims)) loader.next(pieces[i]);
    }
  }
#pragma unroll 1
  for (int i = 0; i < kWarpHeads; i += kTogether) {
    const int head = warp * kWarpHeads + i;
    if (head < own_heads) softmax<Shape>(s, head, tiles.count, [&](int k) { return __shfl_sync(0xffffffffu, sink, i + k); });
  }
  __syncthreads();

  if (group >= Shape::kMultipliers) {
    give_registers<88>();
    widen_stages<Shape>(s, tiles.count, loader, pieces);
  } else {
    take_registers<168>();
    multiply_stages<Shape>(s, group, tiles.count, own_heads, out + first_output);
  }
}

}  // namespace

WideAttention wide_attention_of(const SparseAttentionArgs& args) {
  if (args.dim != kWideDim) return WideAttention::kNo;
  bool window_alone = true;
  for (const AttentionQuery& a : args.queries) {
    const int64_t window = a.window_last - a.window_first + 1;
    const int64_t count = window + a.chosen_count;
    if (window > AnyKeys::kGroups * kTileKeys || count <= 0 || count > AnyKeys::kMostKeys) return WideAttention::kNo;
    window_alone = window_alone && a.chosen_count == 0 && window <= WindowKeys::kMostKeys;
  }
  return window_alone ? WideAttention::kWindow : WideAttention::kAnyKeys;
}

void sparse_attention_wide(const SparseAttentionArgs& args, WideAttention way, const AttentionQuery* queries,
                           LaunchStream& stream) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.dim));
  const dim3 grid(static_cast<unsigned>(args.queries.size()), static_cast<unsigned>((args.heads + kWideHeads - 1) / kWideHeads));
  const auto launch = [&]<typename Shape>(Shape) {
    stream.launch(attention_wide_kernel<Shape>, grid, Shape::kThreads, sizeof(typename Shape::Shared), queries, args.q,
                  static_cast<int>(args.heads), args.sinks, scale, args.out);
  };
  if (way == WideAttention::kWindow) return launch(WindowKeys{});
  launch(AnyKeys{});
}

}  // namespace deepinfer::cuda
