// Attention of few rows, where time is what a block waits for: as attention.cu, but 16 heads a block, queries straight from
// memory into registers, and probabilities made where they are used. A block widens values of five tiles at once, and its warps
// multiply eight dims each. The arithmetic is attention_softmax.cuh's.

#include <cmath>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tiles.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/row_math.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHeads = 16;      // of a block
constexpr int kHeadTiles = 2;   // of 8 heads
constexpr int kScoreSlots = 4;  // 8 dims each, of a lane's part of kScoreDims
constexpr int kScoreThreads = kQuarters * kWarp;
constexpr int kValueWarps = 8;
constexpr int kValueThreads = kValueWarps * kWarp;
constexpr int kValueDims = kValueWarps * 8;      // of a block
constexpr int kFewStride = kValueDims + 8;       // bf16, of a value in shared memory
constexpr int kOwnHeads = kHeads / kValueWarps;  // whose probabilities a warp makes
constexpr int kAhead = 5;                        // tiles on their way, then in shared memory

// The factors of the pairs in eight dims from `column` on; the first pairs that are rotated behind those that are not.
struct EightRotations {
  float c[4], s[4];
  int first;  // pair; 4: none
};
__device__ EightRotations rotations_of(const RopeRows& rotation, int64_t r, int column, int dim) {
  EightRotations out;
  const auto pairs = static_cast<int>(rotation.pairs);
  const int behind = (column - (dim - 2 * pairs)) / 2;  // rotated pairs before the first; negative: pairs up to a rotated one
  out.first = pairs == 0 || column >= dim ? 4 : min(max(-behind, 0), 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool rotated = i >= out.first;
    out.c[i] = rotated ? rotation.cos[r * pairs + behind + i] : 0.0f;
    out.s[i] = rotated ? rotation.sin[r * pairs + behind + i] : 0.0f;
  }
  return out;
}
__device__ uint4 rotate_eight(const uint4& v, const EightRotations& by) {
  uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = i >= by.first ? rotate_pair(words[i], by.c[i], by.s[i]) : words[i];
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// scores [rows][heads][stride]. Grid: key tiles, those of the window first; rows; groups of heads. Warp: a quarter of each 512
// dims.
__global__ void __launch_bounds__(kScoreThreads)
    few_score_kernel(const AttentionQuery* queries, const bf16* q, const RopeRows rotation, int heads, int dim, float* scores,
                     int64_t stride) {
  take_turn();
  auto* parts = reinterpret_cast<float*>(dynamic_shared<uint4>());  // [heads][kScoreStride]
  const int64_t r = blockIdx.y;
  const AttentionQuery& a = queries[r];
  const int window = window_of(a);
  const int count = count_of(a);
  const int window_tiles = (window + kKeys - 1) / kKeys;
  const int tiles = window_tiles + (count - window + kKeys - 1) / kKeys;
  const auto tile = static_cast<int>(blockIdx.x);
  if (tile >= tiles) return;
  const bool in_window = tile < window_tiles;
  const int first = in_window ? tile * kKeys : window + (tile - window_tiles) * kKeys;
  const int keys = min(kKeys, (in_window ? window : count) - first);
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  const int own_heads = min(kHeads, heads - first_head);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int quarter = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  float c[2][kHeadTiles][4] = {};
  for (int begin = 0; begin < dim; begin += kQuarters * kScoreDims) {
    const int d = begin + quarter * kScoreDims;
    uint4 x[kHeadTiles][kScoreSlots];  // asked for before the keys, whose addresses take a while
#pragma unroll
    for (int i = 0; i < kHeadTiles; ++i) {
      const int h = i * 8 + g;
#pragma unroll
      for (int slot = 0; slot < kScoreSlots; ++slot) {
        const int column = d + slot_column(slot, t);
        x[i][slot] =
            h < own_heads && column < dim ? load_again(q + (r * heads + first_head + h) * dim + column) : make_uint4(0, 0, 0, 0);
      }
    }
    KeyPiece piece;
    load_keys(a, in_window, first, keys, d, dim, piece);
    if (d + kScoreDims > dim - 2 * rotation.pairs && rotation.pairs > 0) {
#pragma unroll
      for (int slot = 0; slot < kScoreSlots; ++slot) {
        const EightRotations by = rotations_of(rotation, r, d + slot_column(slot, t), dim);
#pragma unroll
        for (int i = 0; i < kHeadTiles; ++i) x[i][slot] = rotate_eight(x[i][slot], by);
      }
    }
    for (int turn = 0; turn < kQuarters; ++turn) {
      if (turn == quarter && d < dim) {
        if (d > 0) take_sums(parts, c);
        multiply_keys<kHeadTiles>(
            piece, in_window, [&](int i, int slot) { return interleave(x[i][slot]); }, c);
        leave_sums(parts, c);
      }
      __syncthreads();
    }
  }
  float* out = scores + (r * heads + first_head) * stride + first;
  for (int h = quarter; h < own_heads; h += kQuarters) {
    if (lane < keys) out[h * stride + lane] = parts[h * kScoreStride + lane];
  }
}

struct ValueLayout {
  int weight_stride;                         // bf16
  int values, rows, factors, totals, bytes;  // offsets
};
__host__ __device__ ValueLayout few_value_layout(int64_t stride) {
  ValueLayout l{};
  l.weight_stride = static_cast<int>(stride);  // a multiple of 64 and 8: ldmatrix rows in different banks
  l.values = kHeads * l.weight_stride * 2;
  l.rows = l.values + kAhead * kTileKeys * kFewStride * 2;
  l.factors = l.rows + l.weight_stride * 8;
  l.totals = l.factors + l.weight_stride / kTileKeys * kHeads * 4;
  l.bytes = l.totals + kHeads * 4;
  return l;
}

// Grid: groups of kValueDims dims, rows, groups of heads.
__global__ void __launch_bounds__(kValueThreads, 2)
    few_value_kernel(const AttentionQuery* queries, const RopeRows rotation, int heads, int dim, const float* sinks, float scale,
                     const float* scores, int64_t stride, bf16* out) {
  take_turn();
  auto* base = reinterpret_cast<uint8_t*>(dynamic_shared<uint4>());
  const ValueLayout l = few_value_layout(stride);
  auto* p = reinterpret_cast<bf16*>(base);
  auto* values = reinterpret_cast<bf16*>(base + l.values);
  auto* rows = reinterpret_cast<const uint8_t**>(base + l.rows);
  auto* factors = reinterpret_cast<float*>(base + l.factors);  // [tiles][heads]
  auto* totals = reinterpret_cast<float*>(base + l.totals);
  const int64_t r = blockIdx.y;
  const AttentionQuery& a = queries[r];
  const int window = window_of(a);
  const int count = count_of(a);
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  const int own_heads = min(kHeads, heads - first_head);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int first_dim = static_cast<int>(blockIdx.x) * kValueDims;
  const int tiles = (count + kTileKeys - 1) / kTileKeys;
  for (int i = thread; i < count; i += kValueThreads) rows[i] = key_row(a, i);
  __syncthreads();
  // Of each tile a warp widens eight keys, a lane 16 dims.
  const int in_tile = warp * 8 + lane / 4;
  const int column = first_dim + lane % 4 * 16;
  const auto load = [&](int tile, ValuePiece& piece) {
    if (tile >= tiles || column >= dim) return;
    const int key = min(tile * kTileKeys + in_tile, count - 1);
    piece = load_values(rows[key], key < window, dim, column);
  };
  // The lane's pair of dims is rotated back in the end.
  const auto pairs = static_cast<int>(rotation.pairs);
  const int own_dim = first_dim + warp * 8 + lane % 4 * 2;
  const int rotated_dim = own_dim - (dim - 2 * pairs);
  const bool rotated = own_dim < dim && rotated_dim >= 0 && pairs > 0;
  const float cosine = rotated ? rotation.cos[r * pairs + rotated_dim / 2] : 0.0f;
  const float sine = rotated ? -rotation.sin[r * pairs + rotated_dim / 2] : 0.0f;
  ValuePiece pieces[kAhead] = {};  // on their way while probabilities are made
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i, pieces[i]);
#pragma unroll
  for (int k = 0; k < kOwnHeads; ++k) {  // heads that do not exist have those of the last one
    const int head = warp * kOwnHeads + k;
    const int there = first_head + min(head, own_heads - 1);
    const float* s = scores + (r * heads + there) * stride;
    const float total = tile_softmax(
        count, scale, sinks[there], [&](int i) { return s[i]; },
        [&](int i, float e) { p[head * l.weight_stride + i] = narrow(e); },
        [&](int tile, float f) { factors[tile * kHeads + head] = f; });
    if (lane == 0) totals[head] = total;
  }
  float c[4] = {};
  for (int first = 0; first < tiles; first += kAhead) {
    if (first > 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= tiles) break;
      uint32_t v[8];
      widen_values(pieces[i], min((first + i) * kTileKeys + in_tile, count - 1) < window, v);
      load(first + i + kAhead, pieces[i]);
      auto* to = reinterpret_cast<uint4*>(values + (i * kTileKeys + in_tile) * kFewStride + lane % 4 * 16);
      to[0] = make_uint4(v[0], v[1], v[2], v[3]);
      to[1] = make_uint4(v[4], v[5], v[6], v[7]);
    }
    __syncthreads();
    for (int i = 0; i < min(kAhead, tiles - first); ++i) {
      const float* change = factors + (first + i) * kHeads + lane / 4;
      c[0] *= change[0], c[1] *= change[0];
      c[2] *= change[8], c[3] *= change[8];
#pragma unroll
      for (int step = 0; step < kTileKeys; step += 2 * kValueKeys) {
        uint32_t b[4];  // keys 0..7, 8..15, ...
        load_matrices_transposed(b, values + (i * kTileKeys + step + lane) * kFewStride + warp * 8);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t w[4];
          load_matrices(w, p + lane % 16 * l.weight_stride + (first + i) * kTileKeys + step + half * kValueKeys + lane / 16 * 8);
          mma(c, w, b[half * 2], b[half * 2 + 1]);
        }
      }
    }
  }
  if (own_dim >= dim) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int h = lane / 4 + i * 8;
    if (h >= own_heads) continue;
    uint32_t o = narrow_pair(c[i * 2] / totals[h], c[i * 2 + 1] / totals[h]);
    if (rotated) o = rotate_pair(o, cosine, sine);
    *reinterpret_cast<uint32_t*>(out + (r * heads + first_head + h) * dim + own_dim) = o;
  }
}

}  // namespace

void sparse_attention_few(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest,
                          const RopeRows& rotation, float* scores, LaunchStream& stream) {
  const auto heads = static_cast<int>(args.heads);
  const auto dim = static_cast<int>(args.dim);
  const int64_t stride = padded_keys(longest);
  const int value_bytes = few_value_layout(stride).bytes;
  if (value_bytes > 226 << 10) cuda_failed(__FILE__, __LINE__, "sparse_attention", "too many keys for a block's shared memory");
  const auto groups = static_cast<unsigned>((heads + kHeads - 1) / kHeads);
  const auto rows = static_cast<unsigned>(args.queries.size());
  const auto tiles = static_cast<unsigned>((longest + kKeys - 1) / kKeys + 1);  // the window's last one may be short
  stream.launch(few_score_kernel, dim3(tiles, rows, groups), kScoreThreads,
                static_cast<size_t>(kHeads * kScoreStride) * sizeof(float), queries, args.q, rotation, heads, dim, scores,
                stride);
  stream.launch(few_value_kernel, dim3(static_cast<unsigned>((dim + kValueDims - 1) / kValueDims), rows, groups), kValueThreads,
                static_cast<size_t>(value_bytes), queries, rotation, heads, dim, args.sinks,
                1.0f / std::sqrt(static_cast<float>(args.dim)), scores, stride, args.out);
}

}  // namespace deepinfer::cuda
