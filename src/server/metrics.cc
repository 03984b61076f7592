#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer::server {
namespace {

/// A label's value between quotes.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::vector<double> powers_of_two(double first, int count) {
  std::vector<double> out;
  for (int i = 0; i < count; ++i, first *= 2) out.push_back(first);
  return out;
}

const std::vector<double> kSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,  0.75,
                                      1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0};

void family(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}

void Histogram::observe(double value, int64_t times) {
  const auto at = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  const std::lock_guard lock(mutex_);
  counts_[at] += times;
  count_ += times;
  sum_ += value * static_cast<double>(times);
}

void Histogram::write(std::string& out, std::string_view name, std::string_view labels) const {
  const std::lock_guard lock(mutex_);
  int64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, below);
  }
  out += fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, count_);
}

Metrics::Metrics()
    : time_to_first_token(kSeconds),
      inter_token_latency(kSeconds),
      request_latency(kSeconds),
      prompt_tokens(powers_of_two(1, 21)),
      generation_tokens(powers_of_two(1, 20)) {}

void Metrics::count_request(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(route), status}];
}

std::string Metrics::render(const EngineStats& s, std::string_view model) const {
  const std::string label = fmt::format("model_name=\"{}\"", escaped(model));
  std::string out;
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    family(out, name, type, help);
    out += fmt::format("{}{{{}}} {}\n", name, label, value);
  };
  const auto histogram = [&](std::string_view name, std::string_view help, const Histogram& h) {
    family(out, name, "histogram", help);
    h.write(out, name, label);
  };
  const double used =
      s.pages_total > 0 ? static_cast<double>(s.pages_total - s.pages_free - s.pages_cached) / static_cast<double>(s.pages_total)
                        : 0.0;
  one("vllm:num_requests_running", "gauge", "Requests that are being generated.", s.running);
  one("vllm:num_requests_waiting", "gauge", "Requests that wait for a place.", s.waiting);
  one("vllm:kv_cache_usage_perc", "gauge", "Part of the KV pages that running requests hold, 0 to 1.", std::max(used, 0.0));
  one("vllm:num_preemptions_total", "counter", "Requests that gave their pages up for others.", s.preemptions);
  one("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", s.prompt_tokens);
  one("vllm:generation_tokens_total", "counter", "Tokens generated.", s.generation_tokens);
  one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache.", s.prefix_queries);
  one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens that were found there.", s.prefix_hits);
  family(out, "vllm:request_success_total", "counter", "Choices by how they ended.");
  constexpr std::array kReasons = {"stop", "length", "abort", "deadline", "error"};
  for (size_t i = 0; i < kReasons.size(); ++i)
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", label, kReasons[i], s.finished[i]);
  histogram("vllm:time_to_first_token_seconds", "From the request's arrival to its first token.", time_to_first_token);
  histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.", inter_token_latency);
  histogram("vllm:e2e_request_latency_seconds", "From the request's arrival to its end.", request_latency);
  histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_tokens);
  histogram("vllm:request_generation_tokens", "Tokens generated for a request.", generation_tokens);

  one("deepinfer:requests_refused_total", "counter", "Requests that found the queue full.", s.refused);
  one("deepinfer:replayed_tokens_total", "counter", "Cached prompt tokens run again to rebuild windows.", s.replayed_tokens);
  one("deepinfer:kv_pages", "gauge", "Pages of the KV cache.", s.pages_total);
  one("deepinfer:kv_pages_cached", "gauge", "Pages that only the prefix cache holds.", s.pages_cached);
  one("deepinfer:structured_outputs_preparing", "gauge", "Requests whose structured output is being compiled.", s.preparing);
  one("deepinfer:token_masks_total", "counter", "Masks filled for structured outputs.", s.masks.count);
  one("deepinfer:token_mask_seconds_total", "counter", "Time that filling them took, beside the forward passes.", s.masks.total);
  one("deepinfer:token_mask_wait_seconds_total", "counter", "Time that draws waited for masks.", s.mask_wait_seconds);
  one("deepinfer:connections", "gauge", "Open connections.", connections.load());
  one("deepinfer:connections_total", "counter", "Connections accepted.", connections_total.load());
  one("deepinfer:connections_refused_total", "counter", "Connections closed because there were too many.",
      connections_refused.load());
  one("deepinfer:generations", "gauge", "Generations in progress, queued ones included.", generations.load());
  one("deepinfer:client_disconnects_total", "counter", "Clients that left before their answer was complete.", disconnects.load());
  one("deepinfer:sent_bytes_total", "counter", "Bytes of replies.", bytes_sent.load());
  family(out, "deepinfer:http_requests_total", "counter", "Requests by route and status.");
  const std::lock_guard lock(mutex_);
  for (const auto& [key, count] : requests_)
    out += fmt::format("deepinfer:http_requests_total{{{},route=\"{}\",status=\"{}\"}} {}\n", label, escaped(key.first),
                       key.second, count);
  return out;
}

}  // namespace deepinfer::server
