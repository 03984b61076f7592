// What a result looks like: JSON, the table, CSV.

#include <fmt/format.h>

#include <cmath>

#include "bench_result.h"
#include "table_format.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Infinity, which JSON has no number for, is a text: a rate of "inf" is a setting.
Json number_or_text(double value) { return std::isinf(value) ? Json("inf") : Json(value); }

Json engine_json(const EngineOptions& o) {
  return Json{{"max_num_seqs", o.max_num_seqs},
              {"max_num_batched_tokens", o.max_num_batched_tokens},
              {"max_model_len", o.max_model_len},
              {"kv_cache_memory", o.kv_cache_memory},
              {"enable_prefix_caching", o.enable_prefix_caching},
              {"cache_ttl_chat", o.cache_ttl_chat},
              {"cache_ttl_agent", o.cache_ttl_agent},
              {"window_snapshot_memory", o.window_snapshot_memory},
              {"window_snapshot_ttl", o.window_snapshot_ttl},
              {"replay", replay_mode_name(o.replay)},
              {"decoder_replay", decoder_replay_name(o.decoder_replay)},
              {"decoder_keep_tokens", o.decoder_keep_tokens},
              {"speculation", speculation_mode_name(o.speculation)},
              {"num_speculative_tokens", o.num_speculative_tokens},
              {"async_scheduling", o.async_scheduling},
              {"max_queued_requests", o.max_queued_requests}};
}

Json workload_json(const BenchConditions& c) {
  const WorkloadOptions& w = c.workload;
  Json json{{"arrival", arrival_name(w.arrival)}, {"num_prompts", w.num_prompts}};
  if (w.arrival == Arrival::kTrace) {
    json["trace"] = c.trace;
  } else {
    json["input_len"] = w.input_len;
    json["output_len"] = w.output_len;
    json["length_jitter"] = w.length_jitter;
    json["shared_prefix_ratio"] = w.shared_prefix_ratio;
    json["num_prefixes"] = w.num_prefixes;
  }
  if (w.arrival == Arrival::kPoisson) json["request_rate"] = number_or_text(w.request_rate);
  json["concurrency"] = c.concurrency > 0 ? Json(c.concurrency) : Json(nullptr);
  json["duration_limit"] = c.duration > 0 ? Json(c.duration) : Json(nullptr);
  json["warmup"] = w.warmup;
  json["seed"] = w.seed;
  json["cache_class"] = w.cache_class;
  json["priority"] = c.settings.priority;
  json["n"] = c.settings.n;
  json["ignore_eos"] = c.settings.ignore_eos;
  // As shortest text: a float that JSON shows as a double looks odd.
  json["temperature"] = std::stod(fmt::format("{}", c.settings.sampling.temperature));
  json["top_p"] = std::stod(fmt::format("{}", c.settings.sampling.top_p));
  json["top_k"] = c.settings.sampling.top_k;
  return json;
}

constexpr TableFormat kTable(58, 44);

std::string request_lines(const BenchResult& r) {
  std::string out = kTable.line("Successful requests", r.completed);
  out += kTable.line("Failed requests", r.failed);
  if (r.cancelled > 0) out += kTable.line("Cancelled requests", r.cancelled);
  if (r.not_submitted > 0) out += kTable.line("Requests not submitted", r.not_submitted);
  if (r.conditions.concurrency > 0) out += kTable.line("Maximum request concurrency", r.conditions.concurrency);
  out += kTable.line("Peak concurrent requests", r.peak_in_flight);
  if (r.conditions.workload.arrival == Arrival::kPoisson && std::isfinite(r.conditions.workload.request_rate))
    out += kTable.line("Request rate configured (RPS)", r.conditions.workload.request_rate);
  out += kTable.line("Benchmark duration (s)", r.duration);
  out += kTable.line("Total input tokens", r.total_input_tokens);
  out += kTable.line("Total generated tokens", r.total_output_tokens);
  out += kTable.line("Request throughput (req/s)", r.request_throughput);
  out += kTable.line("Output token throughput (tok/s)", r.output_throughput);
  out += kTable.line("Total token throughput (tok/s)", r.total_token_throughput);
  return out;
}

std::string engine_lines(const BenchResult& r) {
  std::string out = kTable.section("Prefix Cache");
  out += kTable.line("Cached prompt tokens", r.cached_tokens);
  out += kTable.line("Cache hit rate (%)", r.cache_hit_rate * 100);
  out += kTable.line("Replayed tokens", r.replayed_tokens);
  out += kTable.line("Row-layers run, of all", fmt::format("{} of {}", r.row_layers, r.full_row_layers));
  out += kTable.line("Work saved (%)", r.work_saved * 100);
  out += kTable.section("Engine");
  out += kTable.line("Steps", r.steps);
  out += kTable.line("Tokens per step", r.tokens_per_step);
  out += kTable.line("Mean step (us)", r.step_mean_us, 1);
  if (r.drafts > 0) {
    out += kTable.line("Drafts verified and accepted", fmt::format("{} and {}", r.drafted_tokens, r.accepted_tokens));
    out += kTable.line("Mean acceptance length", 1 + static_cast<double>(r.accepted_tokens) / static_cast<double>(r.drafts));
  }
  out += kTable.line("Device idle (%)", r.device_idle_share * 100);
  out += kTable.line("Host plan, mean and max (us)", fmt::format("{:.1f}, {:.1f}", r.plan_mean_us, r.plan_max_us));
  out += kTable.line("Host publish, mean and max (us)", fmt::format("{:.1f}, {:.1f}", r.publish_mean_us, r.publish_max_us));
  out += kTable.line("Preemptions", r.preemptions);
  out += kTable.line("Pages used at most, of", fmt::format("{} of {}", r.peak_pages_used, r.pages_total));
  return out;
}

}  // namespace

void add_distribution(Json& json, const std::string& name, const Distribution& d) {
  json["mean_" + name + "_ms"] = d.mean;
  json["median_" + name + "_ms"] = d.median;
  json["p95_" + name + "_ms"] = d.p95;
  json["p99_" + name + "_ms"] = d.p99;
  json["max_" + name + "_ms"] = d.max;
}

Json to_json(const BenchConditions& c) {
  Json json = workload_json(c);
  json["model"] = c.model.name;
  json["vocab_size"] = c.model.vocab_size;
  json["page_tokens"] = c.model.page_tokens;
  json["backend"] = c.engine.backend;
  json["threads"] = c.threads;
  json["engine"] = engine_json(c.engine);
  json["reused_engine"] = c.reused_engine;
  json["cpu"] = c.cpu;
  return json;
}

Json to_json(const BenchResult& r) {
  Json json;
  json["date"] = r.conditions.date;
  json["commit"] = r.conditions.commit;
  json["conditions"] = to_json(r.conditions);
  json["interrupted"] = r.interrupted;
  json["timed_out"] = r.timed_out;
  json["completed"] = r.completed;
  json["failed"] = r.failed;
  json["cancelled"] = r.cancelled;
  json["not_submitted"] = r.not_submitted;
  json["first_error"] = r.first_error.empty() ? Json(nullptr) : Json(r.first_error);
  json["duration"] = r.duration;
  json["total_input_tokens"] = r.total_input_tokens;
  json["total_output_tokens"] = r.total_output_tokens;
  json["request_throughput"] = r.request_throughput;
  json["output_throughput"] = r.output_throughput;
  json["total_token_throughput"] = r.total_token_throughput;
  add_distribution(json, "ttft", r.ttft);
  add_distribution(json, "tpot", r.tpot);
  add_distribution(json, "itl", r.itl);
  add_distribution(json, "e2el", r.e2el);
  json["peak_in_flight"] = r.peak_in_flight;
  json["max_submit_delay"] = r.max_submit_delay;
  json["cache"] =
      Json{{"cached_tokens", r.cached_tokens}, {"hit_rate", r.cache_hit_rate},         {"replayed_tokens", r.replayed_tokens},
           {"row_layers", r.row_layers},       {"full_row_layers", r.full_row_layers}, {"work_saved", r.work_saved},
           {"pages_total", r.pages_total},     {"peak_pages_used", r.peak_pages_used}, {"pages_cached", r.pages_cached},
           {"evicted_pages", r.evicted_pages}, {"snapshot_hits", r.snapshot_hits},     {"snapshot_misses", r.snapshot_misses}};
  json["engine"] = Json{{"steps", r.steps},
                        {"tokens_per_step", r.tokens_per_step},
                        {"drafts", r.drafts},
                        {"drafted_tokens", r.drafted_tokens},
                        {"accepted_tokens", r.accepted_tokens},
                        {"step_mean_us", r.step_mean_us},
                        {"device_idle_share", r.device_idle_share},
                        {"plan_mean_us", r.plan_mean_us},
                        {"plan_max_us", r.plan_max_us},
                        {"publish_mean_us", r.publish_mean_us},
                        {"publish_max_us", r.publish_max_us},
                        {"preemptions", r.preemptions},
                        {"peak_running", r.peak_running},
                        {"peak_waiting", r.peak_waiting}};
  return json;
}

std::string format_table(const BenchResult& r) {
  std::string out = kTable.title(" Serving Benchmark Result ");
  out += request_lines(r);
  out += kTable.distribution("Time to First Token", "TTFT", r.ttft, /*detailed=*/true);
  out += kTable.distribution("Time per Output Token (excl. 1st token)", "TPOT", r.tpot, /*detailed=*/true);
  out += kTable.distribution("Inter-token Latency", "ITL", r.itl, /*detailed=*/true);
  out += kTable.distribution("End-to-end Latency", "E2EL", r.e2el, /*detailed=*/true);
  out += engine_lines(r);
  out += kTable.end();
  return out;
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string csv_number(double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : ""; }

std::string requests_csv(const RunRecord& run) {
  std::string out =
      "index,class,outcome,finish_reason,planned_s,submitted_s,ttft_ms,tpot_ms,e2el_ms,prompt_tokens,output_tokens,cached_tokens,"
      "replayed_tokens,cache_miss,preemptions,error\n";
  for (const RequestRecord& r : run.requests) {
    out += fmt::format("{},{},{},{},{:.6f},{:.6f},{},{},{},{},{},{},{},{},{},{}\n", r.index, csv_field(r.cache_class),
                       outcome_name(r.outcome), r.finish.has_value() ? finish_reason_name(*r.finish) : "", r.planned, r.submitted,
                       csv_number(r.ttft() * 1e3), csv_number(r.tpot * 1e3), csv_number(r.latency() * 1e3), r.prompt_tokens,
                       r.output_tokens, r.usage.cached_tokens, r.usage.replayed_tokens, cache_miss_name(r.usage.cache_miss),
                       r.usage.preemptions, csv_field(r.error));
  }
  return out;
}

}  // namespace deepinfer::bench
