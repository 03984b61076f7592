#include "engine/replay_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer {
namespace {

bool compact(const ReplayGeometry& g, const ReplayInput& input) {
  return input.mode == ReplayMode::kBounded && input.decoder == DecoderReplay::kCompact && g.first_decoder_layer < g.layers;
}

/// Decoder layers run from here, never before the first row that runs at all.
int64_t decoder_start(const ReplayGeometry& g, const ReplayInput& input, int64_t from) {
  if (!compact(g, input)) return 0;
  const int64_t start = std::max<int64_t>(0, input.prompt - input.keep);
  return start <= from ? (from > 0 ? from : 0) : start;
}

}  // namespace

ReplayGeometry ReplayGeometry::Of(const ModelConfig& config) {
  ReplayGeometry g;
  g.window = config.sliding_window;
  g.layers = config.num_hidden_layers;
  g.first_decoder_layer = config.kv_source_layer_ids.empty() ? g.layers : config.kv_source_layer_ids.back();
  g.exact_distance = (g.window - 1) * g.layers;
  return g;
}

std::string ReplayPlan::to_string() const {
  return fmt::format("{} hit {} from {} decoder {}{}{}", replay_mode_name(mode), hit, from, decoder_start,
                     restored ? " restored" : "", exact_pages ? "" : " inexact");
}

ReplayPlan plan_replay(const ReplayGeometry& g, const ReplayInput& input) {
  ReplayPlan plan;
  plan.mode = input.mode;
  plan.hit = input.hit;
  const int64_t distance = input.mode == ReplayMode::kExact ? g.exact_distance : g.window;
  plan.from = std::max<int64_t>(0, input.hit - distance);
  plan.decoder_start = decoder_start(g, input, plan.from);
  // Encoder layers see everything when the replay starts at 0 or goes back far enough.
  plan.exact_pages = input.hit_exact && (plan.from == 0 || input.hit - plan.from >= g.exact_distance);
  return plan;
}

bool snapshot_serves(const ReplayGeometry& g, const ReplayInput& input, const SnapshotInput& snapshot) {
  if (snapshot.length != input.hit) return false;
  if (input.mode == ReplayMode::kExact) return snapshot.encoder_exact && snapshot.decoder_exact;
  if (g.first_decoder_layer == g.layers) return true;
  if (compact(g, input) && input.prompt - input.hit >= input.keep) return true;
  return snapshot.decoder_window_start <= std::max<int64_t>(0, input.hit - g.window + 1);
}

ReplayPlan plan_restore(const ReplayGeometry& g, const ReplayInput& input, const SnapshotInput& snapshot) {
  ReplayPlan plan;
  plan.mode = input.mode;
  plan.hit = input.hit;
  plan.from = input.hit;
  plan.restored = true;
  plan.decoder_start = decoder_start(g, input, plan.from);
  plan.exact_pages = input.hit_exact && snapshot.encoder_exact;
  return plan;
}

}  // namespace deepinfer
