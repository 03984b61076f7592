#pragma once

// Which rows of a prompt run, and through which layers (SWA bounded replay, spec/backbone §8). Pure arithmetic on lengths.

#include <cstdint>
#include <string>

#include "checkpoint/model_config.h"
#include "deepinfer/options.h"

namespace deepinfer {

/// What replay needs to know of a model.
struct ReplayGeometry {
  int64_t window = 0;  ///< sliding window, the query's own position included
  int64_t layers = 0;
  int64_t first_decoder_layer = 0;  ///< = layers: the model has no part that only the end of the prompt needs
  int64_t exact_distance = 0;       ///< tokens before a position that determine every window there: (window - 1) x layers

  static ReplayGeometry Of(const ModelConfig& config);
};

/// How one sequence is computed. Fixed when it is admitted and kept for its whole life, preemptions included: results depend on
/// it.
struct ReplayPlan {
  ReplayMode mode = ReplayMode::kExact;
  int64_t hit = 0;            ///< positions whose global rows come from the cache; a multiple of the page size
  int64_t from = 0;           ///< first position that runs
  int64_t decoder_start = 0;  ///< positions below it leave out the decoder layers
  bool restored = false;      ///< windows at `from` come from a snapshot; then from == hit
  bool exact_pages = true;    ///< pages that this sequence computes equal those of a cold exact run

  int64_t replayed() const { return hit - from; }
  std::string to_string() const;
};

/// What is known when a sequence is admitted.
struct ReplayInput {
  ReplayMode mode = ReplayMode::kExact;
  DecoderReplay decoder = DecoderReplay::kOff;
  int64_t keep = 0;       ///< prompt tokens at the end that run the decoder layers in compact mode
  int64_t prompt = 0;     ///< tokens
  int64_t hit = 0;        ///< below `prompt`
  bool hit_exact = true;  ///< the hit pages equal those of a cold exact run
};

/// What a window snapshot at the end of the hit offers.
struct SnapshotInput {
  int64_t length = 0;
  int64_t decoder_window_start = 0;  ///< decoder rows in it start here
  bool encoder_exact = false;
  bool decoder_exact = false;
};

/// Without a snapshot.
ReplayPlan plan_replay(const ReplayGeometry& geometry, const ReplayInput& input);
/// Whether the snapshot can stand in for the replay: exact requests need exact rows, bounded ones decoder rows where the suffix
/// is too short to bring its own.
bool snapshot_serves(const ReplayGeometry& geometry, const ReplayInput& input, const SnapshotInput& snapshot);
/// With a snapshot that serves.
ReplayPlan plan_restore(const ReplayGeometry& geometry, const ReplayInput& input, const SnapshotInput& snapshot);

}  // namespace deepinfer
