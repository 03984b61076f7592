#include "engine/prefill_rate.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/model_executor.h"

namespace deepinfer {
namespace {

struct Measured {
  int64_t row_layers = 0;
  double first = 0;  ///< seconds of the first pass
  double best = std::numeric_limits<double>::infinity();
};

Result<Measured> measure(Model& model, int64_t rows) {
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((i * 7919 + 13) % static_cast<size_t>(model.config().vocab_size));
  Measured measured;
  // The first one finds weights and buffers cold; a device that records steps does so the second time.
  const int passes = model.backend().replays() ? 3 : 2;
  for (int pass = 0; pass < passes; ++pass) {
    const std::unique_ptr<SequenceState> state = model.new_sequence();
    const StepSequence sequence{state.get(), rows, nullptr, -1};
    StepBatch batch;
    batch.tokens = tokens;
    batch.sequences = {&sequence, 1};
    const double begin = step_clock();
    DI_ASSIGN_OR_RETURN(const StepOutput output, model.forward(batch));
    model.backend().memory().synchronize();
    const double seconds = step_clock() - begin;
    measured.row_layers = output.encoder_row_layers + output.decoder_row_layers;
    if (pass == 0) measured.first = seconds;
    measured.best = std::min(measured.best, seconds);
  }
  return measured;
}

}  // namespace

PrefillCost prefill_cost_of(double few_seconds, int64_t few, double many_seconds, int64_t many) {
  PrefillCost cost;
  if (many <= 0) return cost;
  cost.average_seconds = many_seconds / static_cast<double>(many);
  if (many > few) cost.row_layer_seconds = std::max(0.0, (many_seconds - few_seconds) / static_cast<double>(many - few));
  cost.row_layer_seconds = std::min(cost.row_layer_seconds, cost.average_seconds);
  cost.step_seconds = many_seconds - cost.row_layer_seconds * static_cast<double>(many);
  return cost;
}

Result<PrefillCost> measure_prefill_cost(Model& model, int64_t rows) {
  DI_ASSIGN_OR_RETURN(const Measured many, measure(model, rows));
  DI_ASSIGN_OR_RETURN(const Measured few, measure(model, std::max<int64_t>(1, rows / 16)));
  PrefillCost cost = prefill_cost_of(few.best, few.row_layers, many.best, many.row_layers);
  // By then everything is warm, so that the first pass shows what launches take.
  if (model.backend().replays()) cost.direct_seconds = std::max(0.0, few.first - few.best);
  return cost;
}

}  // namespace deepinfer
