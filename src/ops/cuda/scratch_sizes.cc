#include "ops/cuda/scratch_sizes.h"

#include <algorithm>

#include "ops/cuda/staged_layout.h"

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
  return share > 54 ? 96 : share > 42 ? 80 : share > 18 ? 64 : 32;
}

int panel_tile_inputs(const ExpertShape& shape, int64_t rows) {
  constexpr int64_t kLeastShare = 6;
  // Items of four panels of the inner dimension that keep the device busy.
  constexpr int64_t kEnoughItems = 264;
  const int64_t routed = rows * shape.topk;
  const int64_t share = routed / shape.experts;
  if (share < kLeastShare || std::min(shape.experts, routed) * (shape.inner / 128) < kEnoughItems) return 0;
  // Where each was fastest on an H200; tiles have room for the mean share and more, and cost what they hold.
  return kPanelInputs[share <= 44 ? 0 : share <= 84 ? 1 : 2];
}

namespace {
ExpertSizes sizes_of(const ExpertShape& shape, int64_t rows, int tile_inputs, int shared_inputs, bool staged) {
  ExpertSizes s;
  const int64_t routed = rows * shape.topk;
  s.pairs = routed + rows;
  s.tile_inputs = tile_inputs;
  s.shared_inputs = shared_inputs;
  s.staged = staged;
  s.wide = staged || tile_inputs > 16;
  const InputOrder order = s.wide ? InputOrder::kWideFp4 : InputOrder::kLanes;
  s.input_columns = ordered_columns(order, shape.hidden);
  s.hidden_columns = ordered_columns(order, shape.inner);
  s.input_values = rows * s.input_columns * (s.wide ? 2 : 1);
  s.hidden_values = s.pairs * s.hidden_columns;
  s.output_values = s.pairs * shape.hidden;
  s.shared_tiles = (rows + s.shared_inputs - 1) / s.shared_inputs;
  s.tile_count = std::min(shape.experts, routed) + routed / s.tile_inputs + s.shared_tiles;
  return s;
}

constexpr int kStreamedInputs = 16;
constexpr int kStreamedShared = 32;  // of the shared expert: widening FP8 is what its tiles cost

// Whether streamed kernels have enough to do, and most experts no more than a tile: where they were faster on an H200.
bool pays_streamed(const ExpertShape& shape, int64_t rows) {
  constexpr int64_t kMostShare = 14;           // those of experts_panels.cu are faster from fewer on
  constexpr int64_t kEnoughTiles = 24;         // those of four rows
  constexpr int64_t kEnoughPanels = 13 * 132;  // of 32 rows, of one matrix of all experts
  const int64_t routed = rows * shape.topk;
  const int64_t tiles = std::min(shape.experts, routed);
  return routed / shape.experts <= kMostShare && tiles >= kEnoughTiles &&
         (tiles + 1) * ((shape.inner + 31) / 32) >= kEnoughPanels;
}

}  // namespace

ExpertSizes staged_expert_sizes(const ExpertShape& shape, int64_t rows, int tile_inputs, int shared_inputs) {
  return sizes_of(shape, rows, tile_inputs, shared_inputs, true);
}

ExpertSizes panel_expert_sizes(const ExpertShape& shape, int64_t rows, int tile_inputs) {
  const int shared_inputs = staged_fp8_tile(rows, (shape.inner + kStagedHalf - 1) / kStagedHalf);
  ExpertSizes s = staged_expert_sizes(shape, rows, tile_inputs, shared_inputs);
  s.panels = true;
  return s;
}

ExpertSizes streamed_expert_sizes(const ExpertShape& shape, int64_t rows) {
  ExpertSizes s = sizes_of(shape, rows, kStreamedInputs, kStreamedShared, false);
  s.streamed = true;
  return s;
}

ExpertSizes expert_sizes(const ExpertShape& shape, int64_t rows, bool staged, bool streamed, bool panels) {
  const int panel_inputs = panels ? panel_tile_inputs(shape, rows) : 0;
  if (panel_inputs > 0) return panel_expert_sizes(shape, rows, panel_inputs);
  const int staged_inputs = staged ? staged_tile_inputs(shape, rows) : 0;
  if (streamed && staged_inputs <= kStreamedInputs && pays_streamed(shape, rows)) return streamed_expert_sizes(shape, rows);
  if (staged_inputs > 0)
    return staged_expert_sizes(shape, rows, staged_inputs, staged_fp8_tile(rows, (shape.inner + kStagedHalf - 1) / kStagedHalf));
  // Tiles as large as an expert's share of the tokens: more would be empty, less would read the weights again.
  const int64_t share = rows * shape.topk / shape.experts;
  const int inputs = share > 48 ? 128 : share > 20 ? 64 : share > 14 ? 32 : share > 10 ? 16 : 8;
  return sizes_of(shape, rows, inputs, inputs, false);
}

ExpertSizes most_expert_sizes(const ExpertShape& shape, int64_t rows, bool staged, bool streamed, bool panels) {
  ExpertSizes most = expert_sizes(shape, rows, staged, streamed, panels);
  for (int64_t r = 1; r < rows; ++r) {
    const ExpertSizes s = expert_sizes(shape, r, staged, streamed, panels);
    for (int64_t ExpertSizes::*size : {&ExpertSizes::pairs, &ExpertSizes::tile_count, &ExpertSizes::input_values,
                                       &ExpertSizes::hidden_values, &ExpertSizes::output_values}) {
      most.*size = std::max(most.*size, s.*size);
    }
  }
  return most;
}

}  // namespace deepinfer::cuda
