#include "ops/cuda/scratch_sizes.h"

#include <algorithm>

namespace deepinfer::cuda {

int64_t split_pass_rows(int64_t parts) {
  constexpr int64_t kRows = 64;
  return parts > 0 ? kMostSplitFloats / (parts * kRows * 16) * kRows : 0;
}
int64_t split_scratch(int64_t rows, int64_t parts) {
  const int64_t at_once = std::min({rows, kMostSplitRows, split_pass_rows(parts)});
  return (at_once + 7) / 8 * 8 * 16 * parts;
}

int staged_tile_inputs(const ExpertShape& shape, int64_t rows) {
  // Blocks of 128 rows of the inner dimension, one a multiprocessor: fewer than that leave the device idle.
  constexpr int64_t kEnoughItems = 264;
  // With less than this, of which most kernels for tiles of up to 16 make no second tile, those are faster.
  constexpr int64_t kLeastShare = 12;
  const int64_t routed = rows * shape.topk;
  const int64_t tiles = std::min(shape.experts, routed) + 1;
  const int64_t share = routed / shape.experts;
  if (tiles * ((shape.inner + 127) / 128) < kEnoughItems || share <= kLeastShare) return 0;
  // Room for the mean share and about three standard deviations more: what a tile costs follows its own size, not the room.
  return share > 84 ? 128 : share > 68 ? 112 : share > 54 ? 96 : share > 42 ? 80 : share > 18 ? 64 : 32;
}

int streamed_warp_panels(const ExpertShape& shape, int64_t rows) {
  constexpr int64_t kMostShare = 14;               // most experts have one tile then
  constexpr int64_t kEnoughWarps = 4 * 132;        // or the latency of memory counts more than its rate
  constexpr int64_t kEnoughOfTwoPanels = 6 * 132;  // half of what a GPU holds at a time
  const int64_t routed = rows * shape.topk;
  if (routed / shape.experts > kMostShare) return 0;
  const int64_t panels = (std::min(shape.experts, routed) + 1) * ((shape.inner + 31) / 32);  // of one matrix of all experts
  return panels >= kEnoughOfTwoPanels ? 2 : 2 * panels >= kEnoughWarps ? 1 : 0;
}

namespace {
ExpertSizes sizes_of(const ExpertShape& shape, int64_t rows, int tile_inputs, bool staged) {
  ExpertSizes s;
  const int64_t routed = rows * shape.topk;
  s.pairs = routed + rows;
  s.tile_inputs = tile_inputs;
  s.staged = staged;
  s.wide = staged || tile_inputs > 16;
  const InputOrder order = s.wide ? InputOrder::kWideFp4 : InputOrder::kLanes;
  s.input_columns = ordered_columns(order, shape.hidden);
  s.hidden_columns = ordered_columns(order, shape.inner);
  s.input_values = rows * s.input_columns * (s.wide ? 2 : 1);
  s.hidden_values = s.pairs * s.hidden_columns;
  s.output_values = s.pairs * shape.hidden;
  s.shared_tiles = (rows + s.tile_inputs - 1) / s.tile_inputs;
  s.tile_count = std::min(shape.experts, routed) + routed / s.tile_inputs + s.shared_tiles;
  return s;
}

constexpr int kStreamedInputs = 16;

}  // namespace

ExpertSizes staged_expert_sizes(const ExpertShape& shape, int64_t rows, int tile_inputs) {
  return sizes_of(shape, rows, tile_inputs, true);
}

ExpertSizes streamed_expert_sizes(const ExpertShape& shape, int64_t rows, int warp_panels) {
  ExpertSizes s = sizes_of(shape, rows, kStreamedInputs, false);
  s.warp_panels = warp_panels;
  return s;
}

ExpertSizes expert_sizes(const ExpertShape& shape, int64_t rows, bool staged, bool streamed) {
  const int staged_inputs = staged ? staged_tile_inputs(shape, rows) : 0;
  const int panels = streamed && staged_inputs <= kStreamedInputs ? streamed_warp_panels(shape, rows) : 0;
  if (panels > 0) return streamed_expert_sizes(shape, rows, panels);
  if (staged_inputs > 0) return staged_expert_sizes(shape, rows, staged_inputs);
  // Tiles as large as an expert's share of the tokens: more would be empty, less would read the weights again.
  const int64_t share = rows * shape.topk / shape.experts;
  return sizes_of(shape, rows, share > 48 ? 128 : share > 20 ? 64 : share > 14 ? 32 : share > 10 ? 16 : 8, false);
}

ExpertSizes most_expert_sizes(const ExpertShape& shape, int64_t rows, bool staged, bool streamed) {
  ExpertSizes most = expert_sizes(shape, rows, staged, streamed);
  for (int64_t r = 1; r < rows; ++r) {
    const ExpertSizes s = expert_sizes(shape, r, staged, streamed);
    for (int64_t ExpertSizes::*size : {&ExpertSizes::pairs, &ExpertSizes::tile_count, &ExpertSizes::input_values,
                                       &ExpertSizes::hidden_values, &ExpertSizes::output_values}) {
      most.*size = std::max(most.*size, s.*size);
    }
  }
  return most;
}

}  // namespace deepinfer::cuda
