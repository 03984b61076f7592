#include "server/generation.h"

#include <ctime>

namespace deepinfer::server {

int64_t unix_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

Generation::Generation(Setup setup) : setup_(std::move(setup)), observer_(setup_.metrics, setup_.arrival, setup_.handles.size()) {
  observer_.summary().model = setup_.model;
  ++setup_.metrics->generations;
}

Generation::~Generation() {
  for (RequestHandle& handle : setup_.handles) {
    handle.set_callback(nullptr);
    if (!handle.finished()) handle.cancel();
  }
  observer_.end();
  --setup_.metrics->generations;
  const bool cancelled = !done() || summary().finish == finish_reason_name(FinishReason::kCancelled);
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
  observer_.take(output, static_cast<size_t>(prompt));
  const ServerEvents events = setup_.stream->push(output, unix_seconds(), prompt);
  observer_.summary().foreign_markers = setup_.stream->foreign_markers();
  if (!setup_.streaming) return;
  for (const ServerEvent& event : events) out += sse_frame(event);
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
