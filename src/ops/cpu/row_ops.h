#pragma once

// Everything the CPU backend does row by row that is not a matrix product or attention. Compiled for several instruction sets; a
// table of kernels names those that go with it (kernels.h).

#include <cstdint>

#include "ops/ops.h"

namespace deepinfer::cpu {

struct RowOps {
  const char* target;

  void (*rms_norm)(const bf16* x, const bf16* w, float eps, int64_t dim, bf16* y);
  /// m[o] for o in [begin, end), of up to 4 rows: fn[o] . x, unscaled; x [rows, width], m [rows, stride].
  void (*hyper_dots)(const float* fn, int64_t begin, int64_t end, const bf16* x, int64_t rows, int64_t width, float* m,
                     int64_t stride);
  /// Coefficients of one row from its dots.
  void (*hyper_coefficients)(const HyperMixWeights& w, const bf16* x, const float* m, float* pre, float* post, float* comb);
  void (*hyper_collapse)(const bf16* x, const float* pre, int64_t n, int64_t hidden, bf16* y);
  void (*hyper_expand)(const bf16* o, const float* post, const float* comb, int64_t n, int64_t hidden, bf16* x);
  void (*stream_mean)(const bf16* x, int64_t n, int64_t hidden, bf16* y);

  /// fp8 round trip in groups of 32; the result is exact in bf16.
  void (*round_fp8)(const bf16* x, int64_t dim, bf16* y);
  void (*pack_window)(const bf16* x, int64_t dim, uint8_t* packed);
  void (*pack_compressed)(const bf16* x, int64_t dim, uint8_t* packed);
  void (*pack_index_key)(const bf16* x, int64_t dim, uint8_t* packed);
  void (*round_index_query)(bf16* x, int64_t dim);
  void (*to_bf16_row)(const float* x, int64_t n, bf16* y);

  void (*rope)(bf16* x, const float* cos, const float* sin, int64_t pairs, int64_t heads, int64_t dim, bool inverse);
  void (*compress_pair)(const float* kv0, const float* kv1, const float* gate0, const float* gate1, int64_t dim, bf16* latent);
  /// h = bf16(silu(min(a, limit)) * clamp(b) * weight), a and b rounded to bf16 first.
  void (*swiglu)(const float* a, const float* b, int64_t n, float limit, float weight, bf16* h);
  /// y += x
  void (*accumulate)(const bf16* x, int64_t n, float* y);
  void (*engram_row)(const uint8_t* values, const uint8_t* scales, int64_t dim, bf16* y);
  void (*engram_gate)(const bf16* key, const bf16* value, const bf16* q_weight, const bf16* k_weight, float eps, int64_t hidden,
                      bf16* stream);
};

}  // namespace deepinfer::cpu
