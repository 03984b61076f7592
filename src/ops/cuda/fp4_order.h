#pragma once

// The order of the bits in a word of FP4 weights that the device has arranged for itself: the same eight codes, so placed that
// most of them come to where bf16 has them with a shift and a mask. Plain functions, for the host's tests too.

#include <cstdint>

#include "ops/cuda/host_device.h"

namespace deepinfer::cuda {

/// Where bf16 has sign, two exponent bits and one mantissa bit of a code, in both halves of a word.
inline constexpr uint32_t kFp4Bits = 0x81c081c0u;

/// Codes 0..7 of a word as a checkpoint has them, code i at bits 4 i: sign, exponent, exponent, mantissa. Half h of the arranged
/// word has codes 4 h .. 4 h + 3: the first where bf16 has it, the second three bits, the third six bits below; of the fourth the
/// sign at 14, the exponent at 13 and 11, the mantissa at 10.
DI_HOST_DEVICE constexpr uint32_t arrange_fp4(uint32_t codes) {
  uint32_t out = 0;
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = codes >> (16 * half) & 0xffffu;
    uint32_t bits = 0;
    for (int i = 0; i < 3; ++i) {
      const uint32_t code = four >> (4 * i) & 15u;
      bits |= ((code & 8u) << 12 | (code & 7u) << 6) >> (3 * i);
    }
    const uint32_t last = four >> 12;
    bits |= (last & 8u) << 11 | (last & 4u) << 11 | (last & 2u) << 10 | (last & 1u) << 10;
    out |= bits << (16 * half);
  }
  return out;
}

/// Codes (0, 4), (1, 5), (2, 6), (3, 7) of an arranged word, each where kFp4Bits says.
DI_HOST_DEVICE constexpr void spread_arranged_fp4(uint32_t w, uint32_t (&r)[4]) {
  r[0] = w & kFp4Bits;
  r[1] = w << 3 & kFp4Bits;
  r[2] = w << 6 & kFp4Bits;
  r[3] = (w << 1 & 0x80008000u) | (w >> 5 & 0x01000100u) | (w >> 4 & 0x00c000c0u);
}
/// The same of a word as it comes.
DI_HOST_DEVICE constexpr void spread_fp4(uint32_t w, uint32_t (&r)[4]) {
  r[0] = (w << 12 & 0x80008000u) | (w << 6 & 0x01c001c0u);
  r[1] = (w << 8 & 0x80008000u) | (w << 2 & 0x01c001c0u);
  r[2] = (w << 4 & 0x80008000u) | (w >> 2 & 0x01c001c0u);
  r[3] = (w & 0x80008000u) | (w >> 6 & 0x01c001c0u);
}

}  // namespace deepinfer::cuda
