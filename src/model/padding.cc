// Steps for backends that replay what they have recorded. Few shapes come again and again if rows are filled up to one of few
// counts and every list has one length for each count. A row that is added is the last row once more, and what it computes goes
// nowhere, so rows that are there have the bits that they have without it.

#include <algorithm>

#include "model/model.h"
#include "model/step.h"
#include "ops/shape_buckets.h"

namespace deepinfer {
namespace {

/// Larger steps keep the device busy longer than the host.
constexpr int64_t kMostReplayedRows = 512;

}  // namespace

bool Model::replays(int64_t rows, const StepObserver* observer) const {
  return options_.replay && backend_->replays() && observer == nullptr && rows <= kMostReplayedRows;
}

bool Model::can_replay(const StepBatch& batch, const StepObserver* observer) const {
  // What waits or reads back runs as it is.
  return replays(static_cast<int64_t>(batch.tokens.size()), observer) && batch.before_source == nullptr &&
         batch.embedding_rows.empty() && std::all_of(batch.sequences.begin(), batch.sequences.end(), [&](const StepSequence& s) {
           return s.save == nullptr || saves_behind(*s.state, s.save_at, s.state->length() + s.count);
         });
}

bool Model::saves_behind(const SequenceState& state, int64_t position, int64_t end) const {
  return !backend_->memory().is_host() && state.keeps_window(position, end);
}

void Model::pad_inputs(const Step& step, StepInputs& in) const {
  if (in.live == in.rows) return;
  const auto repeat = [&](auto* data, int64_t width) { repeat_last_row(data, width, in.live, in.rows); };
  in.positions.resize(static_cast<size_t>(in.rows), in.positions.back());
  for (SharedBuffer<float>* t : in.rotations()) repeat(t->host(), step.rope_pairs);
  if (step.has_image) repeat(in.image.host(), 1);
  for (int64_t slot = 0; slot < static_cast<int64_t>(config_.engram_layer_ids.size()); ++slot)
    repeat(in.engram_rows.host() + slot * in.rows * config_.engram_columns(), config_.engram_columns());
}

void Model::pad_copies(const Step& step, int64_t count) {
  std::vector<DeviceMemory::RowCopy>& copies = step.b->copies;
  if (step.replayed) copies.resize(std::max(copies.size(), static_cast<size_t>(count)));
}

}  // namespace deepinfer
