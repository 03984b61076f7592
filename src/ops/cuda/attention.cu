// Three kernels: scores, softmax, values. Scores: keys are the A operand, 32 a warp, and all heads are B; the dims are cut into
// quarters of 128, a warp each, one after the other. Values: heads are A, dims are B; a warp has a slice of 32 dims and a quarter
// of the heads. Every key is widened once for each product, whatever the number of heads. The arithmetic is
// attention_softmax.cuh's.

#include <algorithm>
#include <cmath>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tiles.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHeads = 64;      // of a block
constexpr int kScoreTiles = 2;  // of a block at a time
constexpr int kScoreThreads = kScoreTiles * kQuarters * kWarp;
constexpr int kSoftmaxThreads = 256;
constexpr int kSlices = 4;  // of a block
constexpr int kValueThreads = kSlices * kQuarters * kWarp;

// Queries in shared memory: [heads][dims], 16 bytes more a row, so that the lanes of a load meet in no bank.
__host__ __device__ int query_stride(int dim) { return (dim + kScoreDims - 1) / kScoreDims * kScoreDims + 8; }
__host__ __device__ int score_bytes(int dim) { return kHeads * query_stride(dim) * 2 + kScoreTiles * kHeads * kScoreStride * 4; }

// scores [rows][heads][stride]. Grid: shares of the key tiles, those of the window first; rows; groups of heads. Warp: a tile of
// the block's kScoreTiles, a quarter of each 512 dims.
__global__ void __launch_bounds__(kScoreThreads, 1)
    score_kernel(const AttentionQuery* queries, const bf16* q, int heads, int dim, float* scores, int64_t stride) {
  take_turn();
  auto* shared = dynamic_shared<uint4>();
  auto* query = reinterpret_cast<bf16*>(shared);
  auto* parts = reinterpret_cast<float*>(query + kHeads * query_stride(dim));  // [tiles][heads][kScoreStride]
  const int64_t r = blockIdx.y;
  const AttentionQuery& a = queries[r];
  const int window = window_of(a);
  const int count = count_of(a);
  const int window_tiles = (window + kKeys - 1) / kKeys;
  const int tiles = window_tiles + (count - window + kKeys - 1) / kKeys;
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  const int own_heads = min(kHeads, heads - first_head);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int quarter = warp % kQuarters;
  const int g = lane / 4;
  const int t = lane % 4;
  const int row_stride = query_stride(dim);
  if (static_cast<int>(blockIdx.x) * kScoreTiles >= tiles) return;

  const int slots = row_stride / 8;
  for (int i = thread; i < kHeads * slots; i += kScoreThreads) {
    const int h = i / slots;
    const int d = i % slots * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (h < own_heads && d < dim) v = interleave(load_again(q + (r * heads + first_head + h) * dim + d));
    *reinterpret_cast<uint4*>(query + h * row_stride + d) = v;
  }
  const auto step = static_cast<int>(gridDim.x) * kScoreTiles;
  const auto place = [&](int tile, bool& in_window, int& first, int& keys) {
    in_window = tile < window_tiles;
    first = in_window ? tile * kKeys : window + (tile - window_tiles) * kKeys;
    keys = tile < tiles ? min(kKeys, (in_window ? window : count) - first) : 0;
  };
  bool in_window = false;
  int first = 0;
  int keys = 0;
  int tile = static_cast<int>(blockIdx.x) * kScoreTiles + warp / kQuarters;
  place(tile, in_window, first, keys);
  KeyPiece next;
  if (keys > 0) load_keys(a, in_window, first, keys, quarter * kScoreDims, dim, next);
  __syncthreads();
  for (int base = static_cast<int>(blockIdx.x) * kScoreTiles; base < tiles; base += step, tile += step) {
    const bool now_window = in_window;
    const int now_first = first;
    const int now_keys = keys;
    float c[2][kHeads / 8][4] = {};
    KeyPiece piece = next;
    float* part = parts + warp / kQuarters * kHeads * kScoreStride;
    for (int begin = 0; begin < dim; begin += kQuarters * kScoreDims) {
      const int d = begin + quarter * kScoreDims;
      if (d < dim && now_keys > 0 && begin > 0) load_keys(a, now_window, now_first, now_keys, d, dim, piece);
      if (begin == 0) {
        place(tile + step, in_window, first, keys);
        if (d < dim && keys > 0) load_keys(a, in_window, first, keys, d, dim, next);
      }
      const bf16* own = query + g * row_stride + d;
      for (int turn = 0; turn < kQuarters; ++turn) {
        if (turn == quarter && d < dim && now_keys > 0) {
          if (d > 0) take_sums(part, c);
          multiply_keys<kHeads / 8>(
              piece, now_window,
              [&](int heads, int slot) {
                return *reinterpret_cast<const uint4*>(own + heads * 8 * row_stride + slot_column(slot, t));
              },
              c);
          leave_sums(part, c);
        }
        __syncthreads();
      }
    }
    float* out = scores + (r * heads + first_head) * stride + now_first;
    for (int h = quarter; h < own_heads; h += kQuarters) {
      if (lane < now_keys) out[h * stride + lane] = part[h * kScoreStride + lane];
    }
    __syncthreads();
  }
}

// One warp a (row, head). Probabilities behind the last key are zero up to the end of its tile. Factors of tiles take the place
// of scores.
__global__ void __launch_bounds__(kSoftmaxThreads)
    softmax_kernel(const AttentionQuery* queries, int64_t pairs, int heads, const float* sinks, float scale, float* scores,
                   bf16* weights, float* totals, int64_t stride) {
  take_turn();
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * (kSoftmaxThreads / kWarp) + threadIdx.x / kWarp;
  if (pair >= pairs) return;
  float* s = scores + pair * stride;
  bf16* p = weights + pair * stride;
  const float total = tile_softmax(
      count_of(queries[pair / heads]), scale, sinks[pair % heads], [&](int i) { return s[i]; },
      [&](int i, float e) { p[i] = narrow(e); }, [&](int tile, float f) { s[tile] = f; });
  if (threadIdx.x % kWarp == 0) totals[pair] = total;
}

struct ValueLayout {
  int weight_stride;                 // bf16
  int values, rows, factors, bytes;  // offsets
};
__host__ __device__ ValueLayout value_layout(int64_t stride) {
  ValueLayout l{};
  l.weight_stride = static_cast<int>(stride);  // a multiple of 64 and 8: ldmatrix rows in different banks
  l.values = kHeads * l.weight_stride * 2;
  l.rows = l.values + kSlices * kTileKeys * kValueStride * 2;
  l.factors = l.rows + l.weight_stride * 8;
  l.bytes = l.factors + l.weight_stride / kTileKeys * kHeads * 4;
  return l;
}

// Grid: groups of 128 dims, rows, groups of heads. The warps of a slice widen a quarter of a tile's keys each, and multiply a
// quarter of the heads.
__global__ void __launch_bounds__(kValueThreads, 1)
    value_kernel(const AttentionQuery* queries, int heads, int dim, const bf16* weights, const float* factors,
                 const float* totals, int64_t stride, bf16* out) {
  take_turn();
  auto* shared = dynamic_shared<uint4>();
  auto* base = reinterpret_cast<uint8_t*>(shared);
  const ValueLayout l = value_layout(stride);
  auto* p = reinterpret_cast<bf16*>(base);
  auto* rows = reinterpret_cast<const uint8_t**>(base + l.rows);
  auto* factor = reinterpret_cast<float*>(base + l.factors);  // [tiles][heads]
  const int64_t r = blockIdx.y;
  const AttentionQuery& a = queries[r];
  const int window = window_of(a);
  const int count = count_of(a);
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  const int own_heads = min(kHeads, heads - first_head);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int slice_number = warp % kSlices;
  const int quarter = warp / kSlices;
  const int slice = (static_cast<int>(blockIdx.x) * kSlices + slice_number) * kSlice;
  const int tiles = (count + kTileKeys - 1) / kTileKeys;
  for (int i = thread; i < count; i += kValueThreads) rows[i] = key_row(a, i);
  const int row_slots = tiles * kTileKeys / 8;
  const int64_t first_pair = r * heads + first_head;
  for (int i = thread; i < kHeads * row_slots; i += kValueThreads) {
    const int h = i / row_slots;
    const int slot = i % row_slots;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (h < own_heads) v = *reinterpret_cast<const uint4*>(weights + (first_pair + h) * stride + slot * 8);
    *reinterpret_cast<uint4*>(p + h * l.weight_stride + slot * 8) = v;
  }
  for (int i = thread; i < kHeads * tiles; i += kValueThreads)
    factor[i] = i % kHeads < own_heads ? factors[(first_pair + i % kHeads) * stride + i / kHeads] : 0.0f;
  __syncthreads();
  if (slice >= dim) return;  // all warps of the slice
  float c[4][4] = {};
  bf16* tile = reinterpret_cast<bf16*>(base + l.values) + slice_number * kTileKeys * kValueStride;
  const int in_tile = quarter * kValueKeys + lane / 2;
  const int column = slice + lane % 2 * 16;
  const int head = quarter * 16 + lane / 4;
  const auto load = [&](int number) {
    const int key = min(number * kTileKeys + in_tile, count - 1);
    return load_values(rows[key], key < window, dim, column);
  };
  ValuePiece next = load(0);
  for (int number = 0; number < tiles; ++number) {
    uint32_t v[8];
    widen_values(next, min(number * kTileKeys + in_tile, count - 1) < window, v);
    if (number + 1 < tiles) next = load(number + 1);
    auto* to = reinterpret_cast<uint4*>(tile + in_tile * kValueStride + lane % 2 * 16);
    if (number > 0) named_barrier(1 + slice_number, kQuarters * kWarp);
    to[0] = make_uint4(v[0], v[1], v[2], v[3]);
    to[1] = make_uint4(v[4], v[5], v[6], v[7]);
    named_barrier(1 + slice_number, kQuarters * kWarp);
    const float* change = factor + number * kHeads + head;
#pragma unroll
    for (auto& eight : c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) eight[i] *= change[i / 2 * 8];
    }
#pragma unroll
    for (int step = 0; step < kTileKeys; step += kValueKeys) {
      uint32_t b[2][4];  // dims 16 half + 0..7: keys 0..7, 8..15; dims 8..15 likewise
#pragma unroll
      for (int half = 0; half < 2; ++half)
        load_matrices_transposed(b[half], tile + (step + lane % 16) * kValueStride + half * 16 + lane / 16 * 8);
      uint32_t w[4];
      load_matrices(w, p + (quarter * 16 + lane % 16) * l.weight_stride + number * kTileKeys + step + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < 4; ++n) mma(c[n], w, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int h = head + i * 8;
    if (h >= own_heads) continue;
    const float total = totals[first_pair + h];
    bf16* to = out + (first_pair + h) * dim + slice + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; ++n)
      *reinterpret_cast<uint32_t*>(to + n * 8) = narrow_pair(c[n][i * 2] / total, c[n][i * 2 + 1] / total);
  }
}

}  // namespace

void sparse_attention(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest,
                      const AttentionScratch& scratch, LaunchStream& stream) {
  const auto heads = static_cast<int>(args.heads);
  const auto dim = static_cast<int>(args.dim);
  const int64_t stride = padded_keys(longest);
  const int value_bytes = value_layout(stride).bytes;
  if (value_bytes > 226 << 10) cuda_failed(__FILE__, __LINE__, "sparse_attention", "too many keys for a block's shared memory");
  if (score_bytes(dim) > 226 << 10) cuda_failed(__FILE__, __LINE__, "sparse_attention", "too large a head dimension");
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.dim));
  const auto groups = static_cast<unsigned>((heads + kHeads - 1) / kHeads);
  // Few rows: the tiles of a row go to as many blocks as there are.
  const int64_t tiles = (longest + kKeys - 1) / kKeys + 1;  // the window's last one may be short
  const int64_t most_shares = (tiles + kScoreTiles - 1) / kScoreTiles;
  const auto total = static_cast<int64_t>(args.queries.size());
  for (int64_t first = 0; first < total; first += kAttentionRows) {
    const int64_t rows = std::min(kAttentionRows, total - first);
    const AttentionQuery* q = queries + first;
    const int64_t offset = first * args.heads * args.dim;
    constexpr int64_t kBlocks = 264;
    const auto shares = static_cast<unsigned>(std::clamp<int64_t>(kBlocks / rows, 1, most_shares));
    stream.launch(score_kernel, dim3(shares, static_cast<unsigned>(rows), groups), kScoreThreads,
                  static_cast<size_t>(score_bytes(dim)), q, args.q + offset, heads, dim, scratch.scores, stride);
    const int64_t pairs = rows * heads;
    constexpr int64_t kPairs = kSoftmaxThreads / kWarp;
    stream.launch(softmax_kernel, static_cast<unsigned>((pairs + kPairs - 1) / kPairs), kSoftmaxThreads, 0, q, pairs, heads,
                  args.sinks, scale, scratch.scores, scratch.weights, scratch.totals, stride);
    const dim3 grid(static_cast<unsigned>((dim + kSlices * kSlice - 1) / (kSlices * kSlice)), static_cast<unsigned>(rows),
                    groups);
    stream.launch(value_kernel, grid, kValueThreads, static_cast<size_t>(value_bytes), q, heads, dim, scratch.weights,
                  scratch.scores, scratch.totals, stride, args.out + offset);
  }
}

}  // namespace deepinfer::cuda
