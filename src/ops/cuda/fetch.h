#pragma once

// Weights asked for ahead of the products that read them (Backend::will_need), into the second-level cache.

#include <array>
#include <cstdint>
#include <span>

#include "ops/cuda/launch.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// More rows keep the memory busy themselves.
inline constexpr int64_t kMostFetchingRows = 8;

/// How much of what was named is asked for, and how fast: loads of the kernels at work are not to queue behind it.
struct FetchPace {
  int64_t bytes = 0;         ///< at most; 0: nothing
  int64_t bytes_per_us = 0;  ///< 0: all at once
  int blocks = 0;            ///< a warp each
  int64_t begin_ns = 0;      ///< after the kernel's own begin
};

class FetchPaces {
 public:
  FetchPace& operator[](ComingOperators what) { return paces_[static_cast<size_t>(what)]; }
  const FetchPace& operator[](ComingOperators what) const { return paces_[static_cast<size_t>(what)]; }

 private:
  std::array<FetchPace, 3> paces_;
};

/// For measurements the environment may set some of them, as in DEEPINFER_CUDA_FETCH=queries=28:2800:66:0,output=0,experts=24
/// (MiB, GB/s, blocks, ns).
FetchPaces fetch_paces();

/// What one kernel asks for, piece by piece, and when.
struct FetchList {
  static constexpr int kMostStretches = 8;
  static constexpr int64_t kPiece = 8192;
  struct Stretch {
    const uint8_t* begin = nullptr;  ///< at a multiple of 16, as `bytes` are
    int64_t bytes = 0;
    int64_t first_piece = 0;
  };
  Stretch stretches[kMostStretches];
  int stretch_count = 0;
  int64_t pieces = 0;
  int64_t begin_cycles = 0;
  int64_t piece_cycles = 0;  ///< of a block, from one piece to its next
  int blocks = 0;
};
FetchList fetch_list(std::span<const WeightBytes> weights, const FetchPace& pace);

/// Reads and writes nothing.
void fetch_weights(const FetchList& list, LaunchStream& stream);

}  // namespace deepinfer::cuda
