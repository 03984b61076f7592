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

int64_t Model::replayed_rows(const StepBatch& batch, const StepObserver* observer) const {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  if (!options_.replay || !backend_->replays() || observer != nullptr || rows > kMostReplayedRows) return 0;
  // What waits, reads back or narrows runs as it is.
  if (batch.before_source != nullptr || !batch.embedding_rows.empty()) return 0;
  for (const StepSequence& s : batch.sequences) {
    if (s.save != nullptr || s.state->decoder_start() > s.state->length()) return 0;
  }
  return row_bucket(rows);
}

void Model::pad_rows(Step& step) {
  Buffers& b = *step.b;
  const ModelConfig& c = config_;
  const int64_t last = step.live - 1;
  const auto repeat = [&](auto* data, int64_t width) {
    for (int64_t r = step.live; r < step.rows; ++r) std::copy_n(data + last * width, width, data + r * width);
  };
  b.tokens.resize(static_cast<size_t>(step.rows), b.tokens.back());
  b.positions.resize(static_cast<size_t>(step.rows), b.positions.back());
  for (SharedBuffer<float>* t : {&b.plain_cos, &b.plain_sin, &b.compressed_cos, &b.compressed_sin})
    repeat(t->host(), step.rope_pairs);
  if (step.image != nullptr) repeat(b.image.host(), 1);
  for (int64_t slot = 0; slot < static_cast<int64_t>(c.engram_layer_ids.size()); ++slot)
    repeat(b.engram_rows.host() + slot * step.rows * c.engram_columns(), c.engram_columns());
}

void Model::pad_copies(const Step& step, int64_t count) {
  std::vector<DeviceMemory::RowCopy>& copies = step.b->copies;
  if (step.replayed) copies.resize(std::max(copies.size(), static_cast<size_t>(count)));
}

}  // namespace deepinfer
