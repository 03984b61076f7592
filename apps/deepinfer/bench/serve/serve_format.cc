// What a result of bench serve looks like: the block, rows of a sweep, JSON.

#include <fmt/format.h>

#include <cmath>

#include "serve/serve_result.h"
#include "table_format.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr TableFormat kTable(50, 40);
constexpr size_t kShownTurns = 12;
constexpr size_t kShownErrors = 10;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double counter(const ServeResult& r, const char* name) {
  const auto found = r.server.find(name);
  return found == r.server.end() ? kNone : found->second;
}

double cached_percent(int64_t cached, int64_t input) {
  return 100 * ratio(static_cast<double>(cached), static_cast<double>(input));
}

std::string turn_lines(const ServeResult& r) {
  if (r.turns.empty()) return {};
  std::string out = kTable.section("Turns");
  for (size_t i = 0; i < r.turns.size(); ++i) {
    const TurnResult& turn = r.turns[i];
    if (i >= kShownTurns && i + 1 < r.turns.size()) continue;
    out += kTable.line(fmt::format("Turn {}: median TTFT (ms), cached (%)", i + 1),
                       turn.completed > 0 ? fmt::format("{:.2f}, {:.1f}", turn.median_ttft,
                                                        cached_percent(turn.cached_tokens, turn.input_tokens))
                                          : "-");
  }
  return out;
}

std::string error_lines(const ServeResult& r) {
  if (r.errors.empty()) return {};
  std::string out = kTable.section("Errors");
  size_t shown = 0;
  for (const auto& [error, count] : r.errors) {
    if (++shown > kShownErrors) return out + fmt::format("{:>6}   other kinds of errors\n", r.errors.size() - kShownErrors);
    out += fmt::format("{:>6} x {}\n", count, error);
  }
  return out;
}

Json turns_json(const ServeResult& r) {
  Json out = Json::array();
  for (const TurnResult& turn : r.turns) {
    out.push_back(Json{{"completed", turn.completed},
                       {"input_tokens", turn.input_tokens},
                       {"cached_tokens", turn.cached_tokens},
                       {"median_ttft_ms", turn.median_ttft}});
  }
  return out;
}

}  // namespace

std::string format_table(const ServeResult& r) {
  std::string out = kTable.title(" Serving Benchmark Result ");
  out += kTable.line("Successful requests", r.completed);
  out += kTable.line("Failed requests", r.failed);
  if (r.not_sent > 0) out += kTable.line("Requests not sent", r.not_sent);
  if (r.conditions.num_clients > 0) out += kTable.line("Clients", r.conditions.num_clients);
  if (r.conditions.max_concurrency > 0) out += kTable.line("Maximum request concurrency", r.conditions.max_concurrency);
  if (std::isfinite(r.conditions.workload.request_rate))
    out += kTable.line("Request rate configured (RPS)", r.conditions.workload.request_rate);
  out += kTable.line("Benchmark duration (s)", r.duration);
  out += kTable.line("Total input tokens", r.total_input_tokens);
  out += kTable.line("Total generated tokens", r.total_output_tokens);
  out += kTable.line("Request throughput (req/s)", r.request_throughput);
  if (r.conditions.goodput.any()) out += kTable.line("Request goodput (req/s)", r.request_goodput);
  out += kTable.line("Output token throughput (tok/s)", r.output_throughput);
  out += kTable.line("Peak concurrent requests", r.peak_in_flight);
  out += kTable.line("Total token throughput (tok/s)", r.total_token_throughput);
  out += kTable.distribution("Time to First Token", "TTFT", r.ttft, /*detailed=*/false);
  out += kTable.distribution("Time per Output Token (excl. 1st token)", "TPOT", r.tpot, /*detailed=*/false);
  out += kTable.distribution("Inter-token Latency", "ITL", r.itl, /*detailed=*/false);
  out += kTable.distribution("End-to-end Latency", "E2EL", r.e2el, /*detailed=*/false);
  out += turn_lines(r);
  out += kTable.section("Cache and drafts");
  out += kTable.line("Cached prompt tokens (%)", cached_percent(r.cached_tokens, r.total_input_tokens));
  if (const double drafted = counter(r, "vllm:spec_decode_num_draft_tokens_total"); drafted > 0)
    out += kTable.line("Acceptance rate (%)", 100 * counter(r, "vllm:spec_decode_num_accepted_tokens_total") / drafted);
  if (const double preemptions = counter(r, "vllm:num_preemptions_total"); std::isfinite(preemptions))
    out += kTable.line("Preemptions", static_cast<int64_t>(preemptions));
  out += kTable.section("The client");
  if (r.offered_rate > 0) out += kTable.line("Requests sent, of planned (%)", 100 * r.sent_rate / r.offered_rate);
  out += kTable.line("P99 delay of sending (ms)", r.delay.p99);
  out += kTable.line("P99 lag of the event loop (ms)", r.lag.p99);
  out += kTable.line("CPU (% of a core)", r.client_cpu_share * 100);
  if (r.counted_by_client > 0) out += kTable.line("Requests counted by chunks", r.counted_by_client);
  return out + error_lines(r) + kTable.end();
}

Json to_json(const ServeResult& r) {
  const ServeConditions& c = r.conditions;
  Json json;
  json["date"] = c.date;
  json["commit"] = c.commit;
  json["cpu"] = c.cpu;
  json["backend"] = "openai";
  json["base_url"] = c.url;
  json["endpoint"] = c.path;
  json["model_id"] = c.model;
  json["num_prompts"] = r.completed + r.failed;
  json["request_rate"] = std::isfinite(c.workload.request_rate) ? Json(c.workload.request_rate) : Json("inf");
  json["burstiness"] = c.workload.burstiness;
  if (c.workload.arrival == Arrival::kTrace) json["time_scale"] = c.workload.time_scale;
  json["num_clients"] = c.num_clients > 0 ? Json(c.num_clients) : Json(nullptr);
  json["max_concurrency"] = c.max_concurrency > 0 ? Json(c.max_concurrency) : Json(nullptr);
  json["arrival"] = arrival_name(c.workload.arrival);
  json["input_len"] = c.workload.input_len;
  json["output_len"] = c.workload.output_len;
  json["shared_prefix_ratio"] = c.workload.shared_prefix_ratio;
  if (c.workload.turns > 1) {
    json["num_rounds"] = c.workload.turns;
    json["round_input_len"] = c.workload.turn_input_len > 0 ? c.workload.turn_input_len : c.workload.input_len;
    json["think_time"] = c.workload.think_time;
  }
  json["ignore_eos"] = c.ignore_eos;
  json["trace"] = c.trace.empty() ? Json(nullptr) : Json(c.trace);
  json["seed"] = c.workload.seed;
  json["interrupted"] = r.interrupted;
  json["duration"] = r.duration;
  json["completed"] = r.completed;
  json["failed"] = r.failed;
  json["not_sent"] = r.not_sent;
  json["success_rate"] = ratio(static_cast<double>(r.completed), static_cast<double>(r.completed + r.failed));
  json["errors"] = r.errors;
  json["total_input_tokens"] = r.total_input_tokens;
  json["total_output_tokens"] = r.total_output_tokens;
  json["counted_by_client"] = r.counted_by_client;
  json["cached_tokens"] = r.cached_tokens;
  json["request_throughput"] = r.request_throughput;
  json["request_goodput"] = c.goodput.any() ? Json(r.request_goodput) : Json(nullptr);
  json["good_share"] = r.good_share;
  json["output_throughput"] = r.output_throughput;
  json["total_token_throughput"] = r.total_token_throughput;
  json["offered_rate"] = r.offered_rate;
  json["sent_rate"] = r.sent_rate;
  json["served_share"] = r.served_share;
  json["kept_up"] = r.kept_up();
  json["max_concurrent_requests"] = r.peak_in_flight;
  add_distribution(json, "ttft", r.ttft);
  add_distribution(json, "tpot", r.tpot);
  add_distribution(json, "itl", r.itl);
  add_distribution(json, "e2el", r.e2el);
  if (!r.turns.empty()) json["rounds"] = turns_json(r);
  add_distribution(json, "send_delay", r.delay);
  add_distribution(json, "loop_lag", r.lag);
  json["client_cpu_share"] = r.client_cpu_share;
  json["server_counters"] = r.server;
  return json;
}

std::string rates_heading() {
  return fmt::format("{:>8} {:>6} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7}\n", "req/s", "conc", "done/s",
                     "good/s", "out tok/s", "tok/s/usr", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "failed", "kept up");
}

std::string rates_row(const ServeResult& r) {
  const ServeConditions& c = r.conditions;
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{:.2f}", value) : std::string("-"); };
  const double rate = c.workload.request_rate;
  const int64_t limit = std::max(c.num_clients, c.max_concurrency);
  return fmt::format("{:>8} {:>6} {:>8.2f} {:>8} {:>9.1f} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>7}\n",
                     std::isfinite(rate) ? fmt::format("{:g}", rate) : "inf", limit > 0 ? std::to_string(limit) : "-",
                     r.request_throughput, c.goodput.any() ? number(r.request_goodput) : "-", r.output_throughput,
                     number(1e3 / r.tpot.mean), number(r.ttft.median), number(r.ttft.p99), number(r.tpot.median),
                     number(r.tpot.p99), r.failed, r.kept_up() ? "yes" : "no");
}

}  // namespace deepinfer::bench
