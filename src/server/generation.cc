#include "server/generation.h"

#include <algorithm>
#include <ctime>

namespace deepinfer::server {
namespace {

constexpr size_t kMaxUnenforcedBytes = 2048;  ///< of the header

/// Visible ASCII; everything else, and what would end an element, as %XX.
void append_header_text(std::string_view text, std::string& out) {
  for (const char c : text) {
    if (c > ' ' && c < 0x7F && c != '%' && c != ',') {
      out += c;
    } else if (c == ' ') {
      out += ' ';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
}

/// A form that cannot be compiled is a fault of the request, whatever budget ran out.
ApiError form_error(const std::string& field, const Status& status) {
  ApiError error = ApiError::From(status);
  if (status.code() == StatusCode::kResourceExhausted) error = ApiError::Http(400, status.message());
  if (error.status == 400 && !field.empty()) return ApiError::Field(field, "{}", status.message());
  return error;
}

std::vector<RequestId> numbers(const std::vector<RequestHandle>& handles) {
  std::vector<RequestId> out;
  for (const RequestHandle& handle : handles) out.push_back(handle.id());
  return out;
}

}  // namespace

int64_t unix_seconds() { return static_cast<int64_t>(std::time(nullptr)); }

Generation::Generation(Setup setup)
    : setup_(std::move(setup)), observer_(setup_.metrics, setup_.trace, setup_.arrival, numbers(setup_.handles)) {
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

bool Generation::prepared() const {
  return std::all_of(setup_.handles.begin(), setup_.handles.end(), [](const RequestHandle& h) { return h.prepared(); });
}

std::vector<Header> Generation::headers() const {
  std::vector<std::string> all;
  for (const RequestHandle& handle : setup_.handles) {
    for (const std::string& part : handle.unenforced()) {
      if (std::find(all.begin(), all.end(), part) == all.end()) all.push_back(part);
    }
  }
  std::string value;
  for (const std::string& part : all) {
    if (!value.empty()) value += ", ";
    append_header_text(part, value);
    if (value.size() > kMaxUnenforcedBytes) {
      value.resize(kMaxUnenforcedBytes);
      value += "...";
      break;
    }
  }
  return value.empty() ? std::vector<Header>() : std::vector<Header>{{"x-unenforced-keywords", value}};
}

void Generation::take(const Output& output, int64_t prompt, std::string& out) {
  observer_.take(output, static_cast<size_t>(prompt));
  const bool of_its_form = output.finish == FinishReason::kError && !setup_.handles[static_cast<size_t>(prompt)].prepared();
  const ServerEvents events = of_its_form ? setup_.stream->fail(form_error(setup_.format_field, output.error))
                                          : setup_.stream->push(output, unix_seconds(), prompt);
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
  Reply reply = Reply::Json(setup_.stream->body());
  for (Header& header : headers()) reply.headers.push_back(std::move(header));
  return reply;
}

}  // namespace deepinfer::server
