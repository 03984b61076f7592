#pragma once

// Values of attention_wide.cu: half of the warpgroups widen them into shared memory, stage after stage, for those that multiply.

#include "ops/cuda/attention_wide_scores.cuh"

namespace deepinfer::cuda {

inline constexpr int kSteps = 16;  ///< keys of one product

/// Values go through shared memory in stages: first all keys by kStageDims dims, then by the next ones.
__device__ inline int stages_of_pass(int count) { return (count + kStageKeys - 1) / kStageKeys; }

// What a lane widens of a stage: 32 dims of one key. A warp has eight keys and half of the stage's dims; the keys are the lanes
// that store together, so they meet in no bank.
template <typename Shape>
__device__ inline int key_in_stage() {
  return (thread_index() / kWarp - Shape::kMultiplyWarps) % (kStageKeys / 8) * 8 + thread_index() % kWarp % 8;
}
template <typename Shape>
__device__ inline int dim_in_stage() {
  return (thread_index() / kWarp - Shape::kMultiplyWarps) / (kStageKeys / 8) * 128 + thread_index() % kWarp / 8 * 32;
}
struct ValuePieces {
  uint4 data[2];
  uint32_t scales;  // window: one byte; compressed: two
  bool window;
};
// The lane's pieces of one stage after another. Keys behind the last one repeat it.
template <typename Shape>
class ValueLoader {
 public:
  __device__ ValueLoader(const typename Shape::Shared& s, int window, int count, bool whole)
      : rows_(s.values.rows),
        window_(window),
        count_(count),
        keys_(stages_of_pass(count) * kStageKeys),
        whole_(whole),
        key_(key_in_stage<Shape>()),
        dim_(dim_in_stage<Shape>()) {}
  __device__ void next(ValuePieces& v) {
    const int key = min(key_, count_ - 1);
    const uint8_t* row = rows_[key];
    v.window = !Shape::kCompressed || key < window_;
    if (v.window) {
      v.data[0] = load_row(row + dim_, whole_);
      v.data[1] = load_row(row + dim_ + 16, whole_);
      v.scales = row[kWideDim + dim_ / kScaleGroup];
    } else {
      v.data[0] = load_row(row + dim_ / 2, whole_);
      v.scales = load_scales(row + kWideDim / 2 + dim_ / kCacheScaleGroup, whole_);
    }
    key_ += kStageKeys;
    if (key_ >= keys_) key_ -= keys_, dim_ += Shape::kStageDims;
  }

 private:
  const uint8_t* const* rows_;
  int window_, count_, keys_;
  bool whole_;
  int key_, dim_;
};

// In each eight dims in the order 0 4 1 5 2 6 3 7, as both formats are widened most easily; outputs are put in order instead.
template <typename Shape>
__device__ inline void widen_pieces(const ValuePieces& from, uint32_t (&v)[4][4]) {
  if (!Shape::kCompressed || from.window) {
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      const uint4& data = from.data[eight / 2];
      widen_window(word_of(data, eight % 2 * 2), word_of(data, eight % 2 * 2 + 1), from.scales, v[eight]);
    }
  } else {
#pragma unroll
    for (int eight = 0; eight < 4; ++eight)
      widen_compressed(word_of(from.data[0], eight), scale_of(from.scales, eight / 2), v[eight]);
  }
}

// The warpgroups that bring values to shared memory. `pieces`: of the first stages; as many stages are always on their way. That
// the matrix units see what is stored is up to those that multiply: the fence would wait for the values on their way, too.
template <typename Shape>
__device__ inline void widen_stages(typename Shape::Shared& s, int count, ValueLoader<Shape>& loader,
                                    ValuePieces (&pieces)[kValueStages]) {
  const int stages = stages_of_pass(count) * (kWideDim / Shape::kStageDims);
  const int lane = thread_index() % kWarp;
  uint8_t* to = s.values.stages[0] + dim_in_stage<Shape>() / 64 * kValueBlock;
  uint32_t at[4];
#pragma unroll
  for (int piece = 0; piece < 4; ++piece)
    at[piece] = swizzled_piece(static_cast<uint32_t>(key_in_stage<Shape>()),
                               static_cast<uint32_t>(dim_in_stage<Shape>() % 64 / 8 + piece));
  uint32_t parity = 1;
#pragma unroll 1
  for (int number = 0; number < stages; number += kValueStages, parity ^= 1) {
#pragma unroll
    for (int stage = 0; stage < kValueStages; ++stage) {
      if (number + stage >= stages) break;
      uint32_t v[4][4];
      widen_pieces<Shape>(pieces[stage], v);
      if (number + stage + kValueStages < stages) loader.next(pieces[stage]);
      if (number > 0) barrier_wait(&s.empty[stage], parity);
#pragma unroll
      for (int piece = 0; piece < 4; ++piece)
        *reinterpret_cast<uint4*>(to + stage * Shape::kStageBytes + at[piece]) =
            make_uint4(v[piece][0], v[piece][1], v[piece][2], v[piece][3]);
      __syncwarp();
      if (lane == 0) barrier_arrive(&s.full[stage]);
    }
  }
}

// sums / total in place, of the lane's head i of two. Where no step leaves the range of numbers, two corrections of the product
// with the reciprocal round as a division does (Markstein), without its look at every operand; zeros keep their signs.
__device__ inline void divide_sums(float total, int i, float (&sums)[kGroupDims / 8][4]) {
  constexpr float kLeast = 0x1p-100f;
  constexpr float kMost = 0x1p40f;
  float least = 1;
  float most = 1;
#pragma unroll
  for (int j = 0; j < kGroupDims / 8; ++j) {
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
    for (int j = 0; j < kGroupDims / 8; ++j) {
#pragma unroll
      for (int k = i * 2; k < i * 2 + 2; ++k) sums[j][k] /= total;
    }
    return;
  }
  const float reciprocal = 1.0f / total;
#pragma unroll
  for (int j = 0; j < kGroupDims / 8; ++j) {
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

// Outputs of the warp's 16 heads, kGroupDims from `out` on. Columns are dims in the order of widen_pieces: a lane of four has
// dims t and t + 4 of each eight, and exchanges one with its neighbour.
template <typename Shape>
__device__ inline void write_outputs(const typename Shape::Shared& s, int first_head, int own_heads,
                                     float (&sums)[kGroupDims / 8][4], bf16* out) {
  const int lane = thread_index() % kWarp;
  const int t = lane % 4;
  const bool odd = t % 2 == 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = first_head + lane / 4 + i * 8;
    const bool there = head < own_heads;
    divide_sums(there ? s.totals[head] : 1.0f, i, sums);
    bf16* row = out + head * kWideDim + (odd ? t + 3 : t);
#pragma unroll
    for (int j = 0; j < kGroupDims / 8; ++j) {
      const uint32_t own = narrow_pair(sums[j][i * 2], sums[j][i * 2 + 1]);
      const uint32_t other = __shfl_xor_sync(0xffffffffu, own, 1);
      const uint32_t pair = __byte_perm(own, other, odd ? 0x3276 : 0x5410);
      if (there) *reinterpret_cast<uint32_t*>(row + j * 8) = pair;
    }
  }
}

// The warpgroups that multiply values: 64 heads by 128 of a stage's dims each. `out`: the row's first head.
template <typename Shape>
__device__ inline void multiply_stages(typename Shape::Shared& s, int group, int count, int own_heads, bf16* out) {
  const int lane = thread_index() % kWarp;
  const int warp = thread_index() % kWarpgroup / kWarp;
  const int steps = (count + kSteps - 1) / kSteps;
  const int share = (steps + kWideQuarters - 1) / kWideQuarters;
  const auto* p = reinterpret_cast<const bf16*>(s.scores[warp * 16 + lane % 16]) + lane / 16 * 8;
  const uint64_t values =
      swizzled_matrix(shared_address(s.values.stages[0]) + static_cast<uint32_t>(group) * (kGroupDims / 64) * kValueBlock,
                      kEightRows, kValueBlock);
  constexpr uint32_t kUnit = 16;  // of addresses in descriptors
  int stage = kValueStages - 1;
  uint32_t parity = 1;
#pragma unroll 1
  for (int pass = 0; pass < kWideDim / Shape::kStageDims; ++pass) {
    float sums[kGroupDims / 8][4];
#pragma unroll
    for (auto& eight : sums) {
#pragma unroll
      for (float& sum : eight) sum = -0.0f;  // changes nothing that is added to it
    }
#pragma unroll 1
    for (int quarter = 0; quarter < kWideQuarters; ++quarter) {
      const int begin = min(quarter * share, steps);
      const int end = min(begin + share, steps);
      float c[kGroupDims / 8][4] = {};
      uint32_t a[2][4];  // double: the units read one while the other is loaded
      if (begin < end) load_matrices(a[0], p + begin * kSteps);
#pragma unroll 1
      for (int first = begin; first < end; first += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int step = first + i;
          if (step >= end) break;
          const uint32_t second = static_cast<uint32_t>(step) % 2;  // of the stage's two
          const int before = stage;
          if (second == 0) {
            stage = stage + 1 < kValueStages ? stage + 1 : 0;
            if (stage == 0) parity ^= 1;
            barrier_wait(&s.full[stage], parity);
            show_shared_memory();  // what others stored
          }
          begin_products();
          multiply_rows<kGroupDims, true>(
              c, a[i], values + (static_cast<uint32_t>(stage) * Shape::kStageBytes + second * kSteps * kSwizzledRow) / kUnit,
              true);
          commit_products();
          wait_products<1>();  // the stage before is read no more, nor the other probabilities
          if (second == 0 && step > begin && lane == 0) barrier_arrive(&s.empty[before]);
          if (step + 1 < end) load_matrices(a[1 - i], p + (step + 1) * kSteps);
        }
      }
      wait_products<0>();
      settle(c);
      if (begin < end && (end % 2 == 0 || end == steps) && lane == 0) barrier_arrive(&s.empty[stage]);
#pragma unroll
      for (int j = 0; j < kGroupDims / 8; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[j][k] += c[j][k];
      }
    }
    write_outputs<Shape>(s, warp * 16, own_heads, sums, out + pass * Shape::kStageDims + group * kGroupDims);
  }
}

}  // namespace deepinfer::cuda
