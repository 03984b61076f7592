// Attention and index scores for processors without bf16 dot products, written with Google Highway and compiled for several
// instruction sets. Keys are unpacked to fp32 block by block; for the scores and the softmax heads are lanes, for the values
// columns are. Every sum runs over columns or list entries in ascending order, whatever is computed beside it.

#include <cstring>

#include "ops/cpu/portable_targets.h"

// Before foreach_target: what follows is compiled several times.
#include "ops/cpu/portable_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/portable_attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "ops/cpu/portable_formats.h"
#include "ops/cpu/vector16.h"

#if HWY_TARGET & DEEPINFER_PORTABLE_TARGETS

HWY_BEFORE_NAMESPACE();
namespace deepinfer::cpu::HWY_NAMESPACE {

void unpack_window(const uint8_t* row, int64_t dim, float* out) {
  const hn::Rebind<int8_t, FloatTag> d8;
  const hn::Rebind<int16_t, FloatTag> d16;
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  for (int64_t g = 0; g < dim; g += kScaleGroup) {
    const F scale = hn::Set(FloatTag(), e8m0_to_float(row[dim + g / kScaleGroup]) * static_cast<float>(1 << kE4m3Shift));
    for (int64_t i = g; i < g + kScaleGroup; i += kLanes) {
      const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(row + i)));
      const auto fields = hn::And(hn::ShiftLeft<7>(wide), hn::Set(d16, static_cast<int16_t>(0xbf80)));
      store(out + i, hn::Mul(hn::PromoteTo(FloatTag(), hn::BitCast(half, fields)), scale));
    }
  }
}

// 32 columns of E2M1 codes (16 bytes), 16 times one scale, 16 times another.
HWY_INLINE void unpack_codes(const uint8_t* codes, float first, float second, float* out) {
  const hn::Full128<uint8_t> d8;
  const hn::Full128<uint16_t> d16;
  alignas(16) static constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const auto v = hn::LoadU(d8, codes);
  const auto nibble = hn::Set(d8, 15);
  const auto table = hn::Load(d8, reinterpret_cast<const uint8_t*>(kTwice));
  const auto even = hn::TableLookupBytes(table, hn::And(v, nibble));
  const auto odd = hn::TableLookupBytes(table, hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, v))), nibble));
  alignas(16) uint8_t twice[32];
  hn::Store(hn::InterleaveLower(d8, even, odd), d8, twice);
  hn::Store(hn::InterleaveUpper(d8, even, odd), d8, twice + 16);
  const hn::Rebind<int8_t, FloatTag> part;
  const hn::RebindToSigned<FloatTag> d32;
  const F halves[2] = {hn::Set(FloatTag(), 0.5f * first), hn::Set(FloatTag(), 0.5f * second)};
#pragma GCC unroll 8
  for (int64_t i = 0; i < 32; i += kLanes) {
    const auto wide = hn::PromoteTo(d32, hn::LoadU(part, reinterpret_cast<const int8_t*>(twice) + i));
    store(out + i, hn::Mul(hn::ConvertTo(FloatTag(), wide), halves[i / 16]));
  }
}

void unpack_compressed(const uint8_t* row, int64_t dim, float* out) {
  const uint8_t* scales = row + dim / 2;
  for (int64_t i = 0; i < dim; i += 2 * kCacheScaleGroup, scales += 2) {
    unpack_codes(row + i / 2, e4m3_to_float(scales[0]), e4m3_to_float(scales[1]), out + i);
  }
}

void unpack_index_key(const uint8_t* row, int64_t dim, float* out) {
  for (int64_t i = 0; i < dim; i += kScaleGroup) {
    const float scale = e8m0_to_float(row[dim / 2 + i / kScaleGroup]);
    unpack_codes(row + i / 2, scale, scale, out + i);
  }
}

// Keys that are scored together for 16 heads: enough sums in registers to keep the multipliers busy.
constexpr int64_t kHeadVectors = kHeadLanes / kLanes;
constexpr int64_t kKeys = kHeadVectors == 1 ? 8 : 4;

// sums[e][v] = query heads [v * kLanes ..] . key e.
template <int64_t kCount>
HWY_INLINE void head_dots(const float* query, int64_t padded, const float* keys, int64_t dim, F (&sums)[kCount][kHeadVectors]) {
  for (auto& key : sums) {
    for (F& s : key) s = zero();
  }
  for (int64_t d = 0; d < dim; ++d) {
    F q[kHeadVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kHeadVectors; ++v) q[v] = load(query + d * padded + v * kLanes);
#pragma GCC unroll 8
    for (int64_t e = 0; e < kCount; ++e) {
      const F k = hn::Set(FloatTag(), keys[e * dim + d]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kHeadVectors; ++v) sums[e][v] = hn::MulAdd(q[v], k, sums[e][v]);
    }
  }
}

template <int64_t kCount>
void score_keys(const float* query, int64_t padded, const float* keys, int64_t dim, float scale, float* scores) {
  for (int64_t h = 0; h < padded; h += kHeadLanes) {
    F sums[kCount][kHeadVectors];
    head_dots<kCount>(query + h, padded, keys, dim, sums);
    for (int64_t e = 0; e < kCount; ++e) {
      for (int64_t v = 0; v < kHeadVectors; ++v) {
        store(scores + e * padded + h + v * kLanes, hn::Mul(sums[e][v], hn::Set(FloatTag(), scale)));
      }
    }
  }
}

void ScoreBlock(const AttentionQuery& query, int64_t first, int64_t last, const char* packed_query, int64_t heads, int64_t dim,
                float scale, char* keys, float* scores) {
  const float* q = reinterpret_cast<const float*>(packed_query);
  const int64_t padded = padded_heads(heads);
  const int64_t window = query.window_last - query.window_first + 1;
  float* rows = reinterpret_cast<float*>(keys);
  for (int64_t i = first; i < last; ++i) {
    if (i < window) {
      unpack_window(query.window.row(query.window_first + i), dim, rows + i * dim);
    } else {
      unpack_compressed(query.compressed.row(query.chosen[i - window]), dim, rows + i * dim);
    }
  }
  int64_t i = first;
  for (; i + kKeys <= last; i += kKeys) score_keys<kKeys>(q, padded, rows + i * dim, dim, scale, scores + i * padded);
  for (; i < last; ++i) score_keys<1>(q, padded, rows + i * dim, dim, scale, scores + i * padded);
}

// Heads and vectors of columns whose sums of values are in registers.
constexpr int kValueHeads = 4;
constexpr int kValueVectors = 2;

// `factors` [tiles][kHeadLanes]: of the sums before a tile.
template <int kHeads>
HWY_INLINE void weigh_values(const float* probabilities, int64_t padded, int64_t count, const float* values, int64_t dim,
                             const float* factors, const float* totals, bf16* out) {
  for (int64_t d = 0; d < dim; d += kValueVectors * kLanes) {
    F sums[kHeads][kValueVectors];
    for (auto& head : sums) {
      for (F& s : head) s = zero();
    }
    for (int64_t i = 0; i < count; ++i) {
      if (i > 0 && i % kAttentionTile == 0) {
        for (int h = 0; h < kHeads; ++h) {
          const F factor = hn::Set(FloatTag(), factors[i / kAttentionTile * kHeadLanes + h]);
          for (int c = 0; c < kValueVectors; ++c) sums[h][c] = hn::Mul(sums[h][c], factor);
        }
      }
      F v[kValueVectors];
#pragma GCC unroll 2
      for (int c = 0; c < kValueVectors; ++c) v[c] = load(values + i * dim + d + c * kLanes);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        const F p = hn::Set(FloatTag(), probabilities[i * padded + h]);
#pragma GCC unroll 2
        for (int c = 0; c < kValueVectors; ++c) sums[h][c] = hn::MulAdd(p, v[c], sums[h][c]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      alignas(64) float row[kValueVectors * kLanes];
      for (int c = 0; c < kValueVectors; ++c) store(row + c * kLanes, hn::Div(sums[h][c], hn::Set(FloatTag(), totals[h])));
      for (int64_t c = 0; c < kValueVectors * kLanes; ++c) out[h * dim + d + c] = to_bf16(row[c]);
    }
  }
}

void WeighHeads(int64_t head_begin, int64_t head_end, int64_t heads, int64_t dim, int64_t count, const float* sinks, char* keys,
                float* scores, bf16* out) {
  const float* values = reinterpret_cast<const float*>(keys);
  const int64_t padded = padded_heads(heads);
  TileFactors factors(count);
  for (int64_t h0 = head_begin; h0 < head_end; h0 += kHeadLanes) {
    const int64_t lanes = least(kHeadLanes, heads - h0);
    Float16 sink = splat(0.0f);
    for (int64_t h = 0; h < lanes; ++h) sink[h] = sinks[h0 + h];
    Float16 top = splat(-1e30f);
    Float16 total{};
    for (int64_t first = 0; first < count; first += kAttentionTile) {
      const int64_t last = least(count, first + kAttentionTile);
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
    alignas(64) float totals[kHeadLanes];
    store(totals, total);
    const float* column = scores + h0;
    int64_t h = 0;
    for (; h + kValueHeads <= lanes; h += kValueHeads) {
      weigh_values<kValueHeads>(column + h, padded, count, values, dim, factors.of_tile(0) + h, totals + h, out + (h0 + h) * dim);
    }
    for (; h < lanes; ++h)
      weigh_values<1>(column + h, padded, count, values, dim, factors.of_tile(0) + h, totals + h, out + (h0 + h) * dim);
  }
}

// Scores of kCount keys: a head's dot is rounded to bf16, cut off at zero, weighed, rounded again.
template <int64_t kCount>
void score_index_keys(const float* query, int64_t padded, const float* keys, const float* weights, int64_t dim, float* scores) {
  Float16 totals[kCount] = {};
  for (int64_t h = 0; h < padded; h += kHeadLanes) {
    F sums[kCount][kHeadVectors];
    head_dots<kCount>(query + h, padded, keys, dim, sums);
    for (int64_t e = 0; e < kCount; ++e) {
      alignas(64) float dots[kHeadLanes];
      for (int64_t v = 0; v < kHeadVectors; ++v) store(dots + v * kLanes, sums[e][v]);
      const Float16 relu = max(round_to_bf16(load<Float16>(dots)), splat(0.0f));
      totals[e] += round_to_bf16(relu * load<Float16>(weights + h));
    }
  }
  for (int64_t e = 0; e < kCount; ++e) scores[e] = round_bf16(sum(totals[e]));
}

void ScoreIndex(const PagedRows& keys, int64_t first, int64_t last, const char* packed_query, const float* weights, int64_t heads,
                int64_t dim, float* scores) {
  const float* q = reinterpret_cast<const float*>(packed_query);
  const int64_t padded = padded_heads(heads);
  // Keys may be as wide as 4096 (ModelConfig::validate); none in use is wider than 1024.
  constexpr int64_t kRoom = 4096;
  alignas(64) float rows[kKeys / 4 * kRoom];
  const int64_t together = dim <= kRoom / 4 ? kKeys : 1;
  for (int64_t j = first; j < last; j += together) {
    const int64_t count = least(together, last - j);
    for (int64_t e = 0; e < count; ++e) unpack_index_key(keys.row(j + e), dim, rows + e * dim);
    if (count == kKeys) {
      score_index_keys<kKeys>(q, padded, rows, weights, dim, scores + j - first);
    } else {
      for (int64_t e = 0; e < count; ++e) score_index_keys<1>(q, padded, rows + e * dim, weights, dim, scores + j + e - first);
    }
  }
}

void SetAttention(CpuKernels& kernels) {
  kernels.query_bytes = fp32_query_bytes;
  kernels.keys_bytes = fp32_keys_bytes;
  kernels.pack_query = pack_fp32_query;
  kernels.score_block = ScoreBlock;
  kernels.weigh_heads = WeighHeads;
  kernels.score_index = ScoreIndex;
}

}  // namespace deepinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE
namespace deepinfer::cpu {

void set_portable_attention(CpuKernels& kernels, int64_t target) {
  void (*set)(CpuKernels&) = DEEPINFER_CHOOSE(target, SetAttention);
  set(kernels);
}

}  // namespace deepinfer::cpu
#endif
