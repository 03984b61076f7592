#include <algorithm>

#include "base/philox.h"
#include "sampling/fixed_math.h"
#include "sampling/sampler.h"

namespace deepinfer {

uint32_t noise_word(uint64_t seed, int64_t position, int32_t token_id, NoiseStream stream, uint32_t choice_index) {
  return philox4x32(noise_counter(token_id, position, stream, choice_index),
                    noise_key(seed))[static_cast<uint32_t>(token_id) & 3];
}

float gumbel(uint32_t word) {
  // u is a multiple of 2^-33, so 1 - u is exact and log1p(-u) = log(1 - u). Everything stays in FP64 and is rounded once.
  const double u = std::min(static_cast<double>(word) * 0x1p-32 + 0x1p-33, 1.0 - 0x1p-24);
  return static_cast<float>(-fixed_log(-fixed_log(1.0 - u)));
}

}  // namespace deepinfer
