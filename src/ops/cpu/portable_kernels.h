#pragma once

// The parts of the portable tables. `target` is one of Highway's bits, of DEEPINFER_PORTABLE_TARGETS, that this processor runs
// and that the sources are compiled for.

#include <cstdint>
#include <iterator>
#include <vector>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ops.h"

namespace deepinfer::cpu {

void set_portable_products(CpuKernels& kernels, int64_t target);
void set_portable_attention(CpuKernels& kernels, int64_t target);
/// Any other target: for what the whole program is compiled for.
const RowOps& row_ops_for(int64_t target);

/// Attention of all tables here. Queries: fp32 [dim][padded heads], so that a lane is a head. Keys: fp32 [count][dim].
inline int64_t fp32_query_bytes(int64_t heads, int64_t dim) { return padded_heads(heads) * dim * 4; }
inline int64_t fp32_keys_bytes(int64_t count, int64_t dim) { return count * dim * 4; }
inline void pack_fp32_query(const bf16* q, int64_t heads, int64_t dim, char* packed) {
  float* out = reinterpret_cast<float*>(packed);
  const int64_t padded = padded_heads(heads);
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t h = 0; h < padded; ++h) out[d * padded + h] = h < heads ? to_float(q[h * dim + d]) : 0.0f;
  }
}

/// For every processor: plain code over the compiler's vectors.
const CpuKernels& baseline_kernels();

/// What DEEPINFER_CPU_KERNELS and --version call a target.
const char* target_name(int64_t target);

/// Factors of the sums before each tile of a list of `count` entries: [tiles][kHeadLanes], on the stack where there are not many.
class TileFactors {
 public:
  explicit TileFactors(int64_t count) {
    const auto room = static_cast<size_t>((count + kAttentionTile - 1) / kAttentionTile * kHeadLanes);
    if (room > std::size(few_)) many_.resize(room);
  }
  float* of_tile(int64_t tile) { return (many_.empty() ? few_ : many_.data()) + tile * kHeadLanes; }

 private:
  alignas(64) float few_[16 * kHeadLanes];
  std::vector<float> many_;
};

}  // namespace deepinfer::cpu
