// Attention and index scores for processors with AVX-512 BF16 and VBMI: keys are unpacked to bf16 block by block, heads and
// columns are lanes.

#include "ops/cpu/avx512_bf16_formats.h"
#include "ops/cpu/avx512_bf16_kernels.h"

namespace deepinfer::cpu {
namespace {

// Queries: pairs of columns [dim / 2][padded heads], 32 bits each, so that a lane is a head. Values: pairs of list entries
// [count / 2][dim], 32 bits each, so that a lane is a column.
int64_t QueryBytes(int64_t heads, int64_t dim) { return padded_heads(heads) * dim * 2; }
int64_t KeysBytes(int64_t count, int64_t dim) { return (count + 1) / 2 * dim * 4; }

void PackQuery(const bf16* q, int64_t heads, int64_t dim, char* packed) {
  const int64_t padded = padded_heads(heads);
  const I step = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                    _mm512_set1_epi32(static_cast<int>(dim / 2)));
  for (int64_t h = 0; h < padded; h += kHeadLanes) {
    const auto mask = static_cast<__mmask16>((1u << least(kHeadLanes, heads - h)) - 1u);
    for (int64_t p = 0; p < dim / 2; ++p) {
      const I v = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, step, q + h * dim + 2 * p, 4);
      _mm512_store_si512(packed + (p * padded + h) * 4, v);
    }
  }
}

inline F clamp_exp_argument(F x) { return _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(88.0f)); }

// e^x to about one unit in the last place; below -87 it gives 0.
inline F exp16(F x) {
  const F c = clamp_exp_argument(x);
  const F n =
      _mm512_roundscale_ps(_mm512_mul_ps(c, _mm512_set1_ps(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  F r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), c);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  F p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  const F e = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ), e, n);
}

inline F round_to_bf16(F v) {
  const I u = _mm512_castps_si512(v);
  const I odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const I r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Rows of the caches as bf16 in natural order.
void unpack_window(const E4m3Decoder& decoder, const uint8_t* row, int64_t dim, char* out) {
  const I first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const I second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  for (int64_t c = 0; c < dim; c += 64) {
    const bool whole = dim - c >= 64;
    I a, b;
    decoder.widen(whole ? load(row + c) : _mm512_maskz_loadu_epi8(0xffffffffull, row + c), &a, &b);
    const uint8_t* scales = row + dim + c / kScaleGroup;
    _mm512_storeu_si512(out + c * 2,
                        add_exponent(_mm512_permutex2var_epi64(a, first, b), _mm512_set1_epi16(exponent_bias(scales[0]))));
    if (!whole) continue;
    _mm512_storeu_si512(out + c * 2 + 64,
                        add_exponent(_mm512_permutex2var_epi64(a, second, b), _mm512_set1_epi16(exponent_bias(scales[1]))));
  }
}

// 16 columns of packed E2M1 codes (8 bytes) as fp32.
inline F widen_codes(const uint8_t* codes) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
  const F values = _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
  return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high)), values);
}

inline void store_pair(char* out, F low, F high) { _mm512_storeu_si512(out, (I)_mm512_cvtne2ps_pbh(high, low)); }

void unpack_compressed(const uint8_t* row, int64_t dim, char* out) {
  const uint8_t* scales = row + dim / 2;
  for (int64_t c = 0; c < dim; c += 32) {
    const F low = _mm512_mul_ps(widen_codes(row + c / 2), _mm512_set1_ps(kE4m3Values[scales[c / kCacheScaleGroup]]));
    const F high = _mm512_mul_ps(widen_codes(row + c / 2 + 8), _mm512_set1_ps(kE4m3Values[scales[c / kCacheScaleGroup + 1]]));
    store_pair(out + c * 2, low, high);
  }
}

void unpack_index_key(const uint8_t* row, int64_t dim, char* out) {
  for (int64_t c = 0; c < dim; c += 32) {
    const F scale = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(row[dim / 2 + c / kScaleGroup]) << 23));
    store_pair(out + c * 2, _mm512_mul_ps(widen_codes(row + c / 2), scale), _mm512_mul_ps(widen_codes(row + c / 2 + 8), scale));
  }
}

constexpr int64_t kEntries = 4;  // list entries (or index keys) scored together

// acc[e][v] = query heads [16 v ..] . key e, for kVectors vectors of heads.
template <int kVectors>
inline void head_dots(const char* query, int64_t padded, const char* keys, int64_t key_bytes, int64_t pairs,
                      F (&acc)[kEntries][kVectors]) {
  for (auto& entry : acc) {
    for (F& v : entry) v = _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < pairs; ++p) {
    I q[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) q[v] = load(query + (p * padded + v * kHeadLanes) * 4);
#pragma GCC unroll 4
    for (int e = 0; e < kEntries; ++e) {
      int pair;
      __builtin_memcpy(&pair, keys + e * key_bytes + p * 4, 4);
      const I k = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[e][v] = dot(acc[e][v], q[v], k);
    }
  }
}

// Calls fn<n>(first head) for vectors of heads, up to four at a time.
template <typename Fn>
inline void for_head_vectors(int64_t padded, Fn fn) {
  for (int64_t h = 0; h < padded;) {
    const int64_t vectors = (padded - h) / kHeadLanes;
    if (vectors >= 4) {
      fn.template operator()<4>(h);
      h += 4 * kHeadLanes;
    } else if (vectors >= 2) {
      fn.template operator()<2>(h);
      h += 2 * kHeadLanes;
    } else {
      fn.template operator()<1>(h);
      h += kHeadLanes;
    }
  }
}

void ScoreBlock(const AttentionQuery& query, int64_t first, int64_t last, const char* packed_query, int64_t heads, int64_t dim,
                float scale, char* keys, float* scores) {
  const E4m3Decoder decoder;
  const int64_t padded = padded_heads(heads);
  const int64_t window = query.window_last - query.window_first + 1;
  const int64_t key_bytes = dim * 2;
  Scratch<kEntries * 1024> scratch(kEntries * key_bytes + 64);
  char* rows = scratch.get();
  alignas(64) int16_t index[64];
  for (int16_t i = 0; i < 64; ++i) index[i] = static_cast<int16_t>(i / 2 + (i % 2) * 32);
  const I low = load(index);
  const I high = load(index + 32);
  const I factor = _mm512_castps_si512(_mm512_set1_ps(scale));
  for (int64_t i = first; i < last; i += kEntries) {
    for (int64_t e = 0; e < kEntries; ++e) {
      if (i + e >= last) {
        __builtin_memset(rows + e * key_bytes, 0, static_cast<size_t>(key_bytes));
      } else if (i + e < window) {
        unpack_window(decoder, query.window.row(query.window_first + i + e), dim, rows + e * key_bytes);
      } else {
        unpack_compressed(query.compressed.row(query.chosen[i + e - window]), dim, rows + e * key_bytes);
      }
    }
    for (int64_t e = 0; e < kEntries && i + e < last; e += 2) {
      char* out = keys + (i + e) / 2 * dim * 4;
      for (int64_t c = 0; c < dim; c += 32) {
        const I a = load(rows + e * key_bytes + c * 2);
        const I b = load(rows + (e + 1) * key_bytes + c * 2);
        _mm512_storeu_si512(out + c * 4, _mm512_permutex2var_epi16(a, low, b));
        _mm512_storeu_si512(out + c * 4 + 64, _mm512_permutex2var_epi16(a, high, b));
      }
    }
    const int64_t entries = least(kEntries, last - i);
    for_head_vectors(padded, [&]<int kVectors>(int64_t h) {
      F acc[kEntries][kVectors];
      head_dots<kVectors>(packed_query + h * 4, padded, rows, key_bytes, dim / 2, acc);
      for (int64_t e = 0; e < entries; ++e) {
        for (int v = 0; v < kVectors; ++v) {
          _mm512_storeu_ps(scores + (i + e) * padded + h + v * kHeadLanes, _mm512_mul_ps(acc[e][v], _mm512_castsi512_ps(factor)));
        }
      }
    });
  }
}

// Sum over pairs of entries of probability times value, kHeads heads and kVectors vectors of 16 columns. `factors` [tiles]
// [kHeadLanes]: of the sums before a tile.
template <int kHeads, int kVectors>
inline void weigh_values(const float* probabilities, int64_t padded, int64_t pairs, const char* values, int64_t dim,
                         const float* factors, const float* totals, bf16* out) {
  F acc[kHeads][kVectors];
  for (auto& head : acc) {
    for (F& v : head) v = _mm512_setzero_ps();
  }
  for (int64_t j = 0; j < pairs; ++j) {
    if (j > 0 && j % (kAttentionTile / 2) == 0) {
      for (int h = 0; h < kHeads; ++h) {
        const F factor = _mm512_set1_ps(factors[j / (kAttentionTile / 2) * kHeadLanes + h]);
        for (int c = 0; c < kVectors; ++c) acc[h][c] = _mm512_mul_ps(acc[h][c], factor);
      }
    }
    I v[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) v[c] = load(values + j * dim * 4 + c * 64);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      int pair;
      __builtin_memcpy(&pair, probabilities + 2 * j * padded + h, 4);
      const I p = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) acc[h][c] = dot(acc[h][c], p, v[c]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < kVectors; ++c) {
      const F o = _mm512_div_ps(acc[h][c], _mm512_set1_ps(totals[h]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + h * dim + c * 16), (__m256i)_mm512_cvtneps_pbh(o));
    }
  }
}

template <int kHeads>
inline void weigh_columns(const float* probabilities, int64_t padded, int64_t pairs, const char* values, int64_t dim,
                          const float* factors, const float* totals, bf16* out) {
  int64_t d = 0;
  for (; d + 64 <= dim; d += 64)
    weigh_values<kHeads, 4>(probabilities, padded, pairs, values + d * 4, dim, factors, totals, out + d);
  for (; d < dim; d += 32) weigh_values<kHeads, 2>(probabilities, padded, pairs, values + d * 4, dim, factors, totals, out + d);
}

void WeighHeads(int64_t head_begin, int64_t head_end, int64_t heads, int64_t dim, int64_t count, const float* sinks, char* keys,
                float* scores, bf16* out) {
  const int64_t padded = padded_heads(heads);
  const int64_t pairs = (count + 1) / 2;
  Scratch<16 * kHeadLanes * 4> scratch((count + kAttentionTile - 1) / kAttentionTile * kHeadLanes * 4);
  auto* factors = reinterpret_cast<float*>(scratch.get());
  for (int64_t h0 = head_begin; h0 < head_end; h0 += kHeadLanes) {
    const int64_t lanes = least(kHeadLanes, heads - h0);
    float* column = scores + h0;
    F top = _mm512_set1_ps(-1e30f);
    F total = _mm512_setzero_ps();
    for (int64_t first = 0; first < count; first += kAttentionTile) {
      const int64_t last = least(count, first + kAttentionTile);
      const F before = top;
      for (int64_t i = first; i < last; ++i) top = _mm512_max_ps(top, _mm512_loadu_ps(column + i * padded));
      const F factor = exp16(_mm512_sub_ps(before, top));
      _mm512_storeu_ps(factors + first / kAttentionTile * kHeadLanes, factor);
      total = _mm512_mul_ps(total, factor);
      for (int64_t i = first; i < last; i += 2) {
        const F a = exp16(_mm512_sub_ps(_mm512_loadu_ps(column + i * padded), top));
        F b = _mm512_setzero_ps();
        total = _mm512_add_ps(total, a);
        if (i + 1 < last) {
          b = exp16(_mm512_sub_ps(_mm512_loadu_ps(column + (i + 1) * padded), top));
          total = _mm512_add_ps(total, b);
        }
        // Probabilities are rounded to bf16 (spec 3.10); entry i in the low half of each lane, i + 1 in the high half.
        const I low = _mm512_srli_epi32(_mm512_castps_si512(round_to_bf16(a)), 16);
        _mm512_storeu_si512(column + i * padded, _mm512_or_si512(low, _mm512_castps_si512(round_to_bf16(b))));
      }
    }
    const auto mask = static_cast<__mmask16>((1u << lanes) - 1u);
    total = _mm512_add_ps(total, exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, sinks + h0), top)));
    alignas(64) float totals[kHeadLanes];
    _mm512_store_ps(totals, total);
    int64_t h = 0;
    for (; h + 4 <= lanes; h += 4)
      weigh_columns<4>(column + h, padded, pairs, keys, dim, factors + h, totals + h, out + (h0 + h) * dim);
    for (; h < lanes; ++h) weigh_columns<1>(column + h, padded, pairs, keys, dim, factors + h, totals + h, out + (h0 + h) * dim);
  }
}

void ScoreIndex(const PagedRows& keys, int64_t first, int64_t last, const char* packed_query, const float* weights, int64_t heads,
                int64_t dim, float* scores) {
  const int64_t padded = padded_heads(heads);
  const int64_t key_bytes = dim * 2;
  Scratch<kEntries * 512> scratch(kEntries * key_bytes + 64);
  char* rows = scratch.get();
  for (int64_t j = first; j < last; j += kEntries) {
    const int64_t entries = least(kEntries, last - j);
    for (int64_t e = 0; e < entries; ++e) unpack_index_key(keys.row(j + e), dim, rows + e * key_bytes);
    F sums[kEntries];
    for (F& s : sums) s = _mm512_setzero_ps();
    for_head_vectors(padded, [&]<int kVectors>(int64_t h) {
      F acc[kEntries][kVectors];
      head_dots<kVectors>(packed_query + h * 4, padded, rows, key_bytes, dim / 2, acc);
      for (int e = 0; e < kEntries; ++e) {
        for (int v = 0; v < kVectors; ++v) {
          const F relu = _mm512_max_ps(round_to_bf16(acc[e][v]), _mm512_setzero_ps());
          sums[e] = _mm512_add_ps(sums[e], round_to_bf16(_mm512_mul_ps(relu, _mm512_loadu_ps(weights + h + v * kHeadLanes))));
        }
      }
    });
    for (int64_t e = 0; e < entries; ++e) {
      alignas(64) float rounded[16];
      _mm512_store_ps(rounded, round_to_bf16(_mm512_set1_ps(reduce(sums[e]))));
      scores[j - first + e] = rounded[0];
    }
  }
}

}  // namespace

void set_avx512_bf16_attention(CpuKernels& kernels) {
  kernels.query_bytes = QueryBytes;
  kernels.keys_bytes = KeysBytes;
  kernels.pack_query = PackQuery;
  kernels.score_block = ScoreBlock;
  kernels.weigh_heads = WeighHeads;
  kernels.score_index = ScoreIndex;
}

}  // namespace deepinfer::cpu
