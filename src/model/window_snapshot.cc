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
  snapshot.layers = layers_;
  snapshot.first_decoder_layer = first_decoder_layer_;
  snapshot.window = window_;
  snapshot.row_bytes = window_row_bytes_;
  snapshot.tail_bytes = tail_bytes();
  snapshot.data.clear();
  snapshot.data.reserve(static_cast<size_t>(layers_ * (window_ - 1) * window_row_bytes_ + tail_bytes()));
}

void SequenceState::save_layer(int64_t layer, const uint8_t* fresh, int64_t fresh_start, WindowSnapshot& snapshot) const {
  const int64_t start = layer < first_decoder_layer_ ? snapshot.encoder_window_start : snapshot.decoder_window_start;
  const WindowRows rows{windows_.data() + layer * window_capacity_ * window_row_bytes_, window_capacity_, fresh, fresh_start,
                        window_row_bytes_};
  for (int64_t p = snapshot.length - snapshot_rows(snapshot.length, start); p < snapshot.length; ++p)
    snapshot.data.insert(snapshot.data.end(), rows.row(p), rows.row(p) + window_row_bytes_);
}

void SequenceState::save_window(WindowSnapshot& snapshot) const {
  begin_save(length_, snapshot);
  snapshot.decoder_window_start = decoder_rows_from_;
  for (int64_t layer = 0; layer < layers_; ++layer) save_layer(layer, nullptr, length_, snapshot);
  if (length_ % 2 == 0) return;
  for (size_t s = 0; s < layout_->sources.size(); ++s) {
    if (layout_->sources[s].ratio != 2) continue;
    const auto* pair = reinterpret_cast<const uint8_t*>(tails_.data() + tail_at(static_cast<int64_t>(s), length_ - 1));
    snapshot.data.insert(snapshot.data.end(), pair, pair + 2 * head_dim_ * static_cast<int64_t>(sizeof(float)));
  }
}

Status SequenceState::check_snapshot(const WindowSnapshot& s) const {
  const auto differs = [](const char* field, int64_t value, int64_t own) {
    return Status::InvalidArgument("window snapshot: {} is {}, the model's is {}", field, value, own);
  };
  if (s.layers != layers_) return differs("layers", s.layers, layers_);
  if (s.first_decoder_layer != first_decoder_layer_) {
    return differs("first_decoder_layer", s.first_decoder_layer, first_decoder_layer_);
  }
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
  const int64_t want = (first_decoder_layer_ * snapshot_rows(s.length, s.encoder_window_start) +
                        (layers_ - first_decoder_layer_) * snapshot_rows(s.length, s.decoder_window_start)) *
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
  const uint8_t* from = snapshot.data.data();
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const int64_t start = layer < first_decoder_layer_ ? encoder_window_start_ : decoder_rows_from_;
    for (int64_t p = length_ - snapshot_rows(length_, start); p < length_; ++p, from += window_row_bytes_) {
      std::memcpy(window_ring(layer) + p % window_capacity_ * window_row_bytes_, from, static_cast<size_t>(window_row_bytes_));
    }
  }
  if (length_ % 2 == 0) return Status::Ok();
  const int64_t pair = 2 * head_dim_ * static_cast<int64_t>(sizeof(float));
  for (size_t s = 0; s < layout_->sources.size(); ++s) {
    if (layout_->sources[s].ratio != 2) continue;
    std::memcpy(tail_kv(static_cast<int64_t>(s), length_ - 1), from, static_cast<size_t>(pair));
    from += pair;
  }
  return Status::Ok();
}

}  // namespace deepinfer
