// Several steps over the same rows in one kernel (Backend's operators that are made of others). A row's intermediate values are
// rounded where the operators alone round them, and lie in shared memory instead.

#include "ops/cuda/instructions.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/row_math.cuh"
#include "ops/cuda/row_ops.h"

namespace deepinfer::cuda {
namespace {

// Blocks of more threads than kRowThreads are for few rows, where all columns are on their way at once: two pieces of a row of
// the release a thread, with registers for both. Their first kRowThreads threads then add the squares as those of a smaller block
// do.
constexpr int kMostRowThreads = 640;
constexpr int64_t kFewBlockRows = 32;

// The factor of the row's norm; `square`: of a block of kRowThreads, the sum of each thread's columns.
template <int kThreads>
__device__ float row_scale(float square, const uint2* columns, int hidden, float eps) {
  __shared__ float scratch[kThreads / kWarp];
  if constexpr (kThreads > kRowThreads) {
    __syncthreads();
    square = 0;
    if (threadIdx.x < kRowThreads) {
      for (int i = static_cast<int>(threadIdx.x) * 4; i < hidden; i += kRowThreads * 4)
        square = add_squares(columns[i / 4], square);
    }
  }
  return norm_scale(square, hidden, eps, scratch);
}

// A thread's weights of a norm, asked for before the squares are added: kPieces of four columns; what lies behind is read when it
// is used.
template <int kPieces, int kThreads>
struct NormWeights {
  uint2 four[kPieces];
  // Before the kernel's turn; the loads themselves may be moved behind it.
  __device__ NormWeights(const bf16* w, int hidden) {
    if (threadIdx.x == 0) fetch_ahead(reinterpret_cast<const uint8_t*>(w), hidden / 8 * 16);
#pragma unroll
    for (int a = 0; a < kPieces; ++a) {
      const int i = (static_cast<int>(threadIdx.x) + a * kThreads) * 4;
      four[a] = i < hidden ? __ldg(reinterpret_cast<const uint2*>(w + i)) : make_uint2(0, 0);
    }
  }
  // act(column, weights) of the thread's columns.
  template <typename Act>
  __device__ void for_each(const bf16* w, int hidden, const Act& act) const {
    const int first = static_cast<int>(threadIdx.x) * 4;
#pragma unroll
    for (int a = 0; a < kPieces; ++a) {
      if (first + a * kThreads * 4 < hidden) act(first + a * kThreads * 4, four[a]);
    }
    for (int i = first + kPieces * kThreads * 4; i < hidden; i += kThreads * 4)
      act(i, __ldg(reinterpret_cast<const uint2*>(w + i)));
  }
};
// Of blocks for many rows none is asked for: their registers are for the streams.
template <int kThreads>
using RowWeights = NormWeights<(kThreads > kRowThreads ? 2 : 0), kThreads>;
template <int kThreads>
struct NormWeights<0, kThreads> {
  __device__ NormWeights(const bf16* /*w*/, int /*hidden*/) {}
  template <typename Act>
  __device__ void for_each(const bf16* w, int hidden, const Act& act) const {
    for (int i = static_cast<int>(threadIdx.x) * 4; i < hidden; i += kThreads * 4)
      act(i, __ldg(reinterpret_cast<const uint2*>(w + i)));
  }
};

// One block a row: hyper_collapse, then rms_norm. A thread reads from shared memory what it wrote itself.
template <int kStreams, int kThreads>
__global__ void __launch_bounds__(kThreads)
    collapse_norm_kernel(const bf16* x, const float* pre, int streams, int hidden, const bf16* w, float eps, bf16* y) {
  let_next_begin();
  const RowWeights<kThreads> weights(w, hidden);
  wait_for_earlier();
  auto* columns = dynamic_shared_behind<uint2>();  // [hidden / 4]
  const int n = kStreams > 0 ? kStreams : streams;
  const int64_t row = blockIdx.x;
  x += row * n * hidden;
  float square = 0;
  constexpr int kAhead = kThreads > kRowThreads ? 2 : 5;  // columns on their way at once
  for (int first = static_cast<int>(threadIdx.x) * 4; first < hidden; first += kAhead * kThreads * 4) {
    uint2 v[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * kThreads * 4;
      v[a] = i < hidden ? collapse_four(x + i, pre + row * n, n, hidden) : make_uint2(0, 0);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * kThreads * 4;
      if (i >= hidden) break;
      columns[i / 4] = v[a];
      square = add_squares(v[a], square);
    }
  }
  const float scale = row_scale<kThreads>(square, columns, hidden, eps);
  weights.for_each(w, hidden, [&](int i, const uint2& own) {
    *reinterpret_cast<uint2*>(y + row * hidden + i) = normalize_four(columns[i / 4], own, scale);
  });
}

// One block a row of four streams: hyper_expand, then as above.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    expand_collapse_norm_kernel(const bf16* o, const float* post, const float* comb, const float* pre, int hidden, const bf16* w,
                                float eps, bf16* x, bf16* y) {
  let_next_begin();
  const RowWeights<kThreads> weights(w, hidden);
  wait_for_earlier();
  constexpr int kStreams = 4;
  auto* columns = dynamic_shared_behind<uint2>();  // [hidden / 4]
  const int64_t row = blockIdx.x;
  o += row * hidden;
  x += row * kStreams * hidden;
  float weight[kStreams], collapse[kStreams], mix[kStreams][kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    weight[i] = post[row * kStreams + i];
    collapse[i] = pre[row * kStreams + i];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) mix[i][j] = comb[(row * kStreams + i) * kStreams + j];
  }
  float square = 0;
  constexpr int kAhead = kThreads > kRowThreads ? 2 : 3;  // columns on their way at once
  for (int first = static_cast<int>(threadIdx.x) * 4; first < hidden; first += kAhead * kThreads * 4) {
    uint2 out[kAhead], old[kAhead][kStreams];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * kThreads * 4;
      if (i >= hidden) break;
      out[a] = *reinterpret_cast<const uint2*>(o + i);
#pragma unroll
      for (int s = 0; s < kStreams; ++s) old[a][s] = *reinterpret_cast<const uint2*>(x + s * hidden + i);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * kThreads * 4;
      if (i >= hidden) break;
      float sum[4] = {};
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const uint2 v = expand_four<kStreams>(out[a], old[a], weight[j], [&](int s) { return mix[s][j]; });
        *reinterpret_cast<uint2*>(x + j * hidden + i) = v;
        add_stream(v, collapse[j], sum);
      }
      const uint2 v = make_uint2(narrow_pair(sum[0], sum[1]), narrow_pair(sum[2], sum[3]));
      columns[i / 4] = v;
      square = add_squares(v, square);
    }
  }
  const float scale = row_scale<kThreads>(square, columns, hidden, eps);
  weights.for_each(w, hidden, [&](int i, const uint2& own) {
    *reinterpret_cast<uint2*>(y + row * hidden + i) = normalize_four(columns[i / 4], own, scale);
  });
}

constexpr int kLatentPieces = 2;
using LatentWeights = NormWeights<kLatentPieces, kRowThreads>;

// The row's norm, into shared memory.
__device__ void normalize_row(const bf16* x, const bf16* w, const LatentWeights& weights, int dim, float eps, uint2* columns) {
  __shared__ float scratch[kRowThreads / kWarp];
  float square = 0;
  for (int first = static_cast<int>(threadIdx.x) * 4; first < dim; first += kLatentPieces * kRowThreads * 4) {
    uint2 v[kLatentPieces];
#pragma unroll
    for (int a = 0; a < kLatentPieces; ++a) {
      const int i = first + a * kRowThreads * 4;
      v[a] = i < dim ? *reinterpret_cast<const uint2*>(x + i) : make_uint2(0, 0);
    }
#pragma unroll
    for (int a = 0; a < kLatentPieces; ++a) {
      const int i = first + a * kRowThreads * 4;
      if (i >= dim) break;
      columns[i / 4] = v[a];
      square = add_squares(v[a], square);
    }
  }
  const float scale = norm_scale(square, dim, eps, scratch);
  weights.for_each(w, dim, [&](int i, const uint2& own) { columns[i / 4] = normalize_four(columns[i / 4], own, scale); });
}

// Grid: rows, the queries' latent and the window's key. The key is rotated and packed, too.
__global__ void __launch_bounds__(kRowThreads) latents_kernel(const LatentArgs args) {
  let_next_begin();
  auto* columns = dynamic_shared_behind<uint2>();  // [dim / 4]
  const int64_t row = blockIdx.x;
  const bool is_key = blockIdx.y == 1;
  const auto dim = static_cast<int>(is_key ? args.kv_dim : args.q_dim);
  const bf16* w = is_key ? args.kv_norm : args.q_norm;
  const LatentWeights weights(w, dim);
  wait_for_earlier();
  bf16* x = is_key ? args.kv + row * dim : args.q + row * dim;
  // The factors of the thread's first pair are asked for here.
  const int64_t pairs = is_key ? args.rotation.pairs : 0;
  const bool has_pair = threadIdx.x < pairs;
  const float cosine = has_pair ? args.rotation.cos[row * pairs + threadIdx.x] : 0.0f;
  const float sine = has_pair ? args.rotation.sin[row * pairs + threadIdx.x] : 0.0f;
  normalize_row(x, w, weights, dim, args.eps, columns);
  if (is_key) {
    __syncthreads();
    auto* rotated = reinterpret_cast<uint32_t*>(reinterpret_cast<bf16*>(columns) + dim - 2 * pairs);
    if (has_pair) rotated[threadIdx.x] = rotate_pair(rotated[threadIdx.x], cosine, sine);
    for (int64_t k = threadIdx.x + kRowThreads; k < pairs; k += kRowThreads)
      rotated[k] = rotate_pair(rotated[k], args.rotation.cos[row * pairs + k], args.rotation.sin[row * pairs + k]);
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x) * 4; i < dim; i += kRowThreads * 4)
    *reinterpret_cast<uint2*>(x + i) = columns[i / 4];
  if (!is_key) return;
  // Eight lanes a group of scales; whole warps, of which some lanes may have no columns.
  constexpr int kColumns = kWarp * 4;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint8_t* packed = args.packed + row * (dim + dim / kScaleGroup);
  for (int first = static_cast<int>(threadIdx.x) / kWarp * kColumns; first < dim; first += kRowThreads / kWarp * kColumns) {
    const int i = first + lane * 4;
    const bool inside = i < dim;
    const uint2 v = inside ? columns[i / 4] : make_uint2(0, 0);
    const float f[4] = {widen_low(v.x), widen_high(v.x), widen_low(v.y), widen_high(v.y)};
    float amax = fmaxf(fmaxf(fabsf(f[0]), fabsf(f[1])), fmaxf(fabsf(f[2]), fabsf(f[3])));
#pragma unroll
    for (int step = 1; step < 8; step <<= 1) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
    if (!inside) continue;
    const uint32_t byte = fp8_scale_bits(amax);
    const float scale = e8m0_value(byte);
#pragma unroll
    for (int k = 0; k < 4; ++k) packed[i + k] = static_cast<uint8_t>(e4m3_bits(f[k] / scale));
    if (lane % 8 == 0) packed[dim + i / kScaleGroup] = static_cast<uint8_t>(byte);
  }
}

}  // namespace

void hyper_collapse_norm(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, const bf16* w, float eps,
                         bf16* y, LaunchStream& stream) {
  if (rows == 0) return;
  const auto launch = [&](auto kernel, int threads) {
    stream.launch(kernel, static_cast<unsigned>(rows), static_cast<unsigned>(threads), static_cast<size_t>(hidden) * sizeof(bf16),
                  x, pre, static_cast<int>(n), static_cast<int>(hidden), w, eps, y);
  };
  const bool few = rows <= kFewBlockRows;
  if (n != 4) return launch(collapse_norm_kernel<0, kRowThreads>, kRowThreads);
  if (!few) return launch(collapse_norm_kernel<4, kRowThreads>, kRowThreads);
  launch(collapse_norm_kernel<4, kMostRowThreads>, kMostRowThreads);
}

void hyper_expand_collapse_norm(const bf16* o, const float* post, const float* comb, const float* pre, int64_t rows,
                                int64_t hidden, const bf16* w, float eps, bf16* x, bf16* y, LaunchStream& stream) {
  if (rows == 0) return;
  const bool few = rows <= kFewBlockRows;
  stream.launch(few ? expand_collapse_norm_kernel<kMostRowThreads> : expand_collapse_norm_kernel<kRowThreads>,
                static_cast<unsigned>(rows), static_cast<unsigned>(few ? kMostRowThreads : kRowThreads),
                static_cast<size_t>(hidden) * sizeof(bf16), o, post, comb, pre, static_cast<int>(hidden), w, eps, x, y);
}

void attention_latents(const LatentArgs& args, int64_t rows, LaunchStream& stream) {
  if (rows == 0) return;
  const int64_t widest = args.q_dim > args.kv_dim ? args.q_dim : args.kv_dim;
  stream.launch(latents_kernel, dim3(static_cast<unsigned>(rows), 2), kRowThreads, static_cast<size_t>(widest) * sizeof(bf16),
                args);
}

}  // namespace deepinfer::cuda
