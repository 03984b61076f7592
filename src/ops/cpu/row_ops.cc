#include "ops/cpu/row_ops.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/portable_kernels.h"
#include "ops/cpu/portable_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/row_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "ops/cpu/vector16.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::cpu::HWY_NAMESPACE {

// Every dim that gets here is a multiple of 32 (ModelConfig::validate), except rope pairs and n.

float rsqrt_mean(Float16 squares, int64_t count, float eps) {
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + eps);
}

void RmsNorm(const bf16* x, const bf16* w, float eps, int64_t dim, bf16* y) {
  Float16 squares{};
  for (int64_t i = 0; i < dim; i += 16) {
    const Float16 v = load_bf16(x + i);
    squares += v * v;
  }
  const float scale = rsqrt_mean(squares, dim, eps);
  for (int64_t i = 0; i < dim; i += 16) store_bf16(y + i, load_bf16(w + i) * (load_bf16(x + i) * scale));
}

template <int kRows>
void hyper_dots_rows(const float* fn, int64_t begin, int64_t end, const bf16* x, int64_t width, float* m, int64_t stride) {
  for (int64_t o = begin; o < end; ++o) {
    Float16 acc[kRows][2] = {};
    const float* f = fn + o * width;
    for (int64_t i = 0; i < width; i += 32) {
      const Float16 f0 = load<Float16>(f + i);
      const Float16 f1 = load<Float16>(f + i + 16);
      for (int r = 0; r < kRows; ++r) {
        acc[r][0] += f0 * load_bf16(x + r * width + i);
        acc[r][1] += f1 * load_bf16(x + r * width + i + 16);
      }
    }
    for (int r = 0; r < kRows; ++r) m[r * stride + o] = sum(acc[r][0] + acc[r][1]);
  }
}

void HyperDots(const float* fn, int64_t begin, int64_t end, const bf16* x, int64_t rows, int64_t width, float* m,
               int64_t stride) {
  constexpr int kTogether = HWY_TARGET == HWY_AVX3 ? 4 : 2;  // whose sums fit in registers
  int64_t r = 0;
  for (; r + kTogether <= rows; r += kTogether) {
    hyper_dots_rows<kTogether>(fn, begin, end, x + r * width, width, m + r * stride, stride);
  }
  for (; r < rows; ++r) hyper_dots_rows<1>(fn, begin, end, x + r * width, width, m + r * stride, stride);
}

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void Sinkhorn(float* c, int64_t n, int64_t iters, float eps) {
  const auto columns = [&] {
    for (int64_t j = 0; j < n; ++j) {
      float total = 0;
      for (int64_t i = 0; i < n; ++i) total += c[i * n + j];
      for (int64_t i = 0; i < n; ++i) c[i * n + j] /= total + eps;
    }
  };
  for (int64_t i = 0; i < n; ++i) {
    float top = c[i * n];
    for (int64_t j = 1; j < n; ++j) top = std::max(top, c[i * n + j]);
    float total = 0;
    for (int64_t j = 0; j < n; ++j) total += c[i * n + j] = std::exp(c[i * n + j] - top);
    for (int64_t j = 0; j < n; ++j) c[i * n + j] = c[i * n + j] / total + eps;
  }
  columns();
  for (int64_t step = 1; step < iters; ++step) {
    for (int64_t i = 0; i < n; ++i) {
      float total = 0;
      for (int64_t j = 0; j < n; ++j) total += c[i * n + j];
      for (int64_t j = 0; j < n; ++j) c[i * n + j] /= total + eps;
    }
    columns();
  }
}

void HyperCoefficients(const HyperMixWeights& w, const bf16* x, const float* m, float* pre, float* post, float* comb) {
  const int64_t n = w.n;
  const int64_t width = n * w.hidden;
  Float16 squares{};
  for (int64_t i = 0; i < width; i += 16) {
    const Float16 v = load_bf16(x + i);
    squares += v * v;
  }
  const float r = rsqrt_mean(squares, width, w.rms_eps);
  for (int64_t i = 0; i < n; ++i) {
    pre[i] = sigmoid(m[i] * r * w.scale[0] + w.base[i]) + w.eps;
    post[i] = 2.0f * sigmoid(m[n + i] * r * w.scale[1] + w.base[n + i]);
  }
  for (int64_t i = 0; i < n * n; ++i) comb[i] = m[2 * n + i] * r * w.scale[2] + w.base[2 * n + i];
  Sinkhorn(comb, n, w.sinkhorn_iters, w.eps);
}

void HyperCollapse(const bf16* x, const float* pre, int64_t n, int64_t hidden, bf16* y) {
  for (int64_t d = 0; d < hidden; d += 16) {
    Float16 total{};
    for (int64_t s = 0; s < n; ++s) total += pre[s] * load_bf16(x + s * hidden + d);
    store_bf16(y + d, total);
  }
}

void HyperExpand(const bf16* o, const float* post, const float* comb, int64_t n, int64_t hidden, bf16* x) {
  constexpr int64_t kMaxStreams = 8;
  for (int64_t d = 0; d < hidden; d += 16) {
    Float16 old[kMaxStreams];
    for (int64_t i = 0; i < n; ++i) old[i] = load_bf16(x + i * hidden + d);
    const Float16 out = load_bf16(o + d);
    for (int64_t j = 0; j < n; ++j) {
      Float16 total{};
      for (int64_t i = 0; i < n; ++i) total += comb[i * n + j] * old[i];
      store_bf16(x + j * hidden + d, post[j] * out + total);
    }
  }
}

void StreamMean(const bf16* x, int64_t n, int64_t hidden, bf16* y) {
  for (int64_t d = 0; d < hidden; d += 16) {
    Float16 total{};
    for (int64_t s = 0; s < n; ++s) total += load_bf16(x + s * hidden + d);
    store_bf16(y + d, total / static_cast<float>(n));
  }
}

// A group of 32 values.
struct Group {
  Float16 low, high;
  float amax() const { return largest(max(abs(low), abs(high))); }
};
inline Group load_group(const bf16* x) { return {load_bf16(x), load_bf16(x + 16)}; }

inline Float16 clamp(Float16 v, float limit) { return min(max(v, splat(-limit)), splat(limit)); }

void RoundFp8(const bf16* x, int64_t dim, bf16* y) {
  for (int64_t g = 0; g < dim; g += kScaleGroup) {
    const Group v = load_group(x + g);
    const float scale = e8m0_to_float(fp8_group_scale(v.amax()));
    store_bf16(y + g, round_e4m3(clamp(v.low / scale, kE4m3Max)) * scale);
    store_bf16(y + g + 16, round_e4m3(clamp(v.high / scale, kE4m3Max)) * scale);
  }
}

void PackWindow(const bf16* x, int64_t dim, uint8_t* packed) {
  for (int64_t g = 0; g < dim / kScaleGroup; ++g) {
    const Group v = load_group(x + g * kScaleGroup);
    const uint8_t byte = fp8_group_scale(v.amax());
    const float scale = e8m0_to_float(byte);
    packed[dim + g] = byte;
    for (int half = 0; half < 2; ++half) {
      // The value is on the grid: its E4M3 bits can be read off.
      float f[16];
      store(f, round_e4m3(clamp((half == 0 ? v.low : v.high) / scale, kE4m3Max)));
      for (int i = 0; i < 16; ++i) packed[g * kScaleGroup + half * 16 + i] = float_to_e4m3(f[i]);
    }
  }
}

void pack_codes(Float16 v, uint8_t* codes) {
  float f[16];
  store(f, v);
  for (int i = 0; i < 8; ++i) codes[i] = static_cast<uint8_t>(float_to_e2m1(f[2 * i]) | float_to_e2m1(f[2 * i + 1]) << 4);
}

void PackCompressed(const bf16* x, int64_t dim, uint8_t* packed) {
  for (int64_t g = 0; g < dim / kCacheScaleGroup; ++g) {
    const Float16 v = load_bf16(x + g * kCacheScaleGroup);
    const uint8_t byte = fp4_cache_scale(largest(abs(v)));
    packed[dim / 2 + g] = byte;
    pack_codes(v / e4m3_to_float(byte), packed + g * (kCacheScaleGroup / 2));
  }
}

void PackIndexKey(const bf16* x, int64_t dim, uint8_t* packed) {
  for (int64_t g = 0; g < dim / kScaleGroup; ++g) {
    const Group v = load_group(x + g * kScaleGroup);
    const uint8_t byte = fp4_index_scale(v.amax());
    const float scale = e8m0_to_float(byte);
    packed[dim / 2 + g] = byte;
    pack_codes(v.low / scale, packed + g * 16);
    pack_codes(v.high / scale, packed + g * 16 + 8);
  }
}

void RoundIndexQuery(bf16* x, int64_t dim) {
  for (int64_t g = 0; g < dim; g += kScaleGroup) {
    const Group v = load_group(x + g);
    const float scale = e8m0_to_float(fp4_index_scale(v.amax()));
    store_bf16(x + g, round_e2m1(clamp(v.low / scale, kE2m1Max)) * scale);
    store_bf16(x + g + 16, round_e2m1(clamp(v.high / scale, kE2m1Max)) * scale);
  }
}

void ToBf16Row(const float* x, int64_t n, bf16* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_bf16(y + i, load<Float16>(x + i));
  for (; i < n; ++i) y[i] = to_bf16(x[i]);
}

void Rope(bf16* x, const float* cos, const float* sin, int64_t pairs, int64_t heads, int64_t dim, bool inverse) {
  const float sign = inverse ? -1.0f : 1.0f;
  for (int64_t h = 0; h < heads; ++h) {
    bf16* tail = x + (h + 1) * dim - 2 * pairs;
    for (int64_t k = 0; k < pairs; ++k) {
      const float a = to_float(tail[2 * k]);
      const float b = to_float(tail[2 * k + 1]);
      const float s = sign * sin[k];
      tail[2 * k] = to_bf16(a * cos[k] - b * s);
      tail[2 * k + 1] = to_bf16(a * s + b * cos[k]);
    }
  }
}

void CompressPair(const float* kv0, const float* kv1, const float* gate0, const float* gate1, int64_t dim, bf16* latent) {
  for (int64_t c = 0; c < dim; c += 16) {
    const Float16 g0 = load<Float16>(gate0 + c);
    const Float16 g1 = load<Float16>(gate1 + c);
    const Float16 top = max(g0, g1);
    const Float16 e0 = exp(g0 - top);
    const Float16 e1 = exp(g1 - top);
    const Float16 total = e0 + e1;
    store_bf16(latent + c, load<Float16>(kv0 + c) * (e0 / total) + load<Float16>(kv1 + c) * (e1 / total));
  }
}

void Swiglu(const float* a, const float* b, int64_t n, float limit, float weight, bf16* h) {
  for (int64_t i = 0; i < n; i += 16) {
    Float16 gate = round_to_bf16(load<Float16>(a + i));
    Float16 up = round_to_bf16(load<Float16>(b + i));
    if (limit > 0) {
      up = clamp(up, limit);
      gate = min(gate, splat(limit));
    }
    store_bf16(h + i, (gate / (1.0f + exp(-gate))) * up * weight);
  }
}

void Accumulate(const bf16* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) store(y + i, load<Float16>(y + i) + load_bf16(x + i));
}

void EngramRow(const uint8_t* values, const uint8_t* scales, int64_t dim, bf16* y) {
  for (int64_t g = 0; g < dim / kScaleGroup; ++g) {
    const float scale = e8m0_to_float(scales[g]);
    store_bf16(y + g * kScaleGroup, decode_e4m3(values + g * kScaleGroup) * scale);
    store_bf16(y + g * kScaleGroup + 16, decode_e4m3(values + g * kScaleGroup + 16) * scale);
  }
}

void EngramGate(const bf16* key, const bf16* value, const bf16* q_weight, const bf16* k_weight, float eps, int64_t hidden,
                bf16* stream) {
  Float16 dots{};
  Float16 xx{};
  Float16 kk{};
  for (int64_t d = 0; d < hidden; d += 16) {
    const Float16 x = load_bf16(stream + d);
    const Float16 k = load_bf16(key + d);
    dots += x * (load_bf16(q_weight + d) * load_bf16(k_weight + d)) * k;
    xx += x * x;
    kk += k * k;
  }
  const float norm = rsqrt_mean(xx, hidden, eps) * rsqrt_mean(kk, hidden, eps);
  const float dot = sum(dots) * norm * (1.0f / std::sqrt(static_cast<float>(hidden)));
  const float g = sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6f)), dot));
  for (int64_t d = 0; d < hidden; d += 16) store_bf16(stream + d, load_bf16(stream + d) + g * load_bf16(value + d));
}

const RowOps* GetRowOps() {
  static const RowOps ops = {target_name(HWY_TARGET),
                             RmsNorm,
                             HyperDots,
                             HyperCoefficients,
                             HyperCollapse,
                             HyperExpand,
                             StreamMean,
                             RoundFp8,
                             PackWindow,
                             PackCompressed,
                             PackIndexKey,
                             RoundIndexQuery,
                             ToBf16Row,
                             Rope,
                             CompressPair,
                             Swiglu,
                             Accumulate,
                             EngramRow,
                             EngramGate};
  return &ops;
}

}  // namespace deepinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deepinfer::cpu {

const RowOps& row_ops_for(int64_t target) {
  const RowOps* (*get)() = DEEPINFER_CHOOSE(target, GetRowOps);
  return get != nullptr ? *get() : *HWY_STATIC_DISPATCH(GetRowOps)();
}

}  // namespace deepinfer::cpu
#endif
