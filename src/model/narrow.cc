// Decoder-side replay (spec §8.3): which rows of a step go on behind the last KV source, and leaving the others behind.

#include <algorithm>
#include <cstring>

#include "model/model.h"
#include "model/step.h"

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

void Model::narrow(Step& step) {
  Buffers& b = *step.b;
  if (std::none_of(b.spans.begin(), b.spans.end(), [](const StepSpan& s) { return s.state->decoder_start() > s.start; })) return;

  const ModelConfig& c = config_;
  const int64_t width = c.hidden_size * static_cast<int64_t>(c.dspark_target_layer_ids.size());
  std::fill(b.kept_row.begin(), b.kept_row.end(), -1);
  size_t spans = 0;
  int64_t kept = 0;
  // On the host every row moves towards the front, and rows keep their order, so nothing is overwritten before it has moved.
  const auto move = [&](auto* data, int64_t row_size, int64_t to, int64_t from, int64_t count) {
    std::memmove(data + to * row_size, data + from * row_size, static_cast<size_t>(count * row_size) * sizeof(*data));
  };
  const auto copy = [&](auto& to, const auto& from, int64_t row_size, int64_t to_row, int64_t from_row, int64_t count) {
    b.memory->copy(to.data() + to_row * row_size, from.data() + from_row * row_size,
                   count * row_size * static_cast<int64_t>(sizeof(*from.data())));
  };
  b.kept_x.reserve_discard(b.x.size());
  b.kept_pre.reserve_discard(b.pre.size());
  b.kept_u.reserve_discard(b.u.size());
  for (const StepSpan& whole : b.spans) {
    StepSpan span = whole;
    span.start = std::clamp(span.state->decoder_start(), whole.start, whole.end());
    const int64_t dropped = span.start - whole.start;
    b.memory->fill(b.main_hidden.data() + whole.first_row * width, 0, dropped * width * static_cast<int64_t>(sizeof(bf16)));
    span.count -= dropped;
    if (span.count == 0) continue;
    const int64_t from = whole.first_row + dropped;
    span.first_row = kept;
    span.input_row += dropped;
    copy(b.kept_x, b.x, c.hc_mult * c.hidden_size, kept, from, span.count);
    copy(b.kept_pre, b.pre, c.hc_mult, kept, from, span.count);
    copy(b.kept_u, b.u, c.hidden_size, kept, from, span.count);
    for (SharedBuffer<float>* t : {&b.plain_cos, &b.plain_sin, &b.compressed_cos, &b.compressed_sin}) {
      move(t->host(), step.rope_pairs, kept, from, span.count);
    }
    move(b.positions.data(), 1, kept, from, span.count);
    if (step.image != nullptr) move(b.image.host(), 1, kept, from, span.count);
    for (int64_t i = 0; i < span.count; ++i) b.kept_row[static_cast<size_t>(from + i)] = static_cast<int32_t>(kept + i);
    kept += span.count;
    b.spans[spans++] = span;
  }
  // Table rows of the Engram layers that are still to come lie slot after slot.
  for (int64_t slot = 0; slot < static_cast<int64_t>(c.engram_layer_ids.size()); ++slot) {
    for (size_t s = 0; s < spans; ++s) {
      const StepSpan& span = b.spans[s];
      move(b.engram_rows.host(), c.engram_columns(), slot * kept + span.first_row, slot * step.rows + span.input_row, span.count);
    }
  }
  b.spans.resize(spans);
  b.positions.resize(static_cast<size_t>(kept));
  std::swap(b.x, b.kept_x);
  std::swap(b.pre, b.kept_pre);
  std::swap(b.u, b.kept_u);
  for (SharedBuffer<float>* t : {&b.plain_cos, &b.plain_sin, &b.compressed_cos, &b.compressed_sin})
    t->upload(kept * step.rope_pairs);
  b.engram_rows.upload(kept * c.engram_columns() * static_cast<int64_t>(c.engram_layer_ids.size()));
  if (step.image != nullptr) b.image.upload(kept);
  step.rows = kept;
  step.live = kept;
  step.narrowed = true;
}

}  // namespace deepinfer
