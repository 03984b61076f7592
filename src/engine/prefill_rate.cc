#include "engine/prefill_rate.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/model_executor.h"

namespace deepinfer {

Result<double> measure_row_layer_seconds(Model& model, int64_t rows) {
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((i * 7919 + 13) % static_cast<size_t>(model.config().vocab_size));
  double best = std::numeric_limits<double>::infinity();
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
    const int64_t row_layers = output.encoder_row_layers + output.decoder_row_layers;
    best = std::min(best, (step_clock() - begin) / static_cast<double>(std::max<int64_t>(row_layers, 1)));
  }
  return best;
}

}  // namespace deepinfer
