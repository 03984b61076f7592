// Kernels for processors that the others are not made for: plain loops over the compiler's vectors, for the instruction set that
// the whole program is compiled for.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/portable_kernels.h"
#include "ops/cpu/portable_targets.h"
// After portable_targets.h.
#include "hwy/highway.h"
#include "ops/cpu/vector16.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::cpu::HWY_NAMESPACE {
namespace {

// Packed inputs: row i of column vector v of a tile of r rows at (v * r + i) * 64 bytes; fp32 in natural order, whatever the
// weights; column vector v holds columns 16v .. 16v+15.
constexpr int64_t kColumns = 16;
constexpr int64_t kTileRows = 12;

int64_t TileRows(PackKind) { return kTileRows; }

int64_t PackedRowBytes(PackKind, int64_t k) { return (k + kColumns - 1) / kColumns * 64; }

void Pack(PackKind, const bf16* x, int64_t k, char* tile, int64_t rows, int64_t row) {
  for (int64_t v = 0; v * kColumns < k; ++v) store(tile + (v * rows + row) * 64, load_bf16(x + v * kColumns));
}

// One row of weights, decoded a stretch at a time so that it stays in the first-level cache.
constexpr int64_t kStretch = 2048;

template <int kRows>
void dot_tile(const float* w, int64_t vectors, const char* x, Float16* acc) {
  Float16 local[kRows];
  for (int r = 0; r < kRows; ++r) local[r] = acc[r];
  for (int64_t v = 0; v < vectors; ++v) {
    const Float16 weight = load<Float16>(w + v * kColumns);
    for (int r = 0; r < kRows; ++r) local[r] += weight * load<Float16>(x + (v * kRows + r) * 64);
  }
  for (int r = 0; r < kRows; ++r) acc[r] = local[r];
}

void dot_rows(const float* w, int64_t vectors, const char* x, int64_t rows, Float16* acc) {
  switch (rows) {
    case 1:
      return dot_tile<1>(w, vectors, x, acc);
    case 2:
      return dot_tile<2>(w, vectors, x, acc);
    case 3:
      return dot_tile<3>(w, vectors, x, acc);
    case 4:
      return dot_tile<4>(w, vectors, x, acc);
    case 5:
      return dot_tile<5>(w, vectors, x, acc);
    case 6:
      return dot_tile<6>(w, vectors, x, acc);
    case 7:
      return dot_tile<7>(w, vectors, x, acc);
    case 8:
      return dot_tile<8>(w, vectors, x, acc);
    case 9:
      return dot_tile<9>(w, vectors, x, acc);
    case 10:
      return dot_tile<10>(w, vectors, x, acc);
    case 11:
      return dot_tile<11>(w, vectors, x, acc);
    default:
      return dot_tile<12>(w, vectors, x, acc);
  }
}

// decode(o, k0, n, out): columns [k0, k0 + n) of weights row o.
template <typename Decode>
void multiply(int64_t begin, int64_t end, int64_t k, PackKind kind, const char* x, int64_t m, float* y, int64_t stride,
              Decode decode) {
  const int64_t row_bytes = PackedRowBytes(kind, k);
  alignas(64) float w[kStretch];
  for (int64_t o = begin; o < end; ++o) {
    for (int64_t m0 = 0; m0 < m; m0 += 4 * kTileRows) {
      const int64_t block = std::min(4 * kTileRows, m - m0);
      Float16 acc[4 * kTileRows] = {};
      for (int64_t k0 = 0; k0 < k; k0 += kStretch) {
        const int64_t n = std::min(kStretch, k - k0);
        decode(o, k0, n, w);
        for (int64_t t = 0; t < block; t += kTileRows) {
          const int64_t rows = std::min(kTileRows, block - t);
          dot_rows(w, n / kColumns, x + (m0 + t) * row_bytes + k0 / kColumns * rows * 64, rows, acc + t);
        }
      }
      for (int64_t r = 0; r < block; ++r) y[(m0 + r) * stride + o - begin] = sum(acc[r]);
    }
  }
}

void MultiplyFp8(const Fp8Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char*, float* y, int64_t stride) {
  multiply(begin, end, w.in, PackKind::kFp8, x, m, y, stride, [&](int64_t o, int64_t k0, int64_t n, float* out) {
    const uint8_t* values = w.values + o * w.in + k0;
    const uint8_t* scales = w.scales + o / kScaleGroup * (w.in / kScaleGroup) + k0 / kScaleGroup;
    for (int64_t i = 0; i < n; i += 16) store(out + i, decode_e4m3(values + i) * e8m0_to_float(scales[i / kScaleGroup]));
  });
}

void MultiplyFp4(const Fp4Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char*, float* y, int64_t stride) {
  multiply(begin, end, w.in, PackKind::kFp4, x, m, y, stride, [&](int64_t o, int64_t k0, int64_t n, float* out) {
    const uint8_t* codes = w.codes + o * (w.in / 2) + k0 / 2;
    const uint8_t* scales = w.scales + o * (w.in / kScaleGroup) + k0 / kScaleGroup;
    for (int64_t i = 0; i < n; i += 16) store(out + i, decode_e2m1_pairs(codes + i / 2) * e8m0_to_float(scales[i / kScaleGroup]));
  });
}

void MultiplyBf16(const Bf16Weight& w, int64_t begin, int64_t end, const char* x, int64_t m, char*, float* y, int64_t stride) {
  multiply(begin, end, w.in, PackKind::kBf16, x, m, y, stride, [&](int64_t o, int64_t k0, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += 16) store(out + i, load_bf16(w.values + o * w.in + k0 + i));
  });
}

void unpack_window(const uint8_t* row, int64_t dim, float* out) {
  for (int64_t i = 0; i < dim; i += 16) store(out + i, decode_e4m3(row + i) * e8m0_to_float(row[dim + i / kScaleGroup]));
}

void unpack_compressed(const uint8_t* row, int64_t dim, float* out) {
  for (int64_t i = 0; i < dim; i += 16)
    store(out + i, decode_e2m1_pairs(row + i / 2) * e4m3_to_float(row[dim / 2 + i / kCacheScaleGroup]));
}

// dots[16 heads] of a key with the query.
inline Float16 head_dots(const float* query, const float* key, int64_t padded, int64_t dim) {
  Float16 acc{};
  for (int64_t d = 0; d < dim; ++d) acc += load<Float16>(query + d * padded) * key[d];
  return acc;
}

void ScoreBlock(const AttentionQuery& query, int64_t first, int64_t last, const char* packed_query, int64_t heads, int64_t dim,
                float scale, char* keys, float* scores) {
  const float* q = reinterpret_cast<const float*>(packed_query);
  const int64_t padded = padded_heads(heads);
  const int64_t window = query.window_last - query.window_first + 1;
  for (int64_t i = first; i < last; ++i) {
    float* key = reinterpret_cast<float*>(keys) + i * dim;
    if (i < window) {
      unpack_window(query.window.row(query.window_first + i), dim, key);
    } else {
      unpack_compressed(query.compressed.row(query.chosen[i - window]), dim, key);
    }
    for (int64_t h = 0; h < padded; h += kHeadLanes) store(scores + i * padded + h, head_dots(q + h, key, padded, dim) * scale);
  }
}

void WeighHeads(int64_t head_begin, int64_t head_end, int64_t heads, int64_t dim, int64_t count, const float* sinks, char* keys,
                float* scores, bf16* out) {
  const float* values = reinterpret_cast<const float*>(keys);
  const int64_t padded = padded_heads(heads);
  TileFactors factors(count);
  for (int64_t h0 = head_begin; h0 < head_end; h0 += kHeadLanes) {
    Float16 sink = splat(0.0f);
    for (int64_t h = h0; h < std::min(h0 + kHeadLanes, heads); ++h) sink[h - h0] = sinks[h];
    Float16 top = splat(-1e30f);
    Float16 total{};
    for (int64_t first = 0; first < count; first += kAttentionTile) {
      const int64_t last = std::min(count, first + kAttentionTile);
      const Float16 before = top;
      for (int64_t i = first; i < last; ++i) top = max(top, load<Float16>(scores + i * padded + h0));
      const Float16 factor = exp(before - top);
      std::memcpy(factors.of_tile(first / kAttentionTile), &factor, sizeof factor);
      total *= factor;
      for (int64_t i = first; i < last; ++i) {
        const Float16 p = exp(load<Float16>(scores + i * padded + h0) - top);
        total += p;
        store(scores + i * padded + h0, round_to_bf16(p));
      }
    }
    total += exp(sink - top);
    for (int64_t h = h0; h < std::min(h0 + kHeadLanes, heads); ++h) {
      for (int64_t d = 0; d < dim; d += 16) {
        Float16 acc{};
        for (int64_t i = 0; i < count; ++i) {
          if (i > 0 && i % kAttentionTile == 0) acc *= factors.of_tile(i / kAttentionTile)[h - h0];
          acc += scores[i * padded + h] * load<Float16>(values + i * dim + d);
        }
        store_bf16(out + h * dim + d, acc / total[h - h0]);
      }
    }
  }
}

void ScoreIndex(const PagedRows& keys, int64_t first, int64_t last, const char* packed_query, const float* weights, int64_t heads,
                int64_t dim, float* scores) {
  const float* q = reinterpret_cast<const float*>(packed_query);
  const int64_t padded = padded_heads(heads);
  alignas(64) float key[4096];  // ModelConfig::validate
  for (int64_t j = first; j < last; ++j) {
    const uint8_t* row = keys.row(j);
    for (int64_t i = 0; i < dim; i += 16)
      store(key + i, decode_e2m1_pairs(row + i / 2) * e8m0_to_float(row[dim / 2 + i / kScaleGroup]));
    Float16 acc{};
    for (int64_t h = 0; h < padded; h += kHeadLanes) {
      const Float16 relu = max(round_to_bf16(head_dots(q + h, key, padded, dim)), splat(0.0f));
      acc += round_to_bf16(relu * load<Float16>(weights + h));
    }
    scores[j - first] = round_bf16(sum(acc));
  }
}

}  // namespace

const CpuKernels* GetBaselineKernels() {
  static const CpuKernels kernels = {"baseline",       &row_ops_for(0), 0,
                                     TileRows,         PackedRowBytes,  Pack,
                                     MultiplyFp8,      MultiplyFp4,     MultiplyBf16,
                                     fp32_query_bytes, fp32_keys_bytes, pack_fp32_query,
                                     ScoreBlock,       WeighHeads,      ScoreIndex};
  return &kernels;
}

}  // namespace deepinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace deepinfer::cpu {

const CpuKernels& baseline_kernels() { return *HWY_STATIC_DISPATCH(GetBaselineKernels)(); }

}  // namespace deepinfer::cpu
