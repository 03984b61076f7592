// Room for the largest steps: each is prepared as if it came, and rehearsed by the backend.

#include <algorithm>
#include <numeric>

#include "model/model.h"
#include "model/step.h"
#include "ops/shape_buckets.h"

namespace deepinfer {

void Model::reserve(std::span<const std::unique_ptr<SequenceState>> states, int64_t rows, int64_t length, int64_t logit_rows,
                    int64_t draft_length) {
  if (backend_->memory().is_host() || states.empty()) return;
  Buffers& b = *buffers_;
  const auto count = static_cast<int64_t>(states.size());
  // A prompt that narrows, as long as the step allows, beside one token of everybody else.
  std::vector<StepSequence> sequences;
  std::vector<DraftSequence> drafts;
  int64_t given = 0;
  for (const auto& state : states) {
    const int64_t others = count - static_cast<int64_t>(sequences.size()) - 1;
    const int64_t own = std::clamp<int64_t>(rows - given - others, 1, length);
    given += own;
    state->pretend(length - own);
    if (layout_.page_bytes > 0) {  // for the step's own rows, too
      const std::vector<uint8_t*> pages(static_cast<size_t>((length + kPagePositions - 1) / kPagePositions - state->page_count()),
                                        state->window_ring(0));
      state->append_pages(pages);
    }
    sequences.push_back({state.get(), own});
    drafts.push_back({state.get(), 0, draws() ? std::optional(DrawRow{}) : std::nullopt});
  }
  const std::vector<int32_t> tokens(static_cast<size_t>(given), 0);
  std::vector<int32_t> wanted(static_cast<size_t>(given));
  std::iota(wanted.begin(), wanted.end(), 0);
  const auto run = [&](std::span<const StepSequence> some, int64_t count_of_rows, bool replayed) {
    const std::span<const int32_t> all = std::span<const int32_t>(wanted).first(static_cast<size_t>(count_of_rows));
    StepBatch batch;
    batch.tokens = std::span<const int32_t>(tokens).first(all.size());
    batch.sequences = some;
    batch.logit_rows = all.last(std::min(all.size(), static_cast<size_t>(std::max<int64_t>(logit_rows, 1))));
    Step step;
    step.b = &b;
    step.replayed = replayed;
    prepare(batch, step);
    StepOutput output;
    backend_->rehearse([&] { run_layers(batch, step, output); });
    for (const auto& state : states) state->history().clear();
  };
  const bool replayed = options_.replay && backend_->replays();
  run(sequences, given, replayed);
  // Kernels that few rows get may want more room than those for many.
  for (int64_t few = 1; few < sequences[0].count; few *= 2) {
    const StepSequence start{states[0].get(), few};
    run({&start, 1}, few, replayed);
  }
  reserve_inputs(b.kept, row_bucket(given));
  b.rings.reserve_discard(states[0]->layer_ring_bytes());
  if (sequences[0].count > 1) {
    DI_CHECK(states[0]->set_decoder_start(length - 1).ok(), "no decoder start at {}", length - 1);
    run(sequences, given, replayed);
  }
  b.drawn.reserve_discard(row_bucket(std::min(given, std::max<int64_t>(logit_rows, 1))));

  if (has_draft() && draft_length > 0) {
    b.draft_taps.reserve_discard(row_bucket(given) * config_.hidden_size *
                                 static_cast<int64_t>(config_.dspark_target_layer_ids.size()));
    const DraftRound round{.sequences = drafts, .length = draft_length, .lanes = row_bucket(count), .drawn = draws() ? count : 0};
    Step step;
    step.b = &b;
    step.replayed = replayed;
    prepare_draft(step, round);
    backend_->rehearse([&] {
      run_draft(step, round);
      for (int64_t k = 0; k < draft_length; ++k) draft_position(round, k);
      draft_confidences(round);
      const LinearOutput main{weights_.draft.main_proj, b.u.data()};
      backend_->linear_fp8(b.draft_taps.data(), given, {&main, 1});
    });
  }
  for (const auto& state : states) state->reset();
}

}  // namespace deepinfer
