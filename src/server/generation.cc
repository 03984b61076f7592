#include "server/generation.h"

#include <ctime>

namespace deepinfer::server {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

int64_t unix_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

Generation::Generation(Setup setup) : setup_(std::move(setup)), usage_(setup_.handles.size()) {
  summary_.model = setup_.model;
  ++setup_.metrics->generations;
}

Generation::~Generation() {
  for (RequestHandle& handle : setup_.handles) {
    handle.set_callback(nullptr);
    if (!handle.finished()) handle.cancel();
  }
  --setup_.metrics->generations;
  setup_.metrics->request_latency.observe(seconds(Clock::now() - setup_.arrival));
  setup_.metrics->prompt_tokens.observe(static_cast<double>(summary_.prompt_tokens));
  setup_.metrics->generation_tokens.observe(static_cast<double>(summary_.completion_tokens));
  const bool cancelled = !done() || summary_.finish == finish_reason_name(FinishReason::kCancelled);
  if (setup_.on_end) setup_.on_end(done() && !failed() ? setup_.stream->body() : std::string(), cancelled);
}

void Generation::set_callback(const std::function<void()>& on_news) {
  for (RequestHandle& handle : setup_.handles) handle.set_callback(on_news);
}

std::string Generation::advance() {
  std::string out;
  for (size_t i = 0; i < setup_.handles.size() && !done(); ++i) {
    while (!done()) {
      const std::optional<Output> output = setup_.handles[i].poll();
      if (!output.has_value()) break;
      take(*output, static_cast<int64_t>(i), out);
    }
  }
  // A stop string ends the answer here before it ends in the engine.
  if (done()) {
    for (RequestHandle& handle : setup_.handles) {
      if (!handle.finished()) handle.cancel();
    }
  }
  return out;
}

void Generation::take(const Output& output, int64_t prompt, std::string& out) {
  observe(output, prompt);
  const ServerEvents events = setup_.stream->push(output, unix_seconds(), prompt);
  if (!setup_.streaming) return;
  for (const ServerEvent& event : events) out += sse_frame(event);
}

void Generation::observe(const Output& output, int64_t prompt) {
  PromptUsage& usage = usage_[static_cast<size_t>(prompt)];
  summary_.prompt_tokens += output.usage.prompt_tokens - usage.prompt;
  summary_.cached_tokens += output.usage.cached_tokens - usage.cached;
  summary_.completion_tokens += output.usage.completion_tokens - usage.completion;
  usage = {output.usage.prompt_tokens, output.usage.cached_tokens, output.usage.completion_tokens};
  if (output.finish.has_value()) summary_.finish = finish_reason_name(*output.finish);
  if (output.tokens.empty()) return;
  const auto now = Clock::now();
  if (!any_token_) {
    setup_.metrics->time_to_first_token.observe(seconds(now - setup_.arrival));
  } else {
    const auto count = static_cast<int64_t>(output.tokens.size());
    setup_.metrics->inter_token_latency.observe(seconds(now - last_token_) / static_cast<double>(count), count);
  }
  any_token_ = true;
  last_token_ = now;
}

Reply Generation::reply() const {
  if (const auto& error = setup_.stream->failed(); error.has_value()) {
    Reply reply = Reply::Json(error_body(setup_.api, *error));
    reply.status = error->status;
    return reply;
  }
  return Reply::Json(setup_.stream->body());
}

}  // namespace deepinfer::server
