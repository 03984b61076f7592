#include "base/philox.h"
#include "sampling/sampler.h"

namespace deepinfer {

uint32_t noise_word(uint64_t seed, int64_t position, int32_t token_id, NoiseStream stream, uint32_t choice_index) {
  return philox4x32(noise_counter(token_id, position, stream, choice_index),
                    noise_key(seed))[static_cast<uint32_t>(token_id) & 3];
}

}  // namespace deepinfer
