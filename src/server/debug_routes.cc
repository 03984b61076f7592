// /debug/timeline and /debug/experts (docs/reference/timeline.md).

#include <algorithm>
#include <charconv>

#include "server/application.h"
#include "telemetry/timeline.h"

namespace deepinfer::server {
namespace {

constexpr int64_t kDefaultLast = 50;
constexpr int64_t kMaxLast = 1000;
constexpr size_t kMaxId = 256;

struct TimelineQuery {
  std::string request;
  int64_t last = kDefaultLast;
};

ApiResult<TimelineQuery> read_query(const HttpRequest& request) {
  TimelineQuery query;
  const auto parameters = query_parameters(request.target);
  if (!parameters.has_value()) return Fail(ApiError::Invalid("the query is not NAME=VALUE&..., with %XX for what is not plain"));
  for (const auto& [name, value] : *parameters) {
    if (name == "request") {
      if (value.empty() || value.size() > kMaxId)
        return Fail(ApiError::Field("request", "has {} bytes, must have from 1 to {}", value.size(), kMaxId));
      query.request = value;
    } else if (name == "last") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), query.last);
      if (error != std::errc() || end != value.data() + value.size() || query.last < 1 || query.last > kMaxLast)
        return Fail(ApiError::Field("last", "is \"{}\", must be from 1 to {}", value.substr(0, 100), kMaxLast));
    } else {
      return Fail(ApiError::Field(name.substr(0, 100), "unknown; there are request and last"));
    }
  }
  return query;
}

}  // namespace

Outcome Application::debug_timeline(const HttpRequest& request, const std::string&) {
  const auto query = read_query(request);
  if (!query) return to_reply(Api::kChat, query.error());
  const telemetry::TraceRecorder* trace = backend_.trace.get();
  if (trace == nullptr) return Reply::Json(telemetry::timeline_json(nullptr, {}, false));
  if (query->request.empty())
    return Reply::Json(telemetry::timeline_json(trace, trace->requests().latest(static_cast<size_t>(query->last)), false));
  const auto found = trace->requests().find(query->request);
  if (found.empty())
    return to_reply(Api::kChat, ApiError::Http(404, fmt::format("there is no request {} among the latest", query->request)));
  return Reply::Json(telemetry::timeline_json(trace, found, true));
}

void Application::trace_names(const RequestHandle& handle, const HttpRequest& http, const std::string& id,
                              const std::string& model, std::chrono::steady_clock::time_point arrival) const {
  if (backend_.trace == nullptr) return;
  backend_.trace->named(handle.id(), {id, http.id, std::string(http.header("traceparent").substr(0, kMaxId)), model},
                        telemetry::to_ns(arrival));
}

Outcome Application::debug_experts(const HttpRequest&, const std::string&) {
  const ExpertCounts counts = backend_.engine->expert_counts();
  const std::vector<LayerLoad> loads = layer_loads(counts);
  size_t experts = 0;
  for (const auto& layer : counts.counts) experts = std::max(experts, layer.size());
  std::string out = fmt::format(R"({{"experts":{},"layers":[)", experts);
  for (size_t i = 0; i < loads.size(); ++i) {
    out += fmt::format(R"({}{{"layer":{},"draft":{},"tokens":{},"imbalance":{:.6g},"counts":[{}]}})", i > 0 ? "," : "", i,
                       static_cast<int64_t>(i) >= counts.layers, loads[i].tokens, loads[i].imbalance,
                       fmt::join(counts.counts[i], ","));
  }
  return Reply::Json(out + "]}");
}

}  // namespace deepinfer::server
