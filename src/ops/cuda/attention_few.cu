// Attention of few rows, where time is what a block waits for: as attention.cu, but 16 heads a block, queries straight from
// memory into registers, and probabilities made where they are used. Values are found, asked for and widened while others make
// the scores, and keys while others make the queries. The arithmetic is attention_softmax.cuh's.

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
constexpr int kValueThreads = kHeads * kWarp;  // a warp a head
constexpr int kBlockKeys = 640;                // that a block has on their way at once
constexpr int kHalfShared = 113 << 10;         // two such blocks fit
constexpr int kMostShared = 226 << 10;

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

// Keys of a block of the list of a row; none of them if there are no more.
struct ScoreTile {
  bool in_window = false;
  int first = 0, keys = 0;
};
__device__ ScoreTile score_tile(const AttentionQuery& a, int tile) {
  const int window = window_of(a);
  const int window_tiles = (window + kKeys - 1) / kKeys;
  ScoreTile out;
  out.in_window = tile < window_tiles;
  out.first = out.in_window ? tile * kKeys : window + (tile - window_tiles) * kKeys;
  out.keys = max(min(kKeys, (out.in_window ? window : count_of(a)) - out.first), 0);
  return out;
}

// scores [rows][heads][stride]. Grid: key tiles, those of the window first; rows; groups of heads. Warp: a quarter of each 512
// dims. `early`: keys are there before the kernel's turn.
__global__ void __launch_bounds__(kScoreThreads)
    few_score_kernel(const AttentionQuery* queries, const bf16* q, const RopeRows rotation, int heads, int dim, float* scores,
                     int64_t stride, bool early) {
  if (early) let_next_begin();
  auto* parts = reinterpret_cast<float*>(dynamic_shared<uint4>());  // [heads][kScoreStride]
  const int64_t r = blockIdx.y;
  const AttentionQuery& a = queries[r];
  const int first_dims = static_cast<int>(threadIdx.x) / kWarp * kScoreDims;
  ScoreTile tile;
  KeyPiece piece;
  if (early) {
    tile = score_tile(a, static_cast<int>(blockIdx.x));
    if (tile.keys > 0) load_keys(a, tile.in_window, tile.first, tile.keys, first_dims, dim, piece);
  }
  wait_for_earlier();
  if (!early) {
    let_next_begin();  // now: the next kernel reads keys at once
    tile = score_tile(a, static_cast<int>(blockIdx.x));
  }
  const auto [in_window, first, keys] = tile;
  if (keys == 0) return;
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
    if (begin > 0 || !early) load_keys(a, in_window, first, keys, d, dim, piece);
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
  int weight_stride;                   // bf16
  int factors, totals, values, bytes;  // offsets
  int tiles;                           // of values at a time
};
template <int kDims>
__host__ __device__ ValueLayout few_value_layout(int64_t stride) {
  constexpr int kTileBytes = kTileKeys * (kDims + 8) * 2;
  ValueLayout l{};
  l.weight_stride = static_cast<int>(stride);  // a multiple of 64 and 8: ldmatrix rows in different banks
  const int tiles = l.weight_stride / kTileKeys;
  l.factors = kHeads * l.weight_stride * 2;
  l.totals = l.factors + tiles * kHeads * 4;
  l.values = l.totals + kHeads * 4;
  l.tiles = (kHalfShared - l.values) / kTileBytes;
  l.tiles = l.tiles < 1 ? 1 : l.tiles > tiles ? tiles : l.tiles;
  l.bytes = l.values + l.tiles * kTileBytes;
  return l;
}

// Entries of a row's list, of which a block has values: those of `first` tiles on, kDims dims. Lanes of a key have 16 each.
template <int kDims>
struct ValueKeys {
  static constexpr int kStride = kDims + 8;  // bf16, of a key in shared memory
  static constexpr int kLanes = kDims / 16;
  static constexpr int kAtOnce = kValueThreads / kLanes;
  static constexpr int kBatch = (kBlockKeys + kAtOnce - 1) / kAtOnce;

  static __device__ void put(bf16* values, int key, const ValuePiece& piece, bool in_window) {
    uint32_t v[8];
    widen_values(piece, in_window, v);
    auto* to = reinterpret_cast<uint4*>(values + key * kStride + static_cast<int>(threadIdx.x) % kLanes * 16);
    to[0] = make_uint4(v[0], v[1], v[2], v[3]);
    to[1] = make_uint4(v[4], v[5], v[6], v[7]);
  }
  // Entries [begin, end), of which those behind the last repeat it.
  static __device__ void widen(const AttentionQuery& a, int begin, int end, int dim, int first_dim, bf16* values) {
    const int window = window_of(a);
    const int last = count_of(a) - 1;
    const int column = first_dim + static_cast<int>(threadIdx.x) % kLanes * 16;
    if (column >= dim) return;
    for (int base = begin + static_cast<int>(threadIdx.x) / kLanes; base < end; base += kBatch * kAtOnce) {
      const uint8_t* rows[kBatch] = {};
      if (last >= window) {  // all at once: first the list, then the pages
        uint32_t number[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
          number[i] = static_cast<uint32_t>(a.chosen[max(min(base + i * kAtOnce, last) - window, 0)]);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) rows[i] = page_of(a, number[i]);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) rows[i] = row_in_page(a, rows[i], number[i]);
      }
      ValuePiece pieces[kBatch] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int key = min(base + i * kAtOnce, last);
        if (base + i * kAtOnce >= end) continue;
        pieces[i] = load_values(key < window ? window_row(a, key) : rows[i], key < window, dim, column);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int key = min(base + i * kAtOnce, last);
        if (base + i * kAtOnce >= end) continue;
        put(values, base + i * kAtOnce - begin, pieces[i], key < window);
      }
    }
  }
};

// Grid: groups of kDims dims, rows, groups of heads.
template <int kDims>
__global__ void __launch_bounds__(kValueThreads, 2)
    few_value_kernel(const AttentionQuery* queries, const RopeRows rotation, int heads, int dim, const float* sinks, float scale,
                     const float* scores, int64_t stride, bf16* out) {
  let_next_begin();
  using Keys = ValueKeys<kDims>;
  auto* base = dynamic_shared<uint8_t>();
  const ValueLayout l = few_value_layout<kDims>(stride);
  auto* p = reinterpret_cast<bf16*>(base);
  auto* factors = reinterpret_cast<float*>(base + l.factors);  // [tiles][heads]
  auto* totals = reinterpret_cast<float*>(base + l.totals);
  auto* values = reinterpret_cast<bf16*>(base + l.values);
  const int64_t r = blockIdx.y;
  const auto thread = static_cast<int>(threadIdx.x);
  const int first_dim = static_cast<int>(blockIdx.x) * kDims;
  const AttentionQuery& a = queries[r];
  const int count = count_of(a);
  const int tiles = (count + kTileKeys - 1) / kTileKeys;
  // Before the scores are there; what has been written before them is.
  Keys::widen(a, 0, min(tiles, l.tiles) * kTileKeys, dim, first_dim, values);
  wait_for_earlier();
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  const int own_heads = min(kHeads, heads - first_head);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  {  // heads that do not exist have the probabilities of the last one
    const int there = first_head + min(warp, own_heads - 1);
    const float* s = scores + (r * heads + there) * stride;
    const float total = tile_softmax(
        count, scale, sinks[there], [&](int i) { return s[i]; },
        [&](int i, float e) { p[warp * l.weight_stride + i] = narrow(e); },
        [&](int tile, float f) { factors[tile * kHeads + warp] = f; });
    if (lane == 0) totals[warp] = total;
  }
  // The lane's pair of dims is rotated back in the end.
  const auto pairs = static_cast<int>(rotation.pairs);
  const int own_dim = first_dim + warp * 8 + lane % 4 * 2;
  const int rotated_dim = own_dim - (dim - 2 * pairs);
  const bool multiplies = warp < kDims / 8;
  const bool rotated = multiplies && own_dim < dim && rotated_dim >= 0 && pairs > 0;
  const float cosine = rotated ? rotation.cos[r * pairs + rotated_dim / 2] : 0.0f;
  const float sine = rotated ? -rotation.sin[r * pairs + rotated_dim / 2] : 0.0f;
  const int held = l.tiles * kTileKeys;
  __syncthreads();
  float c[4] = {};
  for (int first = 0; first < tiles; first += l.tiles) {
    if (first > 0) {
      __syncthreads();
      const int begin = first * kTileKeys;
      Keys::widen(a, begin, min(tiles * kTileKeys, begin + held), dim, first_dim, values);
      __syncthreads();
    }
    if (!multiplies) continue;
#pragma unroll 2
    for (int i = 0; i < min(l.tiles, tiles - first); ++i) {
      const float* change = factors + (first + i) * kHeads + lane / 4;
      c[0] *= change[0], c[1] *= change[0];
      c[2] *= change[8], c[3] *= change[8];
#pragma unroll
      for (int step = 0; step < kTileKeys; step += 2 * kValueKeys) {
        uint32_t b[4];  // keys 0..7, 8..15, ...
        load_matrices_transposed(b, values + (i * kTileKeys + step + lane) * Keys::kStride + warp * 8);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t w[4];
          load_matrices(w, p + lane % 16 * l.weight_stride + (first + i) * kTileKeys + step + half * kValueKeys + lane / 16 * 8);
          mma(c, w, b[half * 2], b[half * 2 + 1]);
        }
      }
    }
  }
  if (!multiplies || own_dim >= dim) return;
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
                          const RopeRows& rotation, float* scores, LaunchStream& stream, bool early) {
  const auto heads = static_cast<int>(args.heads);
  const auto dim = static_cast<int>(args.dim);
  const int64_t stride = padded_keys(longest);
  const auto groups = static_cast<unsigned>((heads + kHeads - 1) / kHeads);
  const auto rows = static_cast<unsigned>(args.queries.size());
  const auto tiles = static_cast<unsigned>((longest + kKeys - 1) / kKeys + 1);  // the window's last one may be short
  stream.launch(few_score_kernel, dim3(tiles, rows, groups), kScoreThreads,
                static_cast<size_t>(kHeads * kScoreStride) * sizeof(float), queries, args.q, rotation, heads, dim, scores, stride,
                early);
  const auto values = [&](auto kernel, int dims, int bytes) {
    if (bytes > kMostShared) cuda_failed(__FILE__, __LINE__, "sparse_attention", "too many keys for a block's shared memory");
    stream.launch(kernel, dim3(static_cast<unsigned>((dim + dims - 1) / dims), rows, groups), kValueThreads,
                  static_cast<size_t>(bytes), queries, rotation, heads, dim, args.sinks,
                  1.0f / std::sqrt(static_cast<float>(args.dim)), scores, stride, args.out);
  };
  // Fewer dims a block are more blocks, each of which makes all probabilities: as many as processors.
  constexpr unsigned kBlocks = 132;
  const auto blocks = [&](int dims) { return static_cast<unsigned>((dim + dims - 1) / dims) * rows * groups; };
  if (blocks(16) <= kBlocks) return values(few_value_kernel<16>, 16, few_value_layout<16>(stride).bytes);
  if (blocks(32) <= kBlocks) return values(few_value_kernel<32>, 32, few_value_layout<32>(stride).bytes);
  values(few_value_kernel<64>, 64, few_value_layout<64>(stride).bytes);
}

}  // namespace deepinfer::cuda
