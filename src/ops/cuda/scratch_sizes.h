#pragma once

// What operators of the CUDA backend need of scratch, in elements: said here once, for their launches and for the memory plan.
// Numbers alone; what they are for is said where they are used.

#include <cstdint>

namespace deepinfer::cuda {

/// Where the columns of an input row lie, so that what a lane multiplies at a time lies together: for the kernels of segments.cuh
/// each eight as 0 4 1 5 2 6 3 7; for those of wide.cuh the 16 of each product one after the other.
enum class InputOrder : uint8_t { kLanes, kWideFp8, kWideFp4 };
/// Room for a row; what is behind the last column is zero.
inline int64_t ordered_columns(InputOrder order, int64_t columns) {
  return order == InputOrder::kLanes ? columns : (columns + 127) / 128 * 128;
}

/// bf16 values of the quantised or ordered inputs of an FP8 product: `groups` parts of `columns` a row.
inline int64_t fp8_scratch(int64_t rows, int64_t groups, int64_t columns) {
  return rows * groups * ordered_columns(InputOrder::kWideFp8, columns);
}

inline constexpr int64_t kFewRows = 16;    ///< steps that kernels of their own are for (feature few-rows)
inline constexpr int64_t kFewQueries = 8;  ///< those of attention: from 16 on the plain ones are faster (H200: 37 to 49 us)

inline constexpr int64_t kSegmentColumns = 512;  ///< of a chain of a product
inline int64_t segment_count(int64_t columns) { return (columns + kSegmentColumns - 1) / kSegmentColumns; }

/// Steps that products_split.cu is for (feature split), and a product cut as it does it: `parts` of 16 weight rows times a
/// segment.
inline constexpr int64_t kMostSplitRows = 256;
inline constexpr int64_t kMostSplitFloats = int64_t{12} << 20;  ///< sums of all segments at a time
/// Input rows of a launch, a multiple of 64; 0: the sums of 64 have no room.
int64_t split_pass_rows(int64_t parts);
/// Floats of a step of `rows` rows or fewer, in launches of split_pass_rows.
int64_t split_scratch(int64_t rows, int64_t parts);

/// Weights that are widened at a time, at most (feature widened).
inline constexpr int64_t kMostWidened = int64_t{48} << 20;

/// Floats of the router: logits, or of few rows the sums of every segment.
inline int64_t route_scratch(int64_t rows, int64_t experts, int64_t hidden) {
  const int64_t few = rows < kFewRows ? rows : kFewRows;
  const int64_t parts = few * segment_count(hidden);
  return (parts > rows ? parts : rows) * experts;
}

inline constexpr int64_t kMixSlice = 512;  ///< columns of a chain of hyper-connection products
inline int64_t mix_slices_of(int64_t streams, int64_t hidden) { return (streams * hidden + kMixSlice - 1) / kMixSlice; }
/// Floats: sums of each slice, of all coefficients and of the squares.
inline int64_t hyper_mix_scratch(int64_t streams, int64_t hidden, int64_t rows) {
  return rows * mix_slices_of(streams, hidden) * ((2 + streams) * streams + 1);
}

/// Of a layer's experts.
struct ExpertShape {
  int64_t experts = 0;
  int64_t topk = 0;
  int64_t hidden = 0;
  int64_t inner = 0;
};
/// How a step's pairs of a token and an expert are cut into tiles, and what that takes.
struct ExpertSizes {
  int64_t pairs = 0;
  int64_t tile_count = 0;    ///< at most, the shared expert's with them
  int64_t shared_tiles = 0;  ///< of them
  int tile_inputs = 8;       ///< pairs of a tile at most
  int shared_inputs = 8;     ///< the same of the shared expert's
  bool wide = false;         ///< warpgroups multiply: inputs are in the orders of wide.cuh
  bool staged = false;       ///< and weights come by shared memory (staged.cuh); tiles of an expert are of equal sizes
  bool panels = false;       ///< staged, but the routed experts are multiplied from panels (experts_panels.cu)
  bool streamed = false;     ///< warps multiply panels of weights, from rings of their own (streamed.cuh)
  int64_t input_columns = 0;
  int64_t hidden_columns = 0;
  int64_t input_values = 0;  ///< quantised inputs, and if wide those of the shared expert behind them
  int64_t hidden_values = 0;
  int64_t output_values = 0;
};
/// Pairs of a tile of the staged kernels (staged.cuh) at most, for an expert's mean share; 0: there is too little work for them.
int staged_tile_inputs(const ExpertShape& shape, int64_t rows);
/// Of those kernels, with any sizes of tiles that staged_layout.h has for FP4, and for FP8 of the shared expert.
ExpertSizes staged_expert_sizes(const ExpertShape& shape, int64_t rows, int tile_inputs, int shared_inputs);
/// Pairs of a tile of the kernels of experts_panels.cu at most: of those for few, for some and for many of an expert.
inline constexpr int kPanelInputs[] = {48, 88, 160};
/// The one for an expert's mean share; 0: there is too little work for them.
int panel_tile_inputs(const ExpertShape& shape, int64_t rows);
/// Of those kernels, with tiles of one of kPanelInputs.
ExpertSizes panel_expert_sizes(const ExpertShape& shape, int64_t rows, int tile_inputs);
/// Of the streamed kernels (streamed.cuh).
ExpertSizes streamed_expert_sizes(const ExpertShape& shape, int64_t rows);
/// `staged`: with them where there is work enough (CudaFeatures::staged). `streamed`: with those where experts have a few tokens
/// each (CudaFeatures::streamed), before staged ones. `panels`: with those of experts_panels.cu (CudaFeatures::panels, if the
/// weights suit them) between the two.
ExpertSizes expert_sizes(const ExpertShape& shape, int64_t rows, bool staged = false, bool streamed = false, bool panels = false);
/// The largest of each size over steps of 1 to `rows` rows: fewer rows may have more tiles. What is no amount is that of `rows`.
ExpertSizes most_expert_sizes(const ExpertShape& shape, int64_t rows, bool staged = false, bool streamed = false,
                              bool panels = false);

}  // namespace deepinfer::cuda
