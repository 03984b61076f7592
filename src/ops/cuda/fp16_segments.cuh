#pragma once

// Products of FP8 weights and few rows in fp16, with the bits that bf16 gives them. E4M3 becomes fp16 in one instruction for two
// codes, where bf16 takes eight; its scales go to the inputs, of which there are fewer. A chain of products does not change but
// for a power of two if all of its inputs do, so inputs of a segment are brought to where fp16 has its exponents, and the sums
// back from there. Where that is not exact, for values too far apart, the segment is multiplied in bf16.

#include "ops/cuda/fp16_instructions.cuh"
#include "ops/cuda/half_panels.cuh"
#include "ops/cuda/panel_ring.cuh"

namespace deepinfer::cuda {

/// Inputs of a segment are those that lie in shared memory times 2^place; kNotFp16: those are bf16.
inline constexpr int kNotFp16 = 1 << 20;

namespace fp16_segments {

/// Exponents of inputs in shared memory: the largest, and how far below it the others are. Weights' scales may move them by
/// kScales and more, and less than kScales, before fp16 has no more of them.
inline constexpr int kTop = 12;
inline constexpr int kBelow = 22;
inline constexpr uint32_t kScalesUp = 3;
inline constexpr uint32_t kScalesDown = 4;
/// Rounded inputs are codes times 2^kCodesUp, and those of groups with smaller scales, kScalesApart times two at most, less: so
/// that the largest code times the weights' scales is below 2^16, and the smallest no less than 2^-24.
inline constexpr int kCodesUp = 4;
inline constexpr uint32_t kScalesApart = 15;

}  // namespace fp16_segments

/// A segment of an input row as a lane has it, 16 columns each, to be put into shared memory in the columns' order; returns its
/// place. For the whole warp; zeros behind the last column.
__device__ inline int place_segment(uint4 (&v)[2]) {
  using namespace fp16_segments;
  uint32_t not_largest = 0xffffffffu, smallest = 0xffffffffu;  // magnitudes; zeros are no smallest
#pragma unroll
  for (const uint4& eight : v) {
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t magnitude = words[i / 2] >> i % 2 * 16 & 0x7fff;
      not_largest = min(not_largest, ~magnitude);
      smallest = min(smallest, magnitude - 1);
    }
  }
  const uint32_t largest = ~__reduce_min_sync(0xffffffffu, not_largest);
  smallest = __reduce_min_sync(0xffffffffu, smallest) + 1;
  const auto top = static_cast<int>(largest >> 7);
  if (largest == 0) return 0;
  if (top < 60 || top > 190 || static_cast<int>(smallest >> 7) < top - kBelow) return kNotFp16;
  const float factor = __uint_as_float(static_cast<uint32_t>(127 + kTop + 127 - top) << 23);
#pragma unroll
  for (uint4& eight : v) {
    float f[8];
    widen_eight(eight, f);
    eight = make_uint4(narrow_fp16(f[0] * factor, f[1] * factor), narrow_fp16(f[2] * factor, f[3] * factor),
                       narrow_fp16(f[4] * factor, f[5] * factor), narrow_fp16(f[6] * factor, f[7] * factor));
  }
  return top - 127 - kTop;
}
/// The same, rounded to E4M3 times a power of two: two lanes have a group of scales.
__device__ inline int place_rounded_segment(uint4 (&v)[2]) {
  using namespace fp16_segments;
  float f[2][8];
  float amax = fmaxf(widen_eight(v[1], f[1]), widen_eight(v[0], f[0]));
  amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
  const uint32_t scale = fp8_scale_bits(amax);  // 105 and more
  const float inverse = __uint_as_float((254 - min(scale, 254u)) << 23);
  uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* own = f[i / 2] + i % 2 * 4;
    codes[i] = e4m3_pair_bits(own[0] * inverse, own[1] * inverse) | e4m3_pair_bits(own[2] * inverse, own[3] * inverse) << 16;
  }
  const bool zeros = ((codes[0] | codes[1] | codes[2] | codes[3]) & 0x7f7f7f7fu) == 0;
  const uint32_t largest = ~__reduce_min_sync(0xffffffffu, zeros ? 0xffffffffu : ~scale);
  const uint32_t smallest = __reduce_min_sync(0xffffffffu, zeros ? 0xffffffffu : scale);
  if (largest > 190 || (largest > kScalesApart && smallest < largest - kScalesApart)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 r = round_eight(f[half], e8m0_value(scale));
      v[half] = make_uint4(__byte_perm(r.x, r.y, 0x5410), __byte_perm(r.z, r.w, 0x5410), __byte_perm(r.x, r.y, 0x7632),
                           __byte_perm(r.z, r.w, 0x7632));
    }
    return kNotFp16;
  }
  const uint32_t factor = zeros ? 0 : (15 + kCodesUp + scale - largest) * 0x04000400u;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    v[half] = make_uint4(multiply_fp16x2(fp16_of_fp8<false>(codes[half * 2]), factor),
                         multiply_fp16x2(fp16_of_fp8<true>(codes[half * 2]), factor),
                         multiply_fp16x2(fp16_of_fp8<false>(codes[half * 2 + 1]), factor),
                         multiply_fp16x2(fp16_of_fp8<true>(codes[half * 2 + 1]), factor));
  return largest == 0 ? 0 : static_cast<int>(largest) - 127 - kCodesUp;
}

/// Eight of its columns, as bf16 has them.
__device__ inline uint4 placed_bf16(const uint4& v, int place) {
  if (place == kNotFp16) return v;
  const float factor = __uint_as_float(static_cast<uint32_t>(127 + place) << 23);
  const auto pair = [&](uint32_t word) {
    return narrow_pair(widen_fp16(static_cast<uint16_t>(word)) * factor, widen_fp16(static_cast<uint16_t>(word >> 16)) * factor);
  };
  return make_uint4(pair(v.x), pair(v.y), pair(v.z), pair(v.w));
}

/// The chain of a segment and half a panel of weights.
class Fp16Chain {
 public:
  /// Adds stage `stage`, a constant, of the segment. `row`: the lane's input row and first columns of the stage, in shared
  /// memory. kInterleaved: which columns meet, as in fragments.cuh.
  template <bool kInterleaved>
  __device__ void add(const RingStage& now, int stage, uint32_t row, int lane) {
    constexpr uint32_t kOne = 0x04000400;  // one more, as exponents of two fp16
    if (stage == 0) {
      first_ = now.scales & 0xff;
      bias_ = 15 * kOne - first_ * kOne;
      least_ = (first_ - fp16_segments::kScalesDown) * 0x01010101;
    }
    far_ |= (now.scales - least_) & 0xf8f8f8f8u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t factor = now.scale(half, lane) * kOne + bias_;
      const uint4& g = now.chunks[half].rows[0];
      const uint4& h = now.chunks[half].rows[1];
      const uint32_t upper[4] = {g.x, g.y, g.z, g.w};
      const uint32_t lower[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const uint4 v = load_shared(row + static_cast<uint32_t>(half * chunk_columns(WeightFormat::kFp8) + pair * 8) * 2);
        const uint32_t x[4] = {multiply_fp16x2(v.x, factor), multiply_fp16x2(v.y, factor), multiply_fp16x2(v.z, factor),
                               multiply_fp16x2(v.w, factor)};
        const uint32_t u0 = upper[pair * 2], u1 = upper[pair * 2 + 1], l0 = lower[pair * 2], l1 = lower[pair * 2 + 1];
        if constexpr (kInterleaved) {
          const uint32_t a0[4] = {fp16_of_fp8<false>(u0), fp16_of_fp8<false>(l0), fp16_of_fp8<false>(u1), fp16_of_fp8<false>(l1)};
          mma_fp16(sums_, a0, x[0], x[2]);
          const uint32_t a1[4] = {fp16_of_fp8<true>(u0), fp16_of_fp8<true>(l0), fp16_of_fp8<true>(u1), fp16_of_fp8<true>(l1)};
          mma_fp16(sums_, a1, x[1], x[3]);
        } else {
          const uint32_t a0[4] = {fp16_of_fp8<false>(u0), fp16_of_fp8<false>(l0), fp16_of_fp8<true>(u0), fp16_of_fp8<true>(l0)};
          mma_fp16(sums_, a0, x[0], x[1]);
          const uint32_t a1[4] = {fp16_of_fp8<false>(u1), fp16_of_fp8<false>(l1), fp16_of_fp8<true>(u1), fp16_of_fp8<true>(l1)};
          mma_fp16(sums_, a1, x[2], x[3]);
        }
      }
    }
  }
  /// The sums, if they are what bf16 gives: false otherwise. `places`: of the lane's two input rows, 0 of those that are not
  /// there. For the whole warp.
  __device__ bool finish(const int (&places)[2], float (&c)[1][4]) const {
    bool exact = far_ == 0 && first_ >= 32 && first_ <= 130;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int power = places[r] + static_cast<int>(first_) - 127;
      exact = exact && power >= -80 && power <= 80;  // kNotFp16 is not
      const float factor = __uint_as_float(static_cast<uint32_t>(127 + (exact ? power : 0)) << 23);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float v = sums_[r + i * 2];
        c[0][r + i * 2] = v * factor;
        exact = exact && v == v;  // weights that are no numbers, or larger than they should be
      }
    }
    return !__any_sync(0xffffffffu, !exact);
  }

 private:
  float sums_[4] = {};
  uint32_t first_ = 0;  // scale
  uint32_t bias_ = 0;
  uint32_t least_ = 0;  // scales that fit, one less than that and a bit
  uint32_t far_ = 0;    // some scale does not fit
};

}  // namespace deepinfer::cuda
