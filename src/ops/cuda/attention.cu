// One block: a query row and 16 or 32 of its heads. Scores first (keys are the A operand, 32 a warp), then the softmax over all of them,
// then the values (heads are A, dims are B; each warp has slices of 32 dims to itself). Keys are widened twice: once for each
// product, which costs less than keeping 640 of them.

#include "ops/cuda/attention.h"

#include <cmath>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/fragments.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kKeys = 32;         // of a warp's score tile
constexpr int kValueKeys = 16;    // of a warp's value tile
constexpr int kSlice = 32;        // dims
constexpr int kValueStride = 40;  // bf16: the rows of an ldmatrix lie in different banks

struct Layout {
  int query_stride;  // bf16
  int score_stride;  // floats
  int weight_stride;  // bf16
  int scores, weights, values, rows, totals, bytes;  // offsets
};

__host__ __device__ Layout layout_of(int heads, int dim, int longest) {
  Layout l{};
  l.query_stride = (dim + 127) / 128 * 128 + 8;
  const int keys = (longest + 31) / 32 * 32;
  l.score_stride = keys + 4;
  l.weight_stride = keys + 8;
  l.scores = heads * l.query_stride * 2;
  l.weights = l.scores + heads * l.score_stride * 4;
  l.values = l.weights + heads * l.weight_stride * 2;
  l.rows = l.values + kWarps * kValueKeys * kValueStride * 2;
  l.totals = l.rows + keys * 8;
  l.bytes = l.totals + heads * 4;
  return l;
}

__device__ uint32_t same_pair(float v) { return static_cast<uint32_t>(bf16_bits(v)) * 0x10001u; }

// 8 codes times an E4M3 scale, exact.
__device__ void widen_compressed(uint32_t word, uint32_t scale, uint32_t (&r)[4]) {
  widen_fp4(word, r);
#pragma unroll
  for (uint32_t& v : r) v = multiply_bf16x2(multiply_bf16x2(v, 0x7e807e80u), scale);  // 2^126
}

// Scores of up to 32 keys against the block's heads.
template <bool kWindow, int kTiles>
__device__ void score_tile(const uint8_t* const* rows, int count, int dim, const bf16* query, int stride, float (&c)[2][kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  constexpr int kLaneColumns = kWindow ? 16 : 32;
  const uint8_t* row[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) row[i] = rows[min(g + 8 * i, count - 1)];
  for (int first = 0; first < dim; first += 4 * kLaneColumns) {
    const int column = first + t * kLaneColumns;
    const bool inside = column < dim;
    const auto inputs = [&](int tile, int pair) {
      return *reinterpret_cast<const uint4*>(query + (tile * 8 + g) * stride + column + pair * 8);
    };
    if constexpr (kWindow) {
      WeightChunk<WeightFormat::kFp8> k;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        k.rows[i] = inside ? load_unaligned(row[i] + column) : make_uint4(0, 0, 0, 0);
        k.scales[i] = inside ? row[i][dim + column / kScaleGroup] : 127;
      }
      multiply_chunk<WeightFormat::kFp8, true, kTiles>(k, inputs, c);
    } else {
      uint4 k[4];
      uint32_t scales[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        k[i] = inside ? load_unaligned(row[i] + column / 2) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int s = 0; s < 2; ++s)
          scales[i][s] = inside ? same_pair(e4m3_value(row[i][dim / 2 + column / kCacheScaleGroup + s])) : 0;
      }
      multiply_pairs<4, kTiles>(
          [&](int i, int pair, uint32_t(&r)[4]) {
            const uint32_t words[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
            widen_compressed(words[pair], scales[i][pair / 2], r);
          },
          inputs, c);
    }
  }
}

// 16 dims of one key on their way to shared memory.
struct ValuePiece {
  uint4 data;
  uint32_t scale;
};

__device__ ValuePiece load_values(const uint8_t* row, bool window, int dim, int column) {
  ValuePiece piece;
  if (window) {
    piece.data = load_unaligned(row + column);
    piece.scale = row[dim + column / kScaleGroup];
  } else {
    const uint8_t* p = row + column / 2;
    if (reinterpret_cast<uintptr_t>(p) % 8 == 0) {
      const uint2 v = __ldg(reinterpret_cast<const uint2*>(p));
      piece.data = make_uint4(v.x, v.y, 0, 0);
    } else {
      uint32_t words[2] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i) words[i / 4] |= static_cast<uint32_t>(__ldg(p + i)) << (i % 4 * 8);
      piece.data = make_uint4(words[0], words[1], 0, 0);
    }
    piece.scale = row[dim / 2 + column / kCacheScaleGroup];
  }
  return piece;
}

// In natural order.
__device__ void widen_values(const ValuePiece& piece, bool window, uint32_t (&r)[8]) {
  if (window) {
    uint32_t half[4];
    const uint32_t scale = scale_pair(piece.scale, kFp8Bias);
    const uint32_t excess = excess_pair(piece.scale, kFp8Bias);
    widen_fp8(piece.data.x, piece.data.y, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = multiply_bf16x2(multiply_bf16x2(half[i], scale), excess);
    widen_fp8(piece.data.z, piece.data.w, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) r[4 + i] = multiply_bf16x2(multiply_bf16x2(half[i], scale), excess);
    return;
  }
  const uint32_t scale = same_pair(e4m3_value(piece.scale));
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    uint32_t q[4];  // (0, 4), (1, 5), (2, 6), (3, 7)
    widen_compressed(w == 0 ? piece.data.x : piece.data.y, scale, q);
    r[4 * w] = __byte_perm(q[0], q[1], 0x5410);
    r[4 * w + 1] = __byte_perm(q[2], q[3], 0x5410);
    r[4 * w + 2] = __byte_perm(q[0], q[1], 0x7632);
    r[4 * w + 3] = __byte_perm(q[2], q[3], 0x7632);
  }
}

__device__ void load_matrices(uint32_t (&r)[4], const bf16* p) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ void load_matrices_transposed(uint32_t (&r)[4], const bf16* p) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// Grid: groups of heads, rows.
template <int kHeads>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const AttentionQuery* queries, const bf16* q, const float* sinks, bf16* out,
                                                                int heads, int dim, int longest, float scale) {
  extern __shared__ uint4 shared[];
  auto* base = reinterpret_cast<uint8_t*>(shared);
  const Layout l = layout_of(kHeads, dim, longest);
  auto* query = reinterpret_cast<bf16*>(base);
  auto* scores = reinterpret_cast<float*>(base + l.scores);
  auto* weights = reinterpret_cast<bf16*>(base + l.weights);
  auto* rows = reinterpret_cast<const uint8_t**>(base + l.rows);
  auto* totals = reinterpret_cast<float*>(base + l.totals);
  const int64_t r = blockIdx.y;
  const int first_head = static_cast<int>(blockIdx.x) * kHeads;
  const int own_heads = min(kHeads, heads - first_head);
  const AttentionQuery& a = queries[r];
  const auto window = static_cast<int>(a.window_last - a.window_first + 1);
  const int count = window + static_cast<int>(a.chosen_count);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int g = lane / 4;
  const int t = lane % 4;

  for (int i = thread; i < count; i += kThreads) {
    if (i < window) {
      const int64_t p = a.window_first + i;
      rows[i] = p >= a.window.start ? a.window.fresh + (p - a.window.start) * a.window.row_bytes
                                    : a.window.ring + p % a.window.capacity * a.window.row_bytes;
    } else {
      const int64_t j = a.chosen[i - window];
      rows[i] = a.compressed.pages[j / a.compressed.rows_per_page] + a.compressed.offset +
                j % a.compressed.rows_per_page * a.compressed.row_bytes;
    }
  }
  for (int i = thread; i < kHeads * l.query_stride; i += kThreads) {
    const int h = i / l.query_stride;
    const int d = i % l.query_stride;
    bf16 v{};
    if (h < own_heads && d < dim) v = q[((r * heads + first_head + h) * dim) + d];
    query[h * l.query_stride + (d < dim ? interleaved(d) : d)] = v;
  }
  __syncthreads();

  const int window_tiles = (window + kKeys - 1) / kKeys;
  const int tiles = window_tiles + (count - window + kKeys - 1) / kKeys;
  for (int tile = warp; tile < tiles; tile += kWarps) {
    const bool in_window = tile < window_tiles;
    const int first = in_window ? tile * kKeys : window + (tile - window_tiles) * kKeys;
    const int keys = min(kKeys, (in_window ? window : count) - first);
    float c[2][kHeads / 8][4] = {};
    if (in_window) {
      score_tile<true, kHeads / 8>(rows + first, keys, dim, query, l.query_stride, c);
    } else {
      score_tile<false, kHeads / 8>(rows + first, keys, dim, query, l.query_stride, c);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < kHeads / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = m * 16 + g + i / 2 * 8;
          if (key < keys) scores[(n * 8 + t * 2 + i % 2) * l.score_stride + first + key] = c[m][n][i] * scale;
        }
      }
    }
  }
  __syncthreads();

  const int padded = (count + kValueKeys - 1) / kValueKeys * kValueKeys;
  for (int h = warp; h < kHeads; h += kWarps) {
    const float* s = scores + h * l.score_stride;
    bf16* p = weights + h * l.weight_stride;
    float top = -1e30f;
    for (int i = lane; i < count; i += kWarp) top = fmaxf(top, s[i]);
    top = warp_max(top);
    float total = 0;
    for (int i = lane; i < padded; i += kWarp) {
      const float e = i < count ? expf(s[i] - top) : 0.0f;
      total += e;
      p[i] = narrow(e);
    }
    total = warp_sum(total);
    if (lane == 0) totals[h] = h < own_heads ? total + expf(sinks[first_head + h] - top) : 1.0f;
  }
  __syncthreads();

  bf16* tile = reinterpret_cast<bf16*>(base + l.values) + warp * kValueKeys * kValueStride;
  constexpr int kAhead = 4;  // value tiles on their way
  for (int slice = warp * kSlice; slice < dim; slice += kWarps * kSlice) {
    float c[kHeads / 16][4][4] = {};
    const int column = slice + lane % 2 * 16;
    const auto load = [&](int first) {
      const int key = min(first + lane / 2, count - 1);
      return load_values(rows[key], key < window, dim, column);
    };
    ValuePiece pieces[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) pieces[i] = load(i * kValueKeys);
    for (int group = 0; group < count; group += kAhead * kValueKeys) {
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int first = group + ahead * kValueKeys;
        if (first >= count) break;
        const ValuePiece piece = pieces[ahead];
        pieces[ahead] = load(first + kAhead * kValueKeys);
        uint32_t v[8];
        widen_values(piece, min(first + lane / 2, count - 1) < window, v);
        auto* to = reinterpret_cast<uint4*>(tile + lane / 2 * kValueStride + lane % 2 * 16);
        __syncwarp();
        to[0] = make_uint4(v[0], v[1], v[2], v[3]);
        to[1] = make_uint4(v[4], v[5], v[6], v[7]);
        __syncwarp();
        uint32_t b[2][4];  // dims 16 half + 0..7: keys 0..7, 8..15; dims 8..15 likewise
#pragma unroll
        for (int half = 0; half < 2; ++half)
          load_matrices_transposed(b[half], tile + lane % 16 * kValueStride + half * 16 + lane / 16 * 8);
#pragma unroll
        for (int m = 0; m < kHeads / 16; ++m) {
          uint32_t p[4];
          load_matrices(p, weights + (m * 16 + lane % 16) * l.weight_stride + first + lane / 16 * 8);
#pragma unroll
          for (int n = 0; n < 4; ++n) mma(c[m][n], p, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kHeads / 16; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int h = m * 16 + g + 8 * i;
          if (h >= own_heads) continue;
          *reinterpret_cast<uint32_t*>(out + (r * heads + first_head + h) * dim + slice + n * 8 + t * 2) =
              narrow_pair(c[m][n][2 * i] / totals[h], c[m][n][2 * i + 1] / totals[h]);
        }
      }
    }
  }
}

template <int kHeads>
bool launch(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest, cudaStream_t stream) {
  const Layout l = layout_of(kHeads, static_cast<int>(args.dim), static_cast<int>(longest));
  if (l.bytes > 226 << 10) return false;
  DI_CUDA(cudaFuncSetAttribute(attention_kernel<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, l.bytes));
  const dim3 grid(static_cast<unsigned>((args.heads + kHeads - 1) / kHeads), static_cast<unsigned>(args.queries.size()));
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.dim));
  attention_kernel<kHeads><<<grid, kThreads, static_cast<size_t>(l.bytes), stream>>>(
      queries, args.q, args.sinks, args.out, static_cast<int>(args.heads), static_cast<int>(args.dim), static_cast<int>(longest), scale);
  DI_CUDA_LAUNCHED();
  return true;
}

}  // namespace

void sparse_attention(const SparseAttentionArgs& args, const AttentionQuery* queries, int64_t longest, cudaStream_t stream) {
  if (args.queries.empty()) return;
  // Many rows: fewer blocks a row, so that keys are widened less often. A head's numbers are the same.
  if (args.queries.size() > 32 && args.heads > 16 && launch<32>(args, queries, longest, stream)) return;
  if (!launch<16>(args, queries, longest, stream))
    cuda_failed(__FILE__, __LINE__, "sparse_attention", "too many keys for a block's shared memory");
}

}  // namespace deepinfer::cuda
