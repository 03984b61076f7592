#include "model/window_snapshot.h"

#include <algorithm>
#include <cstring>

#include "model/sequence_state.h"

namespace deepinfer {

int64_t SequenceState::snapshot_rows(int64_t length, int64_t start) const {
  return std::min(length - start, window_ - 1);  // what position `length` reads; later ones read less of it
}

void SequenceState::begin_save(int64_t position, WindowSnapshot& snapshot) const {
  snapshot.length = position;
  snapshot.encoder_window_start = encoder_window_start_;
  snapshot.decoder_window_start = decoder_start_ > length_ ? std::min(decoder_start_, position) : decoder_rows_from_;
  snapshot.draft_window_start = position;
  snapshot.layers = layers_;
  snapshot.first_decoder_layer = first_decoder_layer_;
  snapshot.draft_stages = draft_stages_;
  snapshot.window = window_;
  snapshot.row_bytes = window_row_bytes_;
  snapshot.tail_bytes = tail_bytes();
  snapshot.data.clear();
  snapshot.data.reserve(
      static_cast<size_t>((layers_ * (window_ - 1) + draft_stages_ * window_) * window_row_bytes_ + tail_bytes()));
}

/// First position whose row of a layer's or a stage's ring is in the snapshot.
int64_t SequenceState::first_saved(int64_t ring, const WindowSnapshot& snapshot) const {
  if (ring >= layers_) return std::max(snapshot.draft_window_start, snapshot.length - window_);
  const int64_t start = ring < first_decoder_layer_ ? snapshot.encoder_window_start : snapshot.decoder_window_start;
  return snapshot.length - snapshot_rows(snapshot.length, start);
}

void SequenceState::save_layer(int64_t layer, const uint8_t* fresh, int64_t fresh_start, WindowSnapshot& snapshot) const {
  save_rows(layer, first_saved(layer, snapshot), fresh, fresh_start, snapshot);
}

void SequenceState::save_layers(WindowSnapshot& snapshot, HostBuffer<uint8_t>& copy) const {
  save_rings(0, layers_, snapshot, copy);
}

void SequenceState::save_draft_stages(WindowSnapshot& snapshot, HostBuffer<uint8_t>& copy) const {
  save_rings(layers_, draft_stages_, snapshot, copy);
}

void SequenceState::save_rings(int64_t first, int64_t count, WindowSnapshot& snapshot, HostBuffer<uint8_t>& copy) const {
  const int64_t ring_bytes = window_capacity_ * window_row_bytes_;
  copy.reserve_discard(count * ring_bytes);
  memory_->download(copy.data(), windows_.data() + first * ring_bytes, count * ring_bytes);
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t* ring = copy.data() + r * ring_bytes;
    for (int64_t p = first_saved(first + r, snapshot); p < snapshot.length;) {
      const int64_t slot = p % window_capacity_;
      const int64_t rows = std::min(snapshot.length - p, window_capacity_ - slot);
      snapshot.data.insert(snapshot.data.end(), ring + slot * window_row_bytes_, ring + (slot + rows) * window_row_bytes_);
      p += rows;
    }
  }
}

void SequenceState::save_rows(int64_t ring, int64_t first, const uint8_t* fresh, int64_t fresh_start,
                              WindowSnapshot& snapshot) const {
  const WindowRows rows{windows_.data() + ring * window_capacity_ * window_row_bytes_, window_capacity_, fresh, fresh_start,
                        window_row_bytes_};
  // Rows that lie one after the other go together: the ring's up to where it wraps, and the step's own.
  for (int64_t p = first; p < snapshot.length;) {
    int64_t end = snapshot.length;
    if (p < fresh_start) end = std::min({end, fresh_start, p - p % window_capacity_ + window_capacity_});
    append(rows.row(p), (end - p) * window_row_bytes_, snapshot);
    p = end;
  }
}

void SequenceState::append(const void* from, int64_t bytes, WindowSnapshot& snapshot) const {
  const size_t at = snapshot.data.size();
  snapshot.data.resize(at + static_cast<size_t>(bytes));
  memory_->download(snapshot.data.data() + at, from, bytes);
}

void SequenceState::begin_save_draft(int64_t first, WindowSnapshot& snapshot) const { snapshot.draft_window_start = first; }

void SequenceState::save_draft_stage(int64_t stage, const uint8_t* fresh, int64_t fresh_start, WindowSnapshot& snapshot) const {
  save_rows(layers_ + stage, first_saved(layers_ + stage, snapshot), fresh, fresh_start, snapshot);
}

void SequenceState::save_window(WindowSnapshot& snapshot) const {
  begin_save(length_, snapshot);
  snapshot.decoder_window_start = decoder_rows_from_;
  for (int64_t layer = 0; layer < layers_; ++layer) save_layer(layer, nullptr, length_, snapshot);
  for (size_t s = 0; length_ % 2 == 1 && s < layout_->sources.size(); ++s) {
    if (layout_->sources[s].ratio != 2) continue;
    append(tails_.data() + tail_at(static_cast<int64_t>(s), length_ - 1), 2 * head_dim_ * static_cast<int64_t>(sizeof(float)),
           snapshot);
  }
  if (draft_end_ < length_ || draft_start_ == draft_end_) return;
  begin_save_draft(draft_start_, snapshot);
  for (int64_t stage = 0; stage < draft_stages_; ++stage) save_draft_stage(stage, nullptr, length_, snapshot);
}

Status SequenceState::check_snapshot(const WindowSnapshot& s) const {
  const auto differs = [](const char* field, int64_t value, int64_t own) {
    return Status::InvalidArgument("window snapshot: {} is {}, the model's is {}", field, value, own);
  };
  if (s.layers != layers_) return differs("layers", s.layers, layers_);
  if (s.first_decoder_layer != first_decoder_layer_) {
    return differs("first_decoder_layer", s.first_decoder_layer, first_decoder_layer_);
  }
  if (s.draft_stages != draft_stages_) return differs("draft_stages", s.draft_stages, draft_stages_);
  if (s.window != window_) return differs("window", s.window, window_);
  if (s.row_bytes != window_row_bytes_) return differs("row_bytes", s.row_bytes, window_row_bytes_);
  if (s.tail_bytes != tail_bytes()) return differs("tail_bytes", s.tail_bytes, tail_bytes());
  if (s.length < 0) return Status::OutOfRange("window snapshot: length is {}", s.length);
  if (s.encoder_window_start < 0 || s.encoder_window_start > s.length) {
    return Status::OutOfRange("window snapshot: encoder_window_start is {}, it must lie in [0, {}]", s.encoder_window_start,
                              s.length);
  }
  if (s.decoder_window_start < s.encoder_window_start || s.decoder_window_start > s.length) {
    return Status::OutOfRange("window snapshot: decoder_window_start is {}, it must lie in [{}, {}]", s.decoder_window_start,
                              s.encoder_window_start, s.length);
  }
  if (s.draft_window_start < s.encoder_window_start || s.draft_window_start > s.length) {
    return Status::OutOfRange("window snapshot: draft_window_start is {}, it must lie in [{}, {}]", s.draft_window_start,
                              s.encoder_window_start, s.length);
  }
  const int64_t want = (first_decoder_layer_ * snapshot_rows(s.length, s.encoder_window_start) +
                        (layers_ - first_decoder_layer_) * snapshot_rows(s.length, s.decoder_window_start) +
                        draft_stages_ * std::min(s.length - s.draft_window_start, window_)) *
                           window_row_bytes_ +
                       (s.length % 2 == 1 ? tail_bytes() : 0);
  if (static_cast<int64_t>(s.data.size()) != want) {
    return Status::InvalidArgument("window snapshot: {} bytes of data at length {}, {} are needed", s.data.size(), s.length,
                                   want);
  }
  return Status::Ok();
}

Status SequenceState::restore_window(const WindowSnapshot& snapshot, std::span<const int32_t> history) {
  DI_RETURN_IF_ERROR(check_snapshot(snapshot));
  DI_RETURN_IF_ERROR(begin(snapshot.length, snapshot.length, history));
  encoder_window_start_ = snapshot.encoder_window_start;
  decoder_rows_from_ = snapshot.decoder_window_start;
  draft_start_ = snapshot.draft_window_start;
  const uint8_t* from = snapshot.data.data();
  const auto restore_ring = [&](int64_t ring, int64_t first) {
    for (int64_t p = first; p < length_;) {
      const int64_t end = std::min(length_, p - p % window_capacity_ + window_capacity_);
      memory_->upload(window_ring(ring) + p % window_capacity_ * window_row_bytes_, from, (end - p) * window_row_bytes_);
      from += (end - p) * window_row_bytes_;
      p = end;
    }
  };
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const int64_t start = layer < first_decoder_layer_ ? encoder_window_start_ : decoder_rows_from_;
    restore_ring(layer, length_ - snapshot_rows(length_, start));
  }
  const int64_t pair = 2 * head_dim_ * static_cast<int64_t>(sizeof(float));
  for (size_t s = 0; length_ % 2 == 1 && s < layout_->sources.size(); ++s) {
    if (layout_->sources[s].ratio != 2) continue;
    memory_->upload(tail_kv(static_cast<int64_t>(s), length_ - 1), from, pair);
    from += pair;
  }
  for (int64_t stage = 0; stage < draft_stages_; ++stage)
    restore_ring(layers_ + stage, std::max(draft_start_, length_ - window_));
  return Status::Ok();
}

}  // namespace deepinfer
