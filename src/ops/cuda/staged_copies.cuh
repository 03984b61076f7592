#pragma once

// What a thread of the warpgroup that loads copies to shared memory (staged.cuh). Where its pieces lie is found once an item, so
// that a copy is an addition and the copy itself, and none waits for anything.

#include "ops/cuda/fragments.cuh"
#include "ops/cuda/staged_layout.h"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

/// 128 weight rows from the first on; rows behind the last one repeat it, panels behind the last panel that one.
struct StagedRows {
  const uint8_t* values;
  const uint8_t* scales;  ///< of the first row; FP8: of its block of 32
  const uint8_t* scales_end;
  int last;
  int in_block;  ///< FP8: rows of that block before the first

  __device__ StagedRows(const WeightView& w, bool fp8, int64_t first_row, int64_t last_row) {
    const int64_t groups = w.in / kScaleGroup;
    const int64_t first = min(first_row, fp8 ? last_row : last_row / kFp4PanelRows * kFp4PanelRows);
    values = w.values + first * (fp8 ? w.in : w.in / 2);
    scales = w.scales + (fp8 ? first / kScaleGroup : first) * groups;
    scales_end = w.scales + (fp8 ? (w.out + kScaleGroup - 1) / kScaleGroup : w.out) * groups;
    last = static_cast<int>(min(last_row - first, static_cast<int64_t>(kStagedHalf - 1)));
    in_block = static_cast<int>(first % kScaleGroup);
  }
};

namespace staged {

/// Of its warpgroup.
__device__ inline int thread() { return static_cast<int>(threadIdx.x) % kWarpgroup; }

/// A piece of 16 bytes of every so many-th row, chunk after chunk of the columns.
template <WeightFormat kFormat>
class WeightPieces {
  static constexpr bool kFp8 = kFormat == WeightFormat::kFp8;

 public:
  __device__ WeightPieces(const StagedRows (&half)[2], int columns) {
    const int row_bytes = kFp8 ? columns : columns / 2;
    piece_ = thread() % kPieces * 16;
    bytes_ = row_bytes - piece_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      first_[h] = half[h].values + piece_;
#pragma unroll
      for (int i = 0; i < kRounds; ++i)
        row_[h][i] =
            static_cast<uint32_t>(min(thread() / kPieces + i * kRows, half[h].last)) * static_cast<uint32_t>(row_bytes / 16);
    }
  }
  __device__ void copy(uint32_t to, int chunk) const {
    const int byte = chunk * static_cast<int>(kStagedRowBytes);
    const bool there = byte < bytes_;
    to += static_cast<uint32_t>(thread()) * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint8_t* from = first_[h] + (there ? byte : -piece_);
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        copy_weights_async(to + static_cast<uint32_t>(h * kRounds + i) * kRows * kStagedRowBytes, place_behind(from, row_[h][i]),
                           there ? 16 : 0);
      }
    }
  }

 private:
  static constexpr int kPieces = static_cast<int>(kStagedRowBytes) / 16;
  static constexpr int kRows = kWarpgroup / kPieces;  // of a round
  static constexpr int kRounds = kStagedHalf / kRows;
  const uint8_t* first_[2];
  uint32_t row_[2][kRounds];  // from there, in units of 16 bytes
  int piece_;
  int bytes_;  // of a row, from the piece on
};

/// The same of kFp4Panels: a round is a panel.
template <>
class WeightPieces<WeightFormat::kFp4Panels> {
 public:
  __device__ WeightPieces(const StagedRows (&half)[2], int columns) : columns_(columns) {
#pragma unroll
    for (int h = 0; h < 2; ++h) first_[h] = half[h].values, last_[h] = half[h].last / kFp4PanelRows;
  }
  __device__ void copy(uint32_t to, int chunk) const {
    const int groups = fp4_chunk_groups(columns_, chunk);
    const bool there = thread() % 4 < groups;
    const int from = there ? chunk * kFp4ChunkBytes + (thread() / 4 * groups + thread() % 4) * 16 : 0;
    to += static_cast<uint32_t>(thread()) * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kPanels; ++i) {
        copy_weights_async(to + static_cast<uint32_t>(h * kPanels + i) * kFp4ChunkBytes,
                           place_behind(first_[h] + from, static_cast<uint32_t>(min(i, last_[h]) * columns_)), there ? 16 : 0);
      }
    }
  }

 private:
  static constexpr int kPanels = kStagedHalf / kFp4PanelRows;
  const uint8_t* first_[2];
  int last_[2];  // panel
  int columns_;
};

/// Scale bytes, which come with the words that they lie in.
class ScaleWords {
 public:
  ScaleWords() = default;
  __device__ ScaleWords(const uint8_t* from, const uint8_t* end) {
    at_ = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
    words_ = from - at_;
    end_ = static_cast<int>(min(static_cast<int64_t>(end - words_), int64_t{1} << 30));
  }
  /// Bytes first .. first + count - 1, which are at most kStep; `first` is a multiple of kStep.
  template <int kStep>
  __device__ void copy(uint32_t slot, int first, int count) const {
    static_assert(kStep == 2 || kStep == 4);
    const int byte = kStep == 4 ? at_ : (at_ + first) % 4;
    const int word = at_ + first - byte;
    const bool two = byte + count > 4;
    if (word + 8 <= end_) {
      copy_word_async(slot, words_ + word);
      if (two) copy_word_async(slot + 4, words_ + word + 4);
    } else {
      copy_last(slot, word);
      if (two) copy_last(slot + 4, word + 4);
    }
  }

 private:
  // Of a word that may end behind the array: nothing is read there.
  __device__ void copy_last(uint32_t slot, int word) const {
    uint32_t v = 0;
#pragma unroll 1
    for (int i = 0; i < 4 && word + i < end_; ++i) v |= static_cast<uint32_t>(words_[word + i]) << 8 * i;
    store_shared(slot, v);
  }
  const uint8_t* words_;
  int at_;   // of the first byte there
  int end_;  // of the array
};

/// kFp4: those of a row of each half.
template <WeightFormat kFormat>
class ScalePieces {
 public:
  __device__ ScalePieces(const StagedRows (&half)[2], int columns) : groups_(columns / kScaleGroup) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      rows_[h] = {half[h].scales + static_cast<int64_t>(min(thread(), half[h].last)) * groups_, half[h].scales_end};
  }
  __device__ void copy(uint32_t to, int chunk) const {
    to += static_cast<uint32_t>(thread()) * kStagedScaleSlot;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      rows_[h].template copy<4>(to + static_cast<uint32_t>(h) * kStagedHalf * kStagedScaleSlot, chunk * 4,
                                min(4, groups_ - chunk * 4));
  }

 private:
  ScaleWords rows_[2];
  int groups_;
};
/// kFp4Panels: a word of a panel of each half, as in a whole chunk.
template <>
class ScalePieces<WeightFormat::kFp4Panels> {
 public:
  __device__ ScalePieces(const StagedRows (&half)[2], int columns) : columns_(columns) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      first_[h] = half[h].scales + min(thread() / kFp4PanelRows, half[h].last / kFp4PanelRows) * columns;
  }
  __device__ void copy(uint32_t to, int chunk) const {
    const int groups = fp4_chunk_groups(columns_, chunk);
    if (thread() % 4 >= groups) return;
    to += static_cast<uint32_t>(thread()) * 4;
    const int from = chunk * kFp4ChunkScales + (thread() % kFp4PanelRows / 4 * groups + thread() % 4) * 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) copy_word_async(to + static_cast<uint32_t>(h) * kStagedHalf * kStagedScaleSlot, first_[h] + from);
  }

 private:
  const uint8_t* first_[2];
  int columns_;
};
/// FP8: those of a block of 32 rows, of which a half has up to eight; most threads have none.
template <>
class ScalePieces<WeightFormat::kFp8> {
 public:
  __device__ ScalePieces(const StagedRows (&half)[2], int columns) : groups_(columns / kScaleGroup) {
    const bool second = thread() >= 8;
    const int block = thread() % 8;
    const int last = second ? half[1].in_block + half[1].last : half[0].in_block + half[0].last;
    has_ = thread() < 16 && block <= last / kScaleGroup;
    if (has_) {
      row_ = {(second ? half[1].scales : half[0].scales) + static_cast<int64_t>(block) * groups_,
              second ? half[1].scales_end : half[0].scales_end};
    }
  }
  __device__ void copy(uint32_t to, int chunk) const {
    if (has_)
      row_.template copy<2>(to + static_cast<uint32_t>(thread()) * kStagedScaleSlot, chunk * 2, min(2, groups_ - chunk * 2));
  }

 private:
  ScaleWords row_{};
  bool has_ = false;
  int groups_;
};

/// A piece of 16 bytes of every sixteenth input, 64 columns at a time. Inputs behind the last one repeat it: their products have
/// sums of their own, which nobody reads.
template <int kInputs>
class InputPieces {
 public:
  template <typename Work>
  __device__ InputPieces(const Work& work, const typename Work::Item& item) : rounds_((item.count + kRows - 1) / kRows) {
    first_ = work.inputs(item) + thread() % kPieces * 8;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      row_[i] = static_cast<uint32_t>(work.input(item, min(thread() / kPieces + i * kRows, item.count - 1)) / 8);
      forget_uses(row_[i]);  // or it would be computed at every copy
    }
  }
  __device__ void copy(uint32_t to, int column) const {
    to += swizzled_piece(static_cast<uint32_t>(thread() / kPieces), static_cast<uint32_t>(thread() % kPieces));
    const bf16* from = first_ + column;
#pragma unroll
    for (int i = 0; i < kRounds; ++i)
      copy_async_if(i < rounds_, to + static_cast<uint32_t>(i) * kRows * kSwizzledRow, place_behind(from, row_[i]));
  }

 private:
  static constexpr int kPieces = kStagedColumns / 8;
  static constexpr int kRows = kWarpgroup / kPieces;  // of a round; they have one place in eight rows, so one swizzle
  static constexpr int kRounds = kInputs / kRows;
  const bf16* first_;
  uint32_t row_[kRounds];  // from there, in units of 16 bytes
  int rounds_;
};

}  // namespace staged
}  // namespace deepinfer::cuda
