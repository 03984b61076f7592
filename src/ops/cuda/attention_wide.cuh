#pragma once

// What a block of attention_wide.cu has in shared memory, and how keys, queries and outputs get there and out.

#include "ops/cuda/attention_keys.cuh"
#include "ops/cuda/attention_softmax.cuh"

namespace deepinfer::cuda {

inline constexpr int kWideDim = 512;
inline constexpr int kWideHeads = 64;  ///< of a block
inline constexpr int kMostKeys = 640;
inline constexpr int kBuffers = 2;                                   ///< tiles in shared memory
inline constexpr uint32_t kBlockBytes = kTileKeys * kSwizzledRow;    ///< 64 columns of 64 keys or heads
inline constexpr uint32_t kRowsBytes = kWideDim / 64 * kBlockBytes;  ///< all columns
static_assert(kTileKeys == 64 && kWideHeads == 64);

struct WideAttentionShared {
  uint8_t queries[kRowsBytes];
  uint8_t keys[kBuffers][kRowsBytes];
  uint8_t probabilities[kBuffers][kBlockBytes];  // [heads][keys]
  const uint8_t* rows[2][kMostKeys];             // of a query's keys and the next one's, up to the end of the last tile
  float4 sums[kWarpgroup];                       // of the probabilities of a tile's first half, as lanes have them
  float tops[2][kWideHeads];                     // the largest scores of a tile's halves
  float totals[kWideHeads];                      // of a query's last tile
  uint64_t full[kBuffers];                       // keys are there, and with the first tile of a query its numbers
  uint64_t empty[kBuffers][2];                   // both have been multiplied, those of the first and of the last 32 keys
  uint64_t asked;                                // all scores of a query are there
};
static_assert(sizeof(WideAttentionShared) <= 227 << 10);
static_assert(offsetof(WideAttentionShared, probabilities) % kEightRows == 0);

__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ inline int lane_index() { return thread_index() % kWarp; }
__device__ inline int warp_in_group() { return thread_index() % kWarpgroup / kWarp; }
__device__ inline uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The order of columns in shared memory, for queries and keys: of 128 dims, eight products, each of them 32 bytes of a row. The
// eights dims 32 t + 8 s .. 32 t + 8 s + 7 are in the products 2 s (0 1 4 5) and 2 s + 1 (2 3 6 7), 8 bytes each, in the order of
// t. What is widened together, both t of a pair, is 16 bytes: the place of `half` of product 2 s + `odd`.
struct EightsPlace {
  uint32_t block;  ///< of 64 columns
  uint32_t piece;  ///< of 16 bytes, before the swizzle
};
__device__ constexpr EightsPlace eights_place(uint32_t quarter, uint32_t s, uint32_t odd, uint32_t half) {
  return {quarter * 2 + s / 2, (s % 2 * 2 + odd) * 2 + half};
}

// Half of the dims of all heads' queries, by a warpgroup, 64 dims a warp; heads that are not there are zero. Two dims at a time,
// as products want them.
__device__ inline void bring_queries(const bf16* q, int own_heads, int half, uint8_t* queries) {
  // Places are computed here, not kept in registers from query to query.
  const auto thread = static_cast<uint32_t>(thread_read_anew());
  const uint32_t part = static_cast<uint32_t>(half) * 4 + thread % kWarpgroup / kWarp;
  const uint32_t word = thread % 4;
  const EightsPlace at = eights_place(part / 2, thread / 4 % 4, word % 2, part % 2);
  uint8_t* to = queries + at.block * kBlockBytes + thread / 16 % 2 * 8 + word / 2 * 4;
  const bf16* from = q + part * 64 + thread % kWarp * 2;
#pragma unroll 1
  for (int first = 0; first < kWideHeads; first += 8) {
#pragma unroll
    for (uint32_t head = 0; head < 8; ++head) {
      uint8_t* place = to + swizzled_piece(head, at.piece);
      if (first + static_cast<int>(head) < own_heads) {
        copy_word_async(shared_address(place), from + head * kWideDim);
      } else {
        *reinterpret_cast<uint32_t*>(place) = 0;
      }
    }
    to += kEightRows;
    from += 8 * kWideDim;
  }
  commit_copies();
  wait_copies<0>();
}

// What a lane widens at a time: 64 dims of a compressed key, or 32 of one of the window.
struct WidePiece {
  uint4 data[2];
  uint32_t scales;  // a byte, or four
};

// A step of a warpgroup that widens: of its half of a tile's keys, the compressed ones and half of the dims of those of the
// window, or the other half. A warp has eight keys, a lane two pieces of one, by half of the dims at a time.
inline constexpr int kPieces = 2;
__device__ inline int piece_key(int half) { return half * 32 + warp_in_group() * 8 + lane_index() % 8; }
__device__ inline int piece_part(int n) { return n * 4 + lane_index() / 8; }  // 64 dims
// The half of those that a lane has of a window's key: neighbours have different ones, so that their stores meet in no bank.
__device__ inline int piece_half(int second) { return (lane_index() / 8 + second) % 2; }

// 16 bytes at any address, byte by byte in few instructions: rarely needed, and in the way of others' if long.
__device__ inline uint4 load_bytes(const uint8_t* p) {
  uint4 v = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (int i = 0; i < 16; ++i) {
    v.x = v.x >> 8 | v.y << 24;
    v.y = v.y >> 8 | v.z << 24;
    v.z = v.z >> 8 | v.w << 24;
    v.w = v.w >> 8 | static_cast<uint32_t>(p[i]) << 24;
  }
  return v;
}
__device__ inline void load_piece(const uint8_t* row, bool whole, bool window, int second, int n, WidePiece& piece) {
  const uint8_t* data = row + (window ? piece_part(n) * 64 + piece_half(second) * 32 : piece_part(n) * 32);
  const uint8_t* scales = row + (window ? kWideDim + piece_part(n) * 2 + piece_half(second) : kWideDim / 2 + piece_part(n) * 4);
  if (!window && second == 1) return;
  if (whole) {
    piece.data[0] = *reinterpret_cast<const uint4*>(data);
    piece.data[1] = *reinterpret_cast<const uint4*>(data + 16);
    piece.scales = window ? *scales : *reinterpret_cast<const uint32_t*>(scales);
  } else {
    piece.data[0] = load_bytes(data);
    piece.data[1] = load_bytes(data + 16);
    piece.scales = window ? *scales : load_bytes(scales - 12).w;
  }
}
// Where piece 0 of a lane begins, or would without the swizzle of products; the others are at constant distances.
__device__ inline uint32_t piece_place(int half) {
  const auto lane = static_cast<uint32_t>(lane_index());
  return lane / 16 * 2 * kBlockBytes + swizzled_piece(static_cast<uint32_t>(piece_key(half)), lane / 8 % 2);
}
__device__ inline uint32_t eights_in_piece(uint32_t place, int n, uint32_t s, uint32_t odd) {
  return (place ^ (s % 2 * 2 + odd) * 32) + (static_cast<uint32_t>(n) * 4 + s / 2) * kBlockBytes;
}
// The bytes of bf16 of 0, 0.5, 1, 1.5, 2, 3, 4, 6 that are looked up in a register.
inline constexpr uint32_t kFp4High = 0x3f3f3f00u;
inline constexpr uint32_t kFp4Low = 0xc0800000u;
struct Fp4Bytes {
  uint32_t high, low;
};
// Columns (0, 1), (2, 3), (4, 5), (6, 7) of 8 codes, from tables of their bytes.
__device__ inline void look_up_fp4(const Fp4Bytes& bytes, uint32_t word, uint32_t (&r)[4]) {
  const uint32_t codes = word & 0x77777777u;
  const uint32_t shifted = word << 4;  // signs of even columns are the highest bits of bytes
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = half == 0 ? codes : codes >> 16;
    const uint32_t signs = __byte_perm(shifted, word, half == 0 ? 0x5140 : 0x7362);
    const uint32_t high = __byte_perm(bytes.high, 0x40404040u, four) | (signs & 0x80808080u);
    const uint32_t low = __byte_perm(bytes.low, 0xc0804000u, four);
    r[half * 2] = __byte_perm(low, high, 0x5140);
    r[half * 2 + 1] = __byte_perm(low, high, 0x7362);
  }
}
__device__ inline void store_piece(const WidePiece& piece, const Fp4Bytes& bytes, bool window, int second, int n, uint32_t place,
                                   uint8_t* keys) {
  if (window) {
    const uint32_t scale = scale_pair(piece.scales, kFp8Bias);
    const uint32_t excess = excess_pair(piece.scales, kFp8Bias);
    uint8_t* to = keys + piece_half(second) * 8;
#pragma unroll
    for (uint32_t s = 0; s < 4; ++s) {
      uint32_t r[4];
      widen_fp8(word_of(piece.data[s / 2], s % 2 * 2), word_of(piece.data[s / 2], s % 2 * 2 + 1), r);
#pragma unroll
      for (uint32_t& v : r) v = multiply_bf16x2(multiply_bf16x2(v, scale), excess);
#pragma unroll
      for (uint32_t odd = 0; odd < 2; ++odd)
        *reinterpret_cast<uint2*>(to + eights_in_piece(place, n, s, odd)) = make_uint2(r[odd], r[odd + 2]);
    }
  } else if (second == 0) {
    uint32_t scales[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) scales[i] = scale_of(i < 2 ? piece.scales : piece.scales >> 16, i % 2);
#pragma unroll
    for (uint32_t s = 0; s < 4; ++s) {
      uint32_t a[4], b[4];
      look_up_fp4(bytes, word_of(piece.data[0], s), a);
      look_up_fp4(bytes, word_of(piece.data[1], s), b);
#pragma unroll
      for (uint32_t& v : a) v = multiply_bf16x2(v, scales[s / 2]);
#pragma unroll
      for (uint32_t& v : b) v = multiply_bf16x2(v, scales[2 + s / 2]);
#pragma unroll
      for (uint32_t odd = 0; odd < 2; ++odd)
        *reinterpret_cast<uint4*>(keys + eights_in_piece(place, n, s, odd)) = make_uint4(a[odd], a[odd + 2], b[odd], b[odd + 2]);
    }
  }
}

// sums / total in place, of the lane's head i of two. Where no step leaves the range of numbers, two corrections of the product
// with the reciprocal round as a division does (Markstein), without its look at every operand; zeros keep their signs.
template <int kEights>
__device__ inline void divide_sums(float total, int i, float (&sums)[kEights][4]) {
  constexpr float kLeast = 0x1p-100f;
  constexpr float kMost = 0x1p40f;
  float least = 1;
  float most = 1;
#pragma unroll
  for (int j = 0; j < kEights; ++j) {
#pragma unroll
    for (int k = i * 2; k < i * 2 + 2; ++k) {
      const float size = fabsf(sums[j][k]);
      least = fminf(least, size == 0 ? 1.0f : size);
      most = fmaxf(most, size);
    }
  }
  const bool plain = least >= kLeast && most <= kMost && total >= 0x1p-20f && total <= 0x1p20f;
  if (__any_sync(0xffffffffu, !plain)) {
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int k = i * 2; k < i * 2 + 2; ++k) sums[j][k] /= total;
    }
    return;
  }
  const float reciprocal = 1.0f / total;
#pragma unroll
  for (int j = 0; j < kEights; ++j) {
#pragma unroll
    for (int k = i * 2; k < i * 2 + 2; ++k) {
      const float sum = sums[j][k];
      float quotient = sum * reciprocal;
      quotient = fmaf(fmaf(-total, quotient, sum), reciprocal, quotient);
      quotient = fmaf(fmaf(-total, quotient, sum), reciprocal, quotient);
      sums[j][k] = copysignf(quotient, sum);
    }
  }
}

// Half of the dims of the warp's 16 heads, from `out` on: of four eights of two products each, a lane of four has two dims of
// each product, and exchanges with its neighbour until it has one eight.
__device__ inline void write_outputs(const float (&total)[2], int own_heads, float (&sums)[32][4], bf16* out) {
  const int lane = lane_index();
  const bool odd = lane % 2 == 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = warp_in_group() * 16 + lane / 4 + i * 8;
    const bool there = head < own_heads;
    divide_sums(there ? total[i] : 1.0f, i, sums);
#pragma unroll
    for (int quarter = 0; quarter < 2; ++quarter) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int s = 0; s < 4; s += 2) {
          uint32_t own[2][2];  // of eights s and s + 1: dims 0 1 and 2 3, of the odd lane 4 5 and 6 7
#pragma unroll
          for (int k = 0; k < 2; ++k) {
#pragma unroll
            for (int product = 0; product < 2; ++product) {
              const float(&sum)[4] = sums[quarter * 16 + (s + k) * 4 + product * 2 + half];
              own[k][product] = narrow_pair(sum[i * 2], sum[i * 2 + 1]);
            }
          }
          uint32_t words[4];
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? own[0][k] : own[1][k], 1);
            words[k] = odd ? other : own[0][k];
            words[2 + k] = odd ? own[1][k] : other;
          }
          bf16* to = out + head * kWideDim + quarter * 128 + half * 64 + lane % 4 / 2 * 32 + (s + (odd ? 1 : 0)) * 8;
          if (there) *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
        }
      }
    }
  }
}

}  // namespace deepinfer::cuda
