#include "ops/cuda/scratch_sizes.h"

#include <algorithm>

namespace deepinfer::cuda {

ExpertSizes expert_sizes(const ExpertShape& shape, int64_t rows) {
  ExpertSizes s;
  const int64_t routed = rows * shape.topk;
  s.pairs = routed + rows;
  // Tiles as large as an expert's share of the tokens: more would be empty, less would read the weights again.
  const int64_t share = routed / shape.experts;
  s.tile_inputs = share > 48 ? 128 : share > 20 ? 64 : share > 14 ? 32 : share > 10 ? 16 : 8;
  s.wide = s.tile_inputs > 16;
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

ExpertSizes most_expert_sizes(const ExpertShape& shape, int64_t rows) {
  ExpertSizes most = expert_sizes(shape, rows);
  for (int64_t r = 1; r < rows; ++r) {
    const ExpertSizes s = expert_sizes(shape, r);
    for (int64_t ExpertSizes::*size : {&ExpertSizes::pairs, &ExpertSizes::tile_count, &ExpertSizes::input_values,
                                       &ExpertSizes::hidden_values, &ExpertSizes::output_values}) {
      most.*size = std::max(most.*size, s.*size);
    }
  }
  return most;
}

}  // namespace deepinfer::cuda
