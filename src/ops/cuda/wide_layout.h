#pragma once

// Where things lie in the shared memory that warpgroups multiply from, as plain arithmetic: the host tests it.

#include <cstdint>

#ifdef __CUDACC__
#define DI_HOST_DEVICE __host__ __device__
#else
#define DI_HOST_DEVICE
#endif

namespace deepinfer::cuda {

/// A place in a ring of stages, and the parity of the phase that is waited for there.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  DI_HOST_DEVICE void next(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/// Matrices lie in blocks of rows of 128 bytes. Of eight rows, row r has its 16-byte pieces exchanged: piece p lies where p ^ r
/// would (the 128-byte swizzle of the PTX manual, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"). Blocks begin at
/// multiples of 1024 bytes.
inline constexpr uint32_t kSwizzledRow = 128;
inline constexpr uint32_t kEightRows = 8 * kSwizzledRow;
DI_HOST_DEVICE constexpr uint32_t swizzled_piece(uint32_t row, uint32_t piece) {
  return row * kSwizzledRow + (piece ^ row % 8) * 16;
}

/// Descriptor of such a matrix (the manual's "Matrix Descriptor Format": addresses in units of 16 bytes, 128-byte swizzle).
/// `eights`: bytes from eight rows to the next eight. `blocks`: from 64 columns to the next 64; means something only where rows
/// run along the products' 16 columns instead of across them, so that a row holds one of the 16 for 64 outputs.
DI_HOST_DEVICE constexpr uint64_t swizzled_matrix(uint32_t address, uint32_t eights, uint32_t blocks) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(blocks >> 4) << 16 |
         static_cast<uint64_t>(eights >> 4) << 32 | uint64_t{1} << 62;
}

/// Where the columns c + pair and c + pair + 4 of an input row go, that are multiplied by keys or weights a lane of four widens
/// at a time: c: first of eight columns among a chunk's 128; pair: 0 to 3.
struct PairPlace {
  uint32_t block;  ///< of 64 columns
  uint32_t piece;  ///< of 16 bytes, before the swizzle
  uint32_t word;   ///< of 4 bytes in it
};
/// FP8: a lane widens 16 columns of each 64; FP4: 32 of 128. Eight of a lane's columns are two products: 0 4 1 5, then 2 6 3 7.
DI_HOST_DEVICE constexpr PairPlace pair_place(bool fp8, uint32_t column, uint32_t pair) {
  const uint32_t lane = fp8 ? column % 64 / 16 : column / 32;
  const uint32_t eight = fp8 ? column % 16 / 8 : column % 32 / 8;
  const uint32_t product = eight * 2 + pair / 2;
  const uint32_t block = fp8 ? column / 64 : product / 4;
  return {block, product % 4 * 2 + pair % 2, lane};
}

/// Where product `product` (of 16 columns) of a chunk of 128 begins, in two blocks of `rows` rows.
DI_HOST_DEVICE constexpr uint32_t product_offset(uint32_t product, uint32_t rows) {
  return product / 4 * rows * kSwizzledRow + product % 4 * 32;
}

}  // namespace deepinfer::cuda
