#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer {

/// What a sequence needs beside its pages and tokens to go on at `length` as if it had never stopped: the window rows that later
/// positions read, and the tail of an open pair (spec §3.13). Made by SequenceState::save_window; plain data, so it can be kept,
/// stored and sent. `Model::adopt_prefix` checks every field before it uses one.
struct WindowSnapshot {
  int64_t length = 0;
  int64_t encoder_window_start = 0;
  int64_t decoder_window_start = 0;  ///< == length: no decoder rows are in it
  int64_t draft_window_start = 0;    ///< of the draft stages; == length: no draft rows are in it, and drafts start poor

  // The shape of the model that it was taken from.
  int64_t layers = 0;
  int64_t first_decoder_layer = 0;
  int64_t draft_stages = 0;
  int64_t window = 0;      ///< sliding_window
  int64_t row_bytes = 0;   ///< one window row
  int64_t tail_bytes = 0;  ///< one open pair, all ratio-2 sources together

  /// Layer after layer the rows of positions [max(start, length - window + 1), length), with `start` that of the layer's half;
  /// then, at odd lengths, value and gate of position length - 1, source after source; then, draft stage after draft stage, the
  /// rows of [max(draft_window_start, length - window), length): a block sees a whole window of them.
  std::vector<uint8_t> data;

  bool has_decoder_rows() const { return decoder_window_start < length; }
  int64_t bytes() const { return static_cast<int64_t>(sizeof(*this) + data.size()); }
};

}  // namespace deepinfer
