#pragma once

// Operators that go row by row: streams, norms, rotation, Engram, and the packed rows of the caches. Each row is one block's or
// one warp's work, so the number of rows cannot matter.

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

// hyper_connection.cu
/// `scratch`: hyper_mix_scratch floats.
void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* scratch, float* pre, float* post, float* comb,
               LaunchStream& stream);
void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y, LaunchStream& stream);
void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden, bf16* x,
                  LaunchStream& stream);
void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y, LaunchStream& stream);

// row_ops.cu
void embed(const int32_t* ids, int64_t rows, const bf16* table, int64_t hidden, int64_t streams, bf16* x, LaunchStream& stream);
void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y, LaunchStream& stream);
void scale(bf16* x, int64_t count, float factor, LaunchStream& stream);
void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse, LaunchStream& stream);
void compress_pool(const float* const* kv, const float* const* gate, int64_t groups, int64_t dim, bf16* latent,
                   LaunchStream& stream);
void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e, LaunchStream& stream);
void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                 int64_t n, int64_t hidden, bf16* x, LaunchStream& stream);

// fused_rows.cu
void hyper_collapse_norm(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, const bf16* w, float eps,
                         bf16* y, LaunchStream& stream);
/// Of four streams.
void hyper_expand_collapse_norm(const bf16* o, const float* post, const float* comb, const float* pre, int64_t rows,
                                int64_t hidden, const bf16* w, float eps, bf16* x, bf16* y, LaunchStream& stream);
void attention_latents(const LatentArgs& args, int64_t rows, LaunchStream& stream);

// draft.cu
/// y [rows, hidden + rank]: x, then the table's row of ids.
void append_embedding(const bf16* x, int64_t hidden, const int32_t* ids, const bf16* table, int64_t rank, int64_t rows, bf16* y,
                      LaunchStream& stream);
/// y [rows, width] += base, rows at base + r * stride.
void add_rows(const float* base, int64_t stride, int64_t rows, int64_t width, float* y, LaunchStream& stream);

// cache_rows.cu. `to`: device list of the rows, nullptr for those left out.
void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed, LaunchStream& stream);
void pack_compressed(const bf16* x, int64_t rows, int64_t dim, uint8_t* const* to, LaunchStream& stream);
void pack_index_keys(const bf16* x, int64_t rows, int64_t dim, uint8_t* const* to, LaunchStream& stream);
void round_index_queries(bf16* x, int64_t rows, int64_t dim, LaunchStream& stream);

}  // namespace deepinfer::cuda
