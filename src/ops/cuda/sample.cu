// Draws, one block a row, or several where there is nothing to do but look for the best token: the order of steps, the noise, the
// roundings and the sums are those of sampling/sampler.cc, so the token is the very one that the host draws.

#include <cfloat>

#include "base/gumbel_noise.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_math.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/sample.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 256;
constexpr int kSorted = 2048;  // candidates that top-p looks at
static_assert(kThreads == kMassLanes, "a thread is a lane of the host's sum");

// Everything down to one place in the order of larger logits, then lower ids (sampling/filters.h).
struct Border {
  float logit = -FLT_MAX;
  int32_t id = INT32_MAX;
  __device__ bool keeps(float z, int32_t v) const { return z > logit || (z == logit && v <= id); }
};

struct Shared {
  uint32_t counts[kBins];
  uint32_t words[kThreads / kWarp];
  float floats[kThreads / kWarp];
  double masses[kThreads];
  unsigned long long sorted[kSorted];  // ordered logit, then ~id: descending is the order of the filters
  double weights[kSorted];
  uint32_t found[3];
  uint32_t sorted_count;
  uint32_t reached;  // by the best score of any thread so far, ordered
  int place;
};

__device__ uint32_t ordered(float z) {
  const uint32_t u = __float_as_uint(z + 0.0f);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
__device__ float unordered(uint32_t v) { return __uint_as_float((v & 0x80000000u) != 0 ? v & 0x7fffffffu : ~v); }

__device__ float logit_of(const SampleRow& row, int64_t v) {
  const float z = row.logits[v];
  return row.temperature != 1.0f ? z / row.temperature : z;
}

// Whether a score beats another: it is larger, or its id is lower. -1, none, is beaten by all.
__device__ bool is_better(float score, int32_t id, float than, int32_t than_id) {
  return score > than || (score == than && static_cast<uint32_t>(id) < static_cast<uint32_t>(than_id));
}
// The best of all threads. Everybody gets it.
__device__ void best_of_block(Shared& s, float& score, int32_t& id) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step >>= 1) {
    const float other = __shfl_xor_sync(0xffffffffu, score, step);
    const int32_t other_id = __shfl_xor_sync(0xffffffffu, id, step);
    if (is_better(other, other_id, score, id)) score = other, id = other_id;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();
  if (lane == 0) s.floats[warp] = score, s.words[warp] = static_cast<uint32_t>(id);
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) {
    const float other = s.floats[w];
    const auto other_id = static_cast<int32_t>(s.words[w]);
    if (is_better(other, other_id, score, id)) score = other, id = other_id;
  }
}

// Of tokens begin .. end - 1. -1: all are -inf or NaN.
__device__ int32_t largest(Shared& s, const SampleRow& row, int64_t begin, int64_t end, float* value) {
  float best = -INFINITY;
  int32_t id = -1;
#pragma unroll 4
  for (int64_t v = begin + threadIdx.x; v < end; v += kThreads) {
    const float z = row.greedy ? row.logits[v] : logit_of(row, v);
    if (z > best) best = z, id = static_cast<int32_t>(v);
  }
  best_of_block(s, best, id);
  *value = best;
  return id;
}

// The place of the k-th that the border keeps; the border itself if it keeps fewer. *kept: how many it keeps, up to k.
__device__ Border kth(Shared& s, const SampleRow& row, int64_t vocab, const Border& border, uint32_t k, uint32_t* kept) {
  uint32_t prefix = 0;
  uint32_t wanted = k;
  uint32_t equal = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) s.counts[i] = 0;
    __syncthreads();
    for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
      const float z = logit_of(row, v);
      if (!border.keeps(z, static_cast<int32_t>(v))) continue;
      const uint32_t key = ordered(z);
      if (shift == 24 || key >> (shift + 8) == prefix) atomicAdd(&s.counts[key >> shift & 255], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t before = 0;
      int bin = kBins - 1;
      for (; bin > 0 && before + s.counts[bin] < wanted; --bin) before += s.counts[bin];
      s.found[0] = static_cast<uint32_t>(bin);
      s.found[1] = before;
      s.found[2] = s.counts[bin];
    }
    __syncthreads();
    if (shift == 24 && s.found[1] + s.found[2] < wanted) {
      *kept = s.found[1] + s.found[2];
      __syncthreads();
      return border;
    }
    prefix = prefix << 8 | s.found[0];
    wanted -= s.found[1];
    equal = s.found[2];
    __syncthreads();
  }
  *kept = k;
  Border out;
  out.logit = unordered(prefix);
  if (equal == wanted) return out;
  // Some of its equals stay out: the id of the wanted-th.
  uint32_t before = 0;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int64_t first = 0; first < vocab; first += kThreads) {
    const int64_t v = first + threadIdx.x;
    const bool is = v < vocab && logit_of(row, v) == out.logit && border.keeps(out.logit, static_cast<int32_t>(v));
    const uint32_t mask = __ballot_sync(0xffffffffu, is);
    __syncthreads();
    if (lane == 0) s.words[warp] = static_cast<uint32_t>(__popc(mask));
    if (threadIdx.x == 0) s.place = -1;
    __syncthreads();
    uint32_t mine = before + static_cast<uint32_t>(__popc(mask & ((1u << lane) - 1)));
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < warp) mine += s.words[w];
      before += s.words[w];
    }
    if (is && mine + 1 == wanted) s.place = static_cast<int>(v);
    __syncthreads();
    if (s.place >= 0) break;
  }
  out.id = s.place;
  __syncthreads();
  return out;
}

// Softmax weight against the largest logit (base/fixed_math.h).
__device__ double weight_of(float z, float z_max) { return softmax_weight(z, z_max); }

// As softmax_mass of sampling/filters.cc: a lane a thread, then a tree.
__device__ double mass(Shared& s, const SampleRow& row, int64_t vocab, const Border& border, float z_max) {
  double sum = 0;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const float z = logit_of(row, v);
    if (border.keeps(z, static_cast<int32_t>(v))) sum += weight_of(z, z_max);
  }
  s.masses[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) s.masses[threadIdx.x] += s.masses[threadIdx.x + half];
    __syncthreads();
  }
  return s.masses[0];
}

// Descending.
__device__ void sort(Shared& s) {
  for (int size = 2; size <= kSorted; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kSorted / 2; i += kThreads) {
        const int low = i / step * step * 2 + i % step;
        const int high = low + step;
        const bool descending = (low & size) == 0;
        const unsigned long long a = s.sorted[low];
        const unsigned long long b = s.sorted[high];
        if ((a < b) == descending) s.sorted[low] = b, s.sorted[high] = a;
      }
    }
  }
  __syncthreads();
}

// False: more tokens would have to be sorted than fit.
__device__ bool top_p(Shared& s, const SampleRow& row, int64_t vocab, float z_max, Border& border) {
  const double goal = static_cast<double>(row.top_p) * mass(s, row, vocab, border, z_max);
  uint32_t count = 0;
  const Border best = kth(s, row, vocab, border, kSorted, &count);
  if (threadIdx.x == 0) s.sorted_count = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kSorted; i += kThreads) s.sorted[i] = 0;
  __syncthreads();
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const float z = logit_of(row, v);
    if (!best.keeps(z, static_cast<int32_t>(v)) || !border.keeps(z, static_cast<int32_t>(v))) continue;
    s.sorted[atomicAdd(&s.sorted_count, 1u)] =
        static_cast<unsigned long long>(ordered(z)) << 32 | (0xffffffffu - static_cast<uint32_t>(v));
  }
  sort(s);
  for (uint32_t i = threadIdx.x; i < count; i += kThreads)
    s.weights[i] = weight_of(unordered(static_cast<uint32_t>(s.sorted[i] >> 32)), z_max);
  __syncthreads();
  if (threadIdx.x == 0) {
    s.place = -1;
    double before = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (i > 0 && before >= goal) {
        s.place = static_cast<int>(i) - 1;
        break;
      }
      before += s.weights[i];
    }
  }
  __syncthreads();
  const int place = s.place;
  if (place < 0) return count < kSorted;  // all that there is stays
  border.logit = unordered(static_cast<uint32_t>(s.sorted[place] >> 32));
  border.id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(s.sorted[place]));
  return true;
}

// Of tokens begin .. end - 1; begin: a multiple of four. -1: the border keeps nothing. Noise is bounded by how its word begins:
// what cannot reach the best score of all threads so far gets none, and that is nearly everything after the first turn. What can
// only equal it gets its noise, as its id may be lower.
__device__ int32_t draw(Shared& s, const SampleRow& row, int64_t begin, int64_t end, const Border& border, float* score_found) {
  float best = -INFINITY;
  int32_t winner = -1;
  const auto key = noise_key(row.seed);
  const float most = noise_bound(32);
  if (threadIdx.x == 0) s.reached = ordered(-INFINITY);
  __syncthreads();
  for (int64_t first = begin + int64_t{threadIdx.x} * 4; first < end; first += kThreads * 4) {
    float z[4];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      z[i] = first + i < end ? logit_of(row, first + i) : -INFINITY;
      if (z[i] > top) top = z[i];
    }
    const auto can_win = [&](float bound) {
      return bound > best && bound >= unordered(*static_cast<const volatile uint32_t*>(&s.reached));
    };
    if (!(top >= border.logit) || !can_win(top + most)) continue;
    const auto words =
        philox4x32(noise_counter(static_cast<int32_t>(first), row.position, NoiseStream::kTarget, row.choice_index), key);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto v = static_cast<int32_t>(first + i);
      if (!can_win(z[i] + noise_bound(__clz(static_cast<int>(words[i])))) || !border.keeps(z[i], v)) continue;
      const float score = z[i] + gumbel(words[i]);
      if (!(score > best)) continue;
      best = score, winner = v;
      atomicMax(&s.reached, ordered(best));
    }
  }
  best_of_block(s, best, winner);
  *score_found = best;
  return winner;
}

// Whether the best of a row's tokens is its draw.
__device__ bool is_plain(const SampleRow& row, int64_t vocab) {
  return row.greedy || (!row.min_p && !(row.top_p < 1.0f) && !(row.top_k > 0 && row.top_k < vocab));
}

// Grid: shares of the vocabulary, rows.
__global__ void __launch_bounds__(kThreads) find_kernel(const SampleRow* rows, int64_t vocab, DrawFound* found) {
  take_turn();
  __shared__ Shared s;
  const SampleRow row = rows[blockIdx.y];
  if (!is_plain(row, vocab)) return;
  const int64_t share = (vocab + 4 * kDrawShares - 1) / (4 * kDrawShares) * 4;
  const int64_t begin = min(static_cast<int64_t>(blockIdx.x) * share, vocab);
  const int64_t end = min(begin + share, vocab);
  DrawFound own{};
  own.token = row.greedy ? largest(s, row, begin, end, &own.score) : draw(s, row, begin, end, {}, &own.score);
  if (threadIdx.x == 0) found[blockIdx.y * kDrawShares + blockIdx.x] = own;
}

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const SampleRow* rows, int64_t vocab, const DrawFound* found, int32_t* tokens) {
  take_turn();
  __shared__ Shared s;
  const SampleRow row = rows[blockIdx.x];
  int32_t token = -1;
  float z_max = 0;
  if (is_plain(row, vocab)) {
    float best = -INFINITY;
    for (int i = 0; i < kDrawShares; ++i) {
      const DrawFound& other = found[blockIdx.x * kDrawShares + i];
      if (is_better(other.score, other.token, best, token)) best = other.score, token = other.token;
    }
  } else {
    Border border;
    bool drawn = true;
    const bool limits_mass = row.top_p < 1.0f;
    if (row.min_p || limits_mass) largest(s, row, 0, vocab, &z_max);
    if (row.min_p) {
      // The smallest float that is not below the threshold.
      const double threshold = static_cast<double>(z_max) + row.log_min_p;
      auto logit = static_cast<float>(threshold);
      if (static_cast<double>(logit) < threshold) logit = nextafterf(logit, INFINITY);
      border.logit = fmaxf(border.logit, logit);
    }
    uint32_t kept = 0;
    if (row.top_k > 0 && row.top_k < vocab) border = kth(s, row, vocab, border, static_cast<uint32_t>(row.top_k), &kept);
    if (limits_mass) drawn = top_p(s, row, vocab, z_max, border);
    token = drawn || row.certain ? draw(s, row, 0, vocab, border, &z_max) : kUndrawnToken;
  }
  if (threadIdx.x == 0) tokens[blockIdx.x] = token == -1 ? 0 : token;
}

}  // namespace

void sample_rows(const SampleRow* rows, int64_t count, int64_t vocab, DrawFound* found, int32_t* tokens, LaunchStream& stream) {
  if (count == 0) return;
  stream.launch(find_kernel, dim3(kDrawShares, static_cast<unsigned>(count)), kThreads, 0, rows, vocab, found);
  stream.launch(sample_kernel, static_cast<unsigned>(count), kThreads, 0, rows, vocab, found, tokens);
}

}  // namespace deepinfer::cuda
