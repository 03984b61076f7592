// Attention of few rows, where time is what a block waits for: as attention.cu, but 16 heads a block, queries straight from
// memory into registers, and probabilities made where they are used. The chains and the order of the sums are those of
// attention.cu, and so are the bits.

#include <algorithm>
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
constexpr int kSlices = 2;  // of a value block
constexpr int kValueThreads = kSlices * kQuarters * kWarp;
constexpr int kOwnHeads = kHeads / (kValueThreads / kWarp);  // whose probabilities a warp makes
constexpr int kAhead = 5;                                    // value tiles on their way

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
    few_score_kernel(const AttentionQuery* queries, const bf16* q, const RopeRows rotation, int heads, int dim, float scale,
                     float* scores, int64_t stride) {
  take_turn();
  auto* parts = reinterpret_cast<float*>(dynamic_shared<uint4>());  // [quarters][heads][kScoreStride]
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
  for (int d = quarter * kScoreDims; d < dim; d += kQuarters * kScoreDims) {
    uint4 x[kHeadTiles][kScoreSlots];  // asked for before the keys, whose addresses take a while
#pragma unroll
    for (int i = 0; i < kHeadTiles; ++i) {
      const int h = i * 8 + g;
#pragma unroll
      for (int slot = 0; slot < kScoreSlots; ++slot) {
        const int column = d + slot_column(in_window, slot, t);
        x[i][slot] =
            h < own_heads && column < dim ? load_again(q + (r * heads + first_head + h) * dim + column) : make_uint4(0, 0, 0, 0);
      }
    }
    KeyPiece piece;
    load_keys(a, in_window, first, keys, d, dim, piece);
    if (d + kScoreDims > dim - 2 * rotation.pairs && rotation.pairs > 0) {
#pragma unroll
      for (int slot = 0; slot < kScoreSlots; ++slot) {
        const EightRotations by = rotations_of(rotation, r, d + slot_column(in_window, slot, t), dim);
#pragma unroll
        for (int i = 0; i < kHeadTiles; ++i) x[i][slot] = rotate_eight(x[i][slot], by);
      }
    }
    multiply_keys<kHeadTiles>(
        piece, in_window, [&](int i, int slot) { return interleave(x[i][slot]); }, c);
  }
  float* part = parts + quarter * kHeads * kScoreStride;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) part[(n * 8 + t * 2 + i % 2) * kScoreStride + m * 16 + g + i / 2 * 8] = c[m][n][i];
    }
  }
  __syncthreads();
  float* out = scores + (r * heads + first_head) * stride + first;
  for (int h = quarter; h < own_heads; h += kQuarters) {
    float sum = parts[h * kScoreStride + lane];
#pragma unroll
    for (int k = 1; k < kQuarters; ++k) sum += parts[(k * kHeads + h) * kScoreStride + lane];
    if (lane < keys) out[h * stride + lane] = sum * scale;
  }
}

struct ValueLayout {
  int weight_stride;                      // bf16
  int values, rows, sums, totals, bytes;  // offsets
};
__host__ __device__ ValueLayout few_value_layout(int64_t stride) {
  ValueLayout l{};
  l.weight_stride = static_cast<int>(stride);  // a multiple of 32 and 8: ldmatrix rows in different banks
  l.values = kHeads * l.weight_stride * 2;
  l.rows = l.values + kSlices * kQuarters * kValueKeys * kValueStride * 2;
  l.sums = l.rows + l.weight_stride * 8;
  l.totals = l.sums + kSlices * kHeads * kSumStride * 4;
  l.bytes = l.totals + kHeads * 4;
  return l;
}

// Probabilities of the warp's heads, two at a time, in the block's shared memory [heads][stride], zero behind the last key up to
// a multiple of 16; denominators. Heads that do not exist have those of the last one.
__device__ void few_softmax(const float* scores, int64_t stride, int count, int own_heads, const float* sinks, bf16* p,
                            int weight_stride, float* totals) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(threadIdx.x) / kWarp * kOwnHeads;
  const float* s[kOwnHeads];
  float top[kOwnHeads], total[kOwnHeads] = {};
#pragma unroll
  for (int k = 0; k < kOwnHeads; ++k) {
    s[k] = scores + min(first + k, own_heads - 1) * stride;
    top[k] = -1e30f;
  }
#pragma unroll 4
  for (int i = lane; i < count; i += kWarp) {
#pragma unroll
    for (int k = 0; k < kOwnHeads; ++k) top[k] = fmaxf(top[k], s[k][i]);
  }
#pragma unroll
  for (float& v : top) v = warp_max(v);
#pragma unroll 4
  for (int i = lane; i < (count + kValueKeys - 1) / kValueKeys * kValueKeys; i += kWarp) {
#pragma unroll
    for (int k = 0; k < kOwnHeads; ++k) {
      const float e = i < count ? expf(s[k][i] - top[k]) : 0.0f;
      total[k] += e;
      p[(first + k) * weight_stride + i] = narrow(e);
    }
  }
#pragma unroll
  for (int k = 0; k < kOwnHeads; ++k) {
    const float sum = warp_sum(total[k]);
    if (lane == 0) totals[first + k] = sum + expf(sinks[min(first + k, own_heads - 1)] - top[k]);
  }
}

// Grid: groups of kSlices slices of dims, rows, groups of heads.
__global__ void __launch_bounds__(kValueThreads, 2)
    few_value_kernel(const AttentionQuery* queries, const RopeRows rotation, int heads, int dim, const float* sinks,
                     const float* scores, int64_t stride, bf16* out) {
  take_turn();
  auto* base = reinterpret_cast<uint8_t*>(dynamic_shared<uint4>());
  const ValueLayout l = few_value_layout(stride);
  auto* p = reinterpret_cast<bf16*>(base);
  auto* rows = reinterpret_cast<const uint8_t**>(base + l.rows);
  auto* sums = reinterpret_cast<float*>(base + l.sums);
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
  const int slice_number = warp % kSlices;
  const int quarter = warp / kSlices;
  const int slice = (static_cast<int>(blockIdx.x) * kSlices + slice_number) * kSlice;
  const int tiles = (count + kValueKeys - 1) / kValueKeys;
  for (int i = thread; i < count; i += kValueThreads) rows[i] = key_row(a, i);
  __syncthreads();
  const int share = (tiles + kQuarters - 1) / kQuarters;
  const int begin = min(quarter * share, tiles);
  const int end = slice < dim ? min(begin + share, tiles) : begin;
  const int column = slice + lane % 2 * 16;
  const auto load = [&](int number, ValuePiece& piece) {
    if (number >= end) return;
    const int key = min(number * kValueKeys + lane / 2, count - 1);
    piece = load_values(rows[key], key < window, dim, column);
  };
  // Two lanes have a pair of dims, which is rotated back in the end.
  const auto pairs = static_cast<int>(rotation.pairs);
  const int rotated_dim = slice + lane - (dim - 2 * pairs);
  const bool rotated = slice < dim && rotated_dim >= 0;
  const float cosine = rotated ? rotation.cos[r * pairs + rotated_dim / 2] : 0.0f;
  const float sine = rotated ? -rotation.sin[r * pairs + rotated_dim / 2] : 0.0f;
  ValuePiece pieces[kAhead];  // on their way while probabilities are made
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(begin + i, pieces[i]);
  few_softmax(scores + (r * heads + first_head) * stride, stride, count, own_heads, sinks + first_head, p, l.weight_stride,
              totals);
  __syncthreads();
  float c[4][4] = {};
  bf16* tile = reinterpret_cast<bf16*>(base + l.values) + warp * kValueKeys * kValueStride;
  for (int number = begin; number < end; number += kAhead) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int at = number + ahead;
      if (at >= end) break;
      uint32_t v[8];
      widen_values(pieces[ahead], min(at * kValueKeys + lane / 2, count - 1) < window, v);
      load(at + kAhead, pieces[ahead]);
      auto* to = reinterpret_cast<uint4*>(tile + lane / 2 * kValueStride + lane % 2 * 16);
      __syncwarp();
      to[0] = make_uint4(v[0], v[1], v[2], v[3]);
      to[1] = make_uint4(v[4], v[5], v[6], v[7]);
      __syncwarp();
      uint32_t b[2][4];  // dims 16 half + 0..7: keys 0..7, 8..15; dims 8..15 likewise
#pragma unroll
      for (int half = 0; half < 2; ++half)
        load_matrices_transposed(b[half], tile + lane % 16 * kValueStride + half * 16 + lane / 16 * 8);
      uint32_t w[4];
      load_matrices(w, p + lane % 16 * l.weight_stride + at * kValueKeys + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < 4; ++n) mma(c[n], w, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
  }
  // Quarter after quarter.
  float* sum = sums + slice_number * kHeads * kSumStride;
  for (int turn = 0; turn < kQuarters; ++turn) {
    if (turn == quarter) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* at = sum + (lane / 4 + i / 2 * 8) * kSumStride + n * 8 + lane % 4 * 2 + i % 2;
          *at = turn == 0 ? c[n][i] : *at + c[n][i];
        }
      }
    }
    __syncthreads();
  }
  if (slice >= dim) return;
  for (int h = quarter; h < own_heads; h += kQuarters) {
    uint32_t o = bf16_bits(sum[h * kSumStride + lane] / totals[h]);
    const uint32_t other = __shfl_xor_sync(0xffffffffu, o, 1);
    if (rotated) o = rotate_pair(lane % 2 == 0 ? o | other << 16 : other | o << 16, cosine, sine) >> lane % 2 * 16;
    out[(r * heads + first_head + h) * dim + slice + lane] = bf16{static_cast<uint16_t>(o)};
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
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.dim));
  const auto groups = static_cast<unsigned>((heads + kHeads - 1) / kHeads);
  const auto rows = static_cast<unsigned>(args.queries.size());
  const auto tiles = static_cast<unsigned>((longest + kKeys - 1) / kKeys + 1);  // the window's last one may be short
  stream.launch(few_score_kernel, dim3(tiles, rows, groups), kScoreThreads,
                static_cast<size_t>(kQuarters * kHeads * kScoreStride) * sizeof(float), queries, args.q, rotation, heads, dim,
                scale, scores, stride);
  constexpr int kDims = kSlices * kSlice;
  stream.launch(few_value_kernel, dim3(static_cast<unsigned>((dim + kDims - 1) / kDims), rows, groups), kValueThreads,
                static_cast<size_t>(value_bytes), queries, rotation, heads, dim, args.sinks, scores, stride, args.out);
}

}  // namespace deepinfer::cuda
