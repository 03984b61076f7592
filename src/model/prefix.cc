// Sequences that begin with a cached prefix (spec §8.2).

#include "model/model.h"
#include "model/step.h"

namespace deepinfer {

Status Model::check_prefix(std::span<const int32_t> tokens, std::span<const uint8_t> image_mask) const {
  if (static_cast<int64_t>(tokens.size()) > config_.max_position_embeddings) {
    return Status::OutOfRange("prefix: {} tokens, max_position_embeddings is {}", tokens.size(), config_.max_position_embeddings);
  }
  if (!image_mask.empty() && image_mask.size() != tokens.size()) {
    return Status::InvalidArgument("prefix: image mask of {} rows for {} tokens", image_mask.size(), tokens.size());
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config_.vocab_size) {
      return Status::OutOfRange("prefix: token {} is {}, the vocabulary has {}", i, tokens[i], config_.vocab_size);
    }
  }
  return Status::Ok();
}

std::span<const int32_t> Model::prefix_history(std::span<const int32_t> tokens, std::span<const uint8_t> image_mask,
                                               int64_t count) {
  std::vector<int32_t>& history = buffers_->prefix_history;
  history.clear();
  if (config_.engram_layer_ids.empty()) return history;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    history.push_back(compressed_id(tokens[i], !image_mask.empty() && image_mask[i] != 0));
  }
  return history;
}

Status Model::adopt_prefix(SequenceState& state, std::span<const int32_t> tokens, std::span<const uint8_t> image_mask,
                           int64_t replay_from) {
  DI_RETURN_IF_ERROR(check_prefix(tokens, image_mask));
  const auto hit = static_cast<int64_t>(tokens.size());
  if (replay_from < 0 || replay_from > hit) {
    return Status::OutOfRange("prefix: replay from {}, the hit has {} positions", replay_from, hit);
  }
  return state.adopt(hit, replay_from, prefix_history(tokens, image_mask, replay_from));
}

Status Model::adopt_prefix(SequenceState& state, std::span<const int32_t> tokens, std::span<const uint8_t> image_mask,
                           const WindowSnapshot& snapshot) {
  DI_RETURN_IF_ERROR(check_prefix(tokens, image_mask));
  const auto hit = static_cast<int64_t>(tokens.size());
  if (snapshot.length != hit) {
    return Status::InvalidArgument("prefix: {} tokens for a window snapshot at {}", hit, snapshot.length);
  }
  return state.restore_window(snapshot, prefix_history(tokens, image_mask, hit));
}

}  // namespace deepinfer
