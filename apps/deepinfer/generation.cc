#include "generation.h"

#include <algorithm>
#include <chrono>

namespace deepinfer::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kInterrupted:
      return "interrupted";
  }
  return "";
}

Result<int64_t> prefill(Model& model, SequenceState& state, std::span<const int32_t> tokens, int64_t chunk,
                        FunctionRef<bool()> stop, std::span<float> logits) {
  const auto total = static_cast<int64_t>(tokens.size());
  int64_t done = 0;
  while (done < total && !stop()) {
    const int64_t rows = std::min(chunk, total - done);
    const StepSequence sequence{&state, rows};
    const auto last = static_cast<int32_t>(rows - 1);
    StepBatch batch;
    batch.tokens = tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(rows));
    batch.sequences = {&sequence, 1};
    if (done + rows == total) batch.logit_rows = {&last, 1};
    DI_ASSIGN_OR_RETURN(const StepOutput step, model.forward(batch));
    done += rows;
    if (done == total) std::copy(step.logits.begin(), step.logits.end(), logits.begin());
  }
  return done;
}

Result<Generation> generate(Model& model, const GenerationRequest& request, FunctionRef<bool(int32_t)> on_token,
                            FunctionRef<bool()> stop) {
  Generation out;
  out.tokens.reserve(static_cast<size_t>(request.max_tokens));
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t vocab = model.config().vocab_size;
  const std::unique_ptr<SequenceState> state = model.new_sequence();
  std::vector<float> logits(static_cast<size_t>(vocab));
  Sampler sampler(request.sampling, vocab);
  sampler.add_prompt(request.prompt);

  auto start = Clock::now();
  DI_ASSIGN_OR_RETURN(out.prefill_tokens, prefill(model, *state, request.prompt, request.prefill_chunk, stop, logits));
  const std::vector<int32_t>& stops = request.sampling.stop_token_ids;
  out.finish = FinishReason::kInterrupted;
  while (out.prefill_tokens == prompt_tokens) {
    const auto made = static_cast<int64_t>(out.tokens.size());
    const int32_t token = sampler.sample(logits, prompt_tokens + made);
    sampler.add_output(token);
    out.tokens.push_back(token);
    // The clock of the decode starts with the first token, so that a slow reader of the text counts where it belongs.
    if (made == 0) {
      out.prefill_seconds = seconds_since(start);
      start = Clock::now();
    }
    const bool go_on = on_token(token);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      out.finish = FinishReason::kStop;
      break;
    }
    if (made + 1 == request.max_tokens) {
      out.finish = FinishReason::kLength;
      break;
    }
    if (!go_on || stop()) break;
    DI_ASSIGN_OR_RETURN(const int64_t rows, prefill(
                                                model, *state, {&token, 1}, 1, [] { return false; }, logits));
    out.decode_steps += rows;
  }
  if (out.tokens.empty()) {
    out.prefill_seconds = seconds_since(start);
  } else {
    out.decode_seconds = seconds_since(start);
  }
  out.state_bytes = state->resident_bytes();
  return out;
}

}  // namespace deepinfer::cli
