#pragma once

// The order of FP4 weights that the device has arranged for itself. In a word: the same eight codes, so placed that three of each
// four come to where bf16 has them with a turn and a mask and the fourth by a multiplication, which moves its bits by three
// distances at once: eight instructions for eight codes instead of fifteen. In a matrix:
// panels of 32 rows, cut into chunks of columns that lie in one piece as kernels have them in shared memory, so that any number
// of neighbouring chunks is one copy. Plain functions, for the host's tests too.

#include <cstdint>

#include "ops/cuda/host_device.h"

namespace deepinfer::cuda {

/// Where bf16 has sign, two exponent bits and one mantissa bit of a code, in both halves of a word.
inline constexpr uint32_t kFp4Bits = 0x81c081c0u;

/// Of an arranged word, where the fourth codes lie, and what brings them there without a carry: bits 0 and 1 to 7 and 8, bit 3
/// to 15, bit 4 to 6, in both halves. What else comes of it lies where kFp4Bits has none.
inline constexpr uint32_t kFp4Fourth = 0x001b001bu;
inline constexpr uint32_t kFp4Spread = 1u << 2 | 1u << 7 | 1u << 12;

/// Codes 0..7 of a word as a checkpoint has them, code i at bits 4 i: sign, exponent, exponent, mantissa. Half h of the arranged
/// word has codes 4 h .. 4 h + 3. The first lies where bf16 has it; the second and third are turned round the word by three and
/// six bits, so that their signs are in the other half; the bits of the fourth take the places that are left.
DI_HOST_DEVICE constexpr uint32_t arrange_fp4(uint32_t codes) {
  uint32_t out = 0;
  for (int half = 0; half < 2; ++half) {
    const auto code = [&](int i) {
      const uint32_t c = codes >> (16 * half + 4 * i) & 15u;
      return ((c & 8u) << 12 | (c & 7u) << 6) << (16 * half);
    };
    out |= code(0);
    out |= code(1) << 3 | code(1) >> 29;
    out |= code(2) << 6 | code(2) >> 26;
    out |= (code(3) & 0x80008000u) >> 12 | (code(3) & 0x01800180u) >> 7 | (code(3) & 0x00400040u) >> 2;
  }
  return out;
}

/// Codes (0, 4), (1, 5), (2, 6), (3, 7) of an arranged word, each where kFp4Bits says.
DI_HOST_DEVICE constexpr void spread_arranged_fp4(uint32_t w, uint32_t (&r)[4]) {
  r[0] = w & kFp4Bits;
  r[1] = (w >> 3 | w << 29) & kFp4Bits;  // one instruction turns
  r[2] = (w >> 6 | w << 26) & kFp4Bits;
  r[3] = (w & kFp4Fourth) * kFp4Spread & kFp4Bits;
}
/// The same of a word as it comes: a product puts a code twice, its sign and the rest where they belong, and nothing overlaps.
DI_HOST_DEVICE constexpr void spread_fp4(uint32_t w, uint32_t (&r)[4]) {
  const uint32_t behind = w >> 8;
  r[0] = (w & 0x000f000fu) * 0x1040u & kFp4Bits;
  r[1] = (w & 0x00f000f0u) * 0x0104u & kFp4Bits;
  r[2] = (behind & 0x000f000fu) * 0x1040u & kFp4Bits;
  r[3] = (behind & 0x00f000f0u) * 0x0104u & kFp4Bits;
}

/// Rows of a panel, whose codes and scales take the bytes of as many rows as they come; columns of a chunk, of which the last of
/// a panel may have fewer.
inline constexpr int kFp4PanelRows = 32;
inline constexpr int kFp4ChunkColumns = 128;
inline constexpr int kFp4ChunkBytes = kFp4PanelRows * kFp4ChunkColumns / 2;
inline constexpr int kFp4ChunkScales = kFp4PanelRows * kFp4ChunkColumns / 32;

/// Groups of 32 columns, which share a scale, in chunk `chunk` of rows of `in` columns.
DI_HOST_DEVICE constexpr int fp4_chunk_groups(int64_t in, int64_t chunk) {
  constexpr int kGroups = kFp4ChunkColumns / 32;
  const int64_t left = in / 32 - chunk * kGroups;
  return left < kGroups ? static_cast<int>(left) : kGroups;
}
/// Where the 16 bytes of codes of group `group` of row `row` lie: in a chunk row by row, groups one behind the other.
DI_HOST_DEVICE constexpr int64_t fp4_codes_place(int64_t in, int64_t row, int64_t group) {
  const int64_t chunk = group / 4;
  return row / kFp4PanelRows * kFp4PanelRows * (in / 2) + chunk * kFp4ChunkBytes +
         (row % kFp4PanelRows * fp4_chunk_groups(in, chunk) + group % 4) * 16;
}
/// Where its scale lies: in a chunk the scales of rows g, g + 8, g + 16 and g + 24 are one word, a word for each group.
DI_HOST_DEVICE constexpr int64_t fp4_scale_place(int64_t in, int64_t row, int64_t group) {
  const int64_t chunk = group / 4;
  return row / kFp4PanelRows * in + chunk * kFp4ChunkScales + (row % 8 * fp4_chunk_groups(in, chunk) + group % 4) * 4 +
         row % kFp4PanelRows / 8;
}

}  // namespace deepinfer::cuda
