#include "server/metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>

#include "server/kv_metrics.h"
#include "server/metric_text.h"

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

// The buckets of vLLM, so that its dashboards fit.
const std::vector<double> kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                                1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const std::vector<double> kTokenSeconds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                           0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const std::vector<double> kRequestSeconds = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                             30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

/// 1, 2, 5, 10, 20, ... up to `last`.
std::vector<double> one_two_five(double last) {
  std::vector<double> out;
  for (double decade = 1; decade <= last; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (step * decade <= last) out.push_back(step * decade);
    }
  }
  return out;
}

/// What every Prometheus client says of its process.
void write_process(std::string& out) {
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    write_family(out, name, type, help);
    out += fmt::format("{} {}\n", name, value);
  };
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  one("process_cpu_seconds_total", "counter", "CPU time of the process.", seconds(usage.ru_utime) + seconds(usage.ru_stime));
  std::ifstream memory("/proc/self/statm");
  int64_t size = 0, resident = 0;
  if (memory >> size >> resident)
    one("process_resident_memory_bytes", "gauge", "Resident memory of the process.", resident * ::sysconf(_SC_PAGESIZE));
  std::error_code error;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  if (!error)
    one("process_open_fds", "gauge", "Open file descriptors of the process.",
        std::distance(begin(descriptors), end(descriptors)));
}

}  // namespace

std::string without_colons(std::string_view exposition) {
  std::string out(exposition);
  for (size_t begin = 0; begin < out.size();) {
    const size_t end = std::min(out.find('\n', begin), out.size());
    // "# HELP NAME text", "# TYPE NAME type", "NAME{labels} value" or "NAME value".
    const size_t name = out.compare(begin, 2, "# ") == 0 ? begin + std::string_view("# HELP ").size() : begin;
    const size_t name_end = std::min(out.find_first_of("{ ", name), end);
    for (size_t i = name; i < name_end; ++i) {
      if (out[i] == ':') out[i] = '_';
    }
    begin = end + 1;
  }
  return out;
}

std::vector<LayerLoad> layer_loads(const ExpertCounts& counts) {
  std::vector<LayerLoad> out;
  for (const auto& layer : counts.counts) {
    LayerLoad load;
    int64_t most = 0;
    for (const int64_t n : layer) {
      load.tokens += n;
      most = std::max(most, n);
    }
    if (load.tokens > 0)
      load.imbalance = static_cast<double>(most) * static_cast<double>(layer.size()) / static_cast<double>(load.tokens);
    out.push_back(load);
  }
  return out;
}

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
    : time_to_first_token(kFirstTokenSeconds),
      inter_token_latency(kTokenSeconds),
      request_latency(kRequestSeconds),
      queue_time(kRequestSeconds),
      prefill_time(kRequestSeconds),
      decode_time(kRequestSeconds),
      inference_time(kRequestSeconds),
      time_per_output_token(kTokenSeconds),
      prompt_tokens(one_two_five(1'000'000)),
      generation_tokens(one_two_five(1'000'000)) {}

void Metrics::count_request(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(route), status}];
}

std::string Metrics::render(const EngineStats& s, const ExpertCounts& experts, const IntervalsByClass& revisits,
                            const TelemetryCounts& telemetry, std::string_view model) const {
  const std::string label = fmt::format("model_name=\"{}\"", escaped(model));
  std::string out;
  const auto one = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    write_family(out, name, type, help);
    out += fmt::format("{}{{{}}} {}\n", name, label, value);
  };
  const auto histogram = [&](std::string_view name, std::string_view help, const Histogram& h) {
    write_family(out, name, "histogram", help);
    h.write(out, name, label);
  };
  const double used =
      s.pages_total > 0 ? static_cast<double>(s.pages_total - s.pages_free - s.pages_cached) / static_cast<double>(s.pages_total)
                        : 0.0;
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help, std::string_view key,
                        std::initializer_list<std::pair<std::string_view, int64_t>> values) {
    write_family(out, name, type, help);
    for (const auto& [value_of_key, value] : values)
      out += fmt::format("{}{{{},{}=\"{}\"}} {}\n", name, label, key, value_of_key, value);
  };

  one("vllm:num_requests_running", "gauge", "Requests that are being generated.", s.running);
  one("vllm:num_requests_waiting", "gauge", "Requests that wait for a place.", s.waiting);
  one("vllm:kv_cache_usage_perc", "gauge", "Part of the KV pages that running requests hold, 0 to 1.", std::max(used, 0.0));
  one("vllm:num_preemptions_total", "counter", "Requests that gave their pages up for others.", s.preemptions);
  one("vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that have begun.", s.prompt_tokens);
  each("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where their KV came from.", "source",
       {{"local_compute", s.prompt_tokens - s.cached_tokens},
        {"local_cache_hit", s.cached_tokens - s.pulled_tokens},
        {"external_kv_transfer", s.pulled_tokens}});
  one("vllm:prompt_tokens_cached_total", "counter", "Prompt tokens whose KV came from the cache.", s.cached_tokens);
  one("vllm:generation_tokens_total", "counter", "Tokens generated.", s.generation_tokens);
  one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens that were looked up in the prefix cache.", s.prefix_queries);
  one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens that were found in the prefix cache.", s.prefix_hits);
  one("vllm:spec_decode_num_drafts_total", "counter", "Drafts verified, one for a sequence in a step.", s.drafts);
  one("vllm:spec_decode_num_draft_tokens_total", "counter", "Draft tokens verified.", s.drafted_tokens);
  one("vllm:spec_decode_num_accepted_tokens_total", "counter", "Draft tokens accepted.", s.accepted_tokens);
  write_family(out, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
               "Draft tokens accepted, by position in the draft.");
  for (size_t k = 0; k < s.drafted_at.size() && (k == 0 || s.drafted_at[k] > 0); ++k)
    out +=
        fmt::format("vllm:spec_decode_num_accepted_tokens_per_pos_total{{{},position=\"{}\"}} {}\n", label, k, s.accepted_at[k]);
  const auto ended = [&](FinishReason reason) { return s.finished[static_cast<size_t>(reason)]; };
  each("vllm:request_success_total", "counter", "Choices by how they ended.", "finished_reason",
       {{"stop", ended(FinishReason::kStop)},
        {"length", ended(FinishReason::kLength)},
        {"abort", ended(FinishReason::kCancelled)},
        {"deadline", ended(FinishReason::kDeadline)},
        {"error", ended(FinishReason::kError)}});
  histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", time_to_first_token);
  histogram("vllm:inter_token_latency_seconds", "Between two tokens of a choice.", inter_token_latency);
  histogram("vllm:request_time_per_output_token_seconds", "Mean time between two tokens over a request.", time_per_output_token);
  histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", request_latency);
  histogram("vllm:request_queue_time_seconds", "From submission to the engine to the first step.", queue_time);
  histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.", prefill_time);
  histogram("vllm:request_decode_time_seconds", "From the first token to the last.", decode_time);
  histogram("vllm:request_inference_time_seconds", "From the first step to the last token.", inference_time);
  histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_tokens);
  histogram("vllm:request_generation_tokens", "Tokens generated for a request, all choices.", generation_tokens);

  one("deepinfer:requests_refused_total", "counter", "Requests that found the queue full.", s.refused);
  one("deepinfer:replayed_tokens_total", "counter", "Cached prompt tokens run again to rebuild windows.", s.replayed_tokens);
  one("deepinfer:row_layers_total", "counter", "Rows times layers that ran.", s.row_layers);
  one("deepinfer:full_row_layers_total", "counter", "Rows times layers that would have run without cache and replay.",
      s.full_row_layers);
  one("deepinfer:kv_pages", "gauge", "Pages of the KV cache.", s.pages_total);
  one("deepinfer:kv_pages_free", "gauge", "Pages that nobody holds.", s.pages_free);
  one("deepinfer:kv_pages_cached", "gauge", "Pages that only the prefix cache holds.", s.pages_cached);
  one("deepinfer:kv_pages_evicted_total", "counter", "Cached pages that made room before their time was over.", s.evicted_pages);
  one("deepinfer:kv_pages_expired_total", "counter", "Cached pages whose time was over.", s.expired_pages);
  write_kv_metrics(out, s, revisits, label);
  one("deepinfer:window_snapshots", "gauge", "Windows kept at the ends of cached prefixes.", s.snapshots);
  one("deepinfer:window_snapshot_bytes", "gauge", "Memory of the windows kept at the ends of cached prefixes.", s.snapshot_bytes);
  one("deepinfer:window_snapshot_hits_total", "counter", "Prefix hits whose window was kept.", s.snapshot_hits);
  one("deepinfer:window_snapshot_misses_total", "counter", "Prefix hits whose window was rebuilt.", s.snapshot_misses);
  one("deepinfer:steps_total", "counter", "Steps of the engine.", s.steps);
  one("deepinfer:step_seconds_total", "counter", "Time of the device in steps.", s.step.total);
  one("deepinfer:device_idle_seconds_total", "counter", "Time in which the device waited although something was running.",
      s.device_idle_seconds);
  const double idle_of = s.device_idle_seconds + s.step.total;
  one("deepinfer:device_idle_ratio", "gauge", "Part of the time with work in which the device waited, since the start, 0 to 1.",
      idle_of > 0 ? s.device_idle_seconds / idle_of : 0.0);
  one("deepinfer:host_plan_seconds_total", "counter", "Time of the host in planning steps.", s.plan.total);
  one("deepinfer:host_publish_seconds_total", "counter", "Time of the host in publishing what steps made.", s.publish.total);
  one("deepinfer:structured_outputs_preparing", "gauge", "Requests whose structured output is being compiled.", s.preparing);
  one("deepinfer:token_masks_total", "counter", "Masks filled for structured outputs.", s.masks.count);
  one("deepinfer:token_mask_seconds_total", "counter", "Time that filling them took, beside the forward passes.", s.masks.total);
  one("deepinfer:token_mask_wait_seconds_total", "counter", "Time that draws waited for masks.", s.mask_wait_seconds);
  const std::vector<LayerLoad> loads = layer_loads(experts);
  write_family(out, "deepinfer:expert_tokens_total", "counter", "Experts chosen in a layer: rows times active experts.");
  for (size_t i = 0; i < loads.size(); ++i)
    out += fmt::format("deepinfer:expert_tokens_total{{{},layer=\"{}\"}} {}\n", label, i, loads[i].tokens);
  write_family(out, "deepinfer:expert_load_imbalance", "gauge",
               "The most chosen expert of a layer over the mean, since the start; 1 is even.");
  for (size_t i = 0; i < loads.size(); ++i)
    out += fmt::format("deepinfer:expert_load_imbalance{{{},layer=\"{}\"}} {}\n", label, i, loads[i].imbalance);
  one("deepinfer:trace_spans_total", "counter", "Spans recorded for the timeline.", telemetry.spans);
  one("deepinfer:trace_spans_dropped_total", "counter", "Spans that the trace file was too slow for.", telemetry.dropped_spans);
  one("deepinfer:otlp_spans_exported_total", "counter", "Spans that the collector took.", telemetry.exported_spans);
  one("deepinfer:otlp_spans_dropped_total", "counter", "Spans that were not sent: the collector was too slow or away.",
      telemetry.dropped_exports);
  one("deepinfer:otlp_export_failures_total", "counter", "Requests to the collector that failed.", telemetry.failed_exports);
  one("deepinfer:connections", "gauge", "Open connections.", connections.load());
  one("deepinfer:connections_total", "counter", "Connections accepted.", connections_total.load());
  one("deepinfer:connections_refused_total", "counter", "Connections closed because there were too many.",
      connections_refused.load());
  one("deepinfer:generations", "gauge", "Generations in progress, queued ones included.", generations.load());
  one("deepinfer:client_disconnects_total", "counter", "Clients that left before their answer was complete.", disconnects.load());
  one("deepinfer:sent_bytes_total", "counter", "Bytes of replies.", bytes_sent.load());
  one("deepinfer:foreign_markers_total", "counter", "Doubled-bar tool markers in answers: leaked markup, copied by the model.",
      foreign_markers.load());
  write_process(out);
  write_family(out, "deepinfer:http_requests_total", "counter", "Requests by route and status.");
  const std::lock_guard lock(mutex_);
  for (const auto& [key, count] : requests_)
    out += fmt::format("deepinfer:http_requests_total{{{},route=\"{}\",status=\"{}\"}} {}\n", label, escaped(key.first),
                       key.second, count);
  return out;
}

}  // namespace deepinfer::server
