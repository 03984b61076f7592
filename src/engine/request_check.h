#pragma once

#include <memory>

#include "deepinfer/request.h"
#include "engine/sequence.h"

namespace deepinfer {

/// What a request has to fit into.
struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t eos_token_id = 1;
  int64_t max_model_len = 0;
  int64_t max_num_seqs = 0;
  int64_t page_positions = 128;
  int64_t total_pages = 0;
  ReplayMode replay = ReplayMode::kBounded;
};

/// Checks every field and fills in what was left open: the seed, max_tokens, EOS among the stop tokens. The error names the
/// field, its value and the limit. `id` and `stream` are the caller's to set.
Result<std::shared_ptr<ActiveRequest>> check_request(Request request, const RequestLimits& limits);

}  // namespace deepinfer
