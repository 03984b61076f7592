#include "server/generation_observer.h"

#include <algorithm>

namespace deepinfer::server {
namespace {

double seconds(GenerationObserver::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

GenerationObserver::GenerationObserver(Metrics* metrics, telemetry::TraceRecorder* trace, Clock::time_point arrival,
                                       const std::vector<RequestId>& requests)
    : metrics_(metrics), trace_(trace), arrival_(arrival), submission_(Clock::now()), prompts_(requests.size()) {
  for (size_t i = 0; i < requests.size(); ++i) prompts_[i].request = requests[i];
}

void GenerationObserver::take(const Output& output, size_t prompt) {
  Prompt& p = prompts_[prompt];
  summary_.prompt_tokens += output.usage.prompt_tokens - p.usage.prompt_tokens;
  summary_.cached_tokens += output.usage.cached_tokens - p.usage.cached_tokens;
  summary_.completion_tokens += output.usage.completion_tokens - p.usage.completion_tokens;
  p.usage = output.usage;
  if (output.finish.has_value()) {
    p.finish = output.finish;
    summary_.finish = finish_reason_name(*output.finish);
  }
  if (output.tokens.empty()) return;
  const auto now = Clock::now();
  if (!p.first.has_value()) {
    p.first = now;
    metrics_->time_to_first_token.observe(seconds(now - arrival_));
  }
  p.last = now;
  if (trace_ != nullptr) trace_->delivered(output.request, telemetry::to_ns(now));
  const auto choice = static_cast<size_t>(output.index);
  if (choice >= p.last_of_each.size()) p.last_of_each.resize(choice + 1);
  if (std::optional<Clock::time_point>& last = p.last_of_each[choice]; last.has_value()) {
    const auto count = static_cast<int64_t>(output.tokens.size());
    metrics_->inter_token_latency.observe(seconds(now - *last) / static_cast<double>(count), count);
  }
  p.last_of_each[choice] = now;
}

void GenerationObserver::end() {
  const auto now = Clock::now();
  for (const Prompt& p : prompts_) {
    if (trace_ != nullptr) close_trace(p);
    metrics_->request_latency.observe(seconds(now - arrival_));
    metrics_->prompt_tokens.observe(static_cast<double>(p.usage.prompt_tokens));
    metrics_->generation_tokens.observe(static_cast<double>(p.usage.completion_tokens));
    if (!p.usage.queue_seconds.has_value()) continue;
    const double queue = *p.usage.queue_seconds;
    metrics_->queue_time.observe(queue);
    if (!p.first.has_value()) continue;
    // Queue times are the engine's own; what follows is seen from here, so a slow connection counts.
    const double prefill = std::max(0.0, seconds(*p.first - submission_) - queue);
    const double decode = seconds(*p.last - *p.first);
    metrics_->prefill_time.observe(prefill);
    metrics_->decode_time.observe(decode);
    metrics_->inference_time.observe(prefill + decode);
    const int64_t steps = p.usage.completion_tokens / static_cast<int64_t>(p.last_of_each.size()) - 1;
    if (steps > 0) metrics_->time_per_output_token.observe(decode / static_cast<double>(steps));
  }
  metrics_->foreign_markers += summary_.foreign_markers;
}

void GenerationObserver::close_trace(const Prompt& p) {
  trace_->closed(p.request, p.finish.has_value() ? finish_reason_name(*p.finish) : "",
                 {.prompt_tokens = p.usage.prompt_tokens,
                  .cached_tokens = p.usage.cached_tokens,
                  .replayed_tokens = p.usage.replayed_tokens,
                  .completion_tokens = p.usage.completion_tokens,
                  .preemptions = p.usage.preemptions});
}

}  // namespace deepinfer::server
