// Decoder-side replay (spec §8.3): which rows of a step go on behind the last KV source, and leaving the others behind.

#include <algorithm>
#include <cstring>

#include "model/model.h"
#include "model/step.h"
#include "ops/shape_buckets.h"

namespace deepinfer {

Status Model::check_logit_rows(const StepBatch& batch) const {
  int64_t row = 0;
  for (const StepSequence& s : batch.sequences) {
    const int64_t dropped = std::clamp<int64_t>(s.state->decoder_start() - s.state->length(), 0, s.count);
    for (int32_t r : dropped > 0 ? batch.logit_rows : std::span<const int32_t>()) {
      if (r < row || r >= row + dropped) continue;
      return Status::InvalidArgument("step: logits of row {}, position {}, which is below decoder_start {}", r,
                                     s.state->length() + r - row, s.state->decoder_start());
    }
    row += s.count;
  }
  return Status::Ok();
}

void Model::prepare_narrowing(Step& step) {
  Buffers& b = *step.b;
  StepInputs& all = b.all;
  StepInputs& kept = b.kept;
  step.narrows =
      std::any_of(all.spans.begin(), all.spans.end(), [](const StepSpan& s) { return s.state->decoder_start() > s.start; });
  if (!step.narrows) return;

  const ModelConfig& c = config_;
  kept.spans.clear();
  kept.positions.clear();
  kept.live = 0;
  std::fill(b.kept_row.begin(), b.kept_row.end(), -1);
  for (const StepSpan& whole : all.spans) {
    StepSpan span = whole;
    span.start = std::clamp(span.state->decoder_start(), whole.start, whole.end());
    const int64_t dropped = span.start - whole.start;
    span.count -= dropped;
    if (span.count == 0) continue;
    span.first_row = kept.live;
    span.input_row += dropped;
    for (int64_t i = 0; i < span.count; ++i) {
      kept.positions.push_back(span.start + i);
      b.kept_row[static_cast<size_t>(span.input_row + i)] = static_cast<int32_t>(kept.live + i);
    }
    kept.live += span.count;
    kept.spans.push_back(span);
  }
  kept.rows = step.replayed ? row_bucket(kept.live) : kept.live;
  reserve_inputs(kept, kept.rows);
  const auto take = [](const auto* from, auto* to, int64_t width, const StepSpan& span) {
    std::copy_n(from + span.input_row * width, span.count * width, to + span.first_row * width);
  };
  for (const StepSpan& span : kept.spans) {
    for (size_t i = 0; i < all.rotations().size(); ++i)
      take(all.rotations()[i]->host(), kept.rotations()[i]->host(), step.rope_pairs, span);
    if (step.has_image) take(all.image.host(), kept.image.host(), 1, span);
    for (int64_t slot = 0; slot < static_cast<int64_t>(c.engram_layer_ids.size()); ++slot) {
      const int64_t columns = c.engram_columns();
      take(all.engram_rows.host() + slot * all.rows * columns, kept.engram_rows.host() + slot * kept.rows * columns, columns,
           span);
    }
  }
  pad_inputs(step, kept);
  b.kept_x.reserve_discard(b.x.size());
  b.kept_pre.reserve_discard(b.pre.size());
  b.kept_u.reserve_discard(b.u.size());
}

void Model::narrow(Step& step) {
  if (!step.narrows) return;
  Buffers& b = *step.b;
  step.use(b.kept);
  const auto take = [&](auto& to, const auto& from, int64_t width) {
    b.copies.clear();
    for (const StepSpan& span : b.kept.spans) {
      for (int64_t i = 0; i < span.count; ++i)
        b.copies.push_back({to.data() + (span.first_row + i) * width, from.data() + (span.input_row + i) * width});
    }
    // Rows that are added are the last one once more, here too: their content would otherwise be an older step's.
    for (int64_t r = b.kept.live; r < b.kept.rows; ++r)
      b.copies.push_back({to.data() + r * width, b.copies[static_cast<size_t>(b.kept.live - 1)].from});
    b.memory->copy_rows(b.copies, width * static_cast<int64_t>(sizeof(*from.data())));
  };
  if (step.rows > 0) {
    take(b.kept_x, b.x, config_.hc_mult * config_.hidden_size);
    take(b.kept_pre, b.pre, config_.hc_mult);
    take(b.kept_u, b.u, config_.hidden_size);
  }
  swap_kept(b);
}

void Model::swap_kept(Buffers& b) {
  std::swap(b.x, b.kept_x);
  std::swap(b.pre, b.kept_pre);
  std::swap(b.u, b.kept_u);
}

}  // namespace deepinfer
