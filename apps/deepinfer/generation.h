#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "model/model.h"
#include "sampling/sampler.h"

namespace deepinfer::cli {

struct GenerationRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;  ///< has passed `validate`; its stop tokens end the text
  int64_t max_tokens = 0;
  int64_t prefill_chunk = 512;
};

enum class FinishReason : uint8_t { kStop, kLength, kInterrupted };
std::string_view finish_reason_name(FinishReason reason);

struct Generation {
  std::vector<int32_t> tokens;  ///< the stop token included
  FinishReason finish = FinishReason::kLength;
  int64_t prefill_tokens = 0;  ///< fewer than the prompt's only if interrupted
  double prefill_seconds = 0;  ///< up to the first token
  int64_t decode_steps = 0;    ///< tokens after the first
  double decode_seconds = 0;
  int64_t state_bytes = 0;  ///< caches of the sequence at the end
};

/// Runs the model forward over new tokens of one sequence, in steps of at most `chunk` rows, and copies the logits of the last
/// row to `logits` [vocab]. Stops early, without logits, once `stop()` is true; gives the number of rows that were run.
Result<int64_t> prefill(Model& model, SequenceState& state, std::span<const int32_t> tokens, int64_t chunk,
                        FunctionRef<bool()> stop, std::span<float> logits);

/// One sequence from its prompt to its end. `on_token` sees every token as it comes; the text ends after the current step when
/// it returns false or `stop()` is true.
Result<Generation> generate(Model& model, const GenerationRequest& request, FunctionRef<bool(int32_t)> on_token,
                            FunctionRef<bool()> stop);

}  // namespace deepinfer::cli
