#include "serve_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "flag_values.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kKeepsUp = 0.9;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string rule(const char* text, char fill) {
  return fill == '=' ? fmt::format("{:=^50}\n", text) : fmt::format("{:-^50}\n", text);
}

std::string line(const std::string& label, const std::string& value) {
  return fmt::format("{:<40} {:<10}\n", label + ":", value);
}
std::string line(const std::string& label, int64_t value) { return line(label, std::to_string(value)); }
std::string line(const std::string& label, double value) {
  return line(label, std::isfinite(value) ? fmt::format("{:.2f}", value) : "-");
}

std::string distribution_lines(const char* title, const char* name, const Distribution& d) {
  return rule(title, '-') + line(fmt::format("Mean {} (ms)", name), d.mean) +
         line(fmt::format("Median {} (ms)", name), d.median) + line(fmt::format("P99 {} (ms)", name), d.p99);
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

/// 1 where nothing was offered over time. The first half fills the server; then as many must leave as come.
double served_share(const std::vector<LoadRecord>& records) {
  const double end = records.back().planned;
  const double begin = (records.front().planned + end) / 2;
  int64_t came = 0, left = 0;
  for (const LoadRecord& r : records) {
    came += r.planned > begin && r.planned <= end ? 1 : 0;
    left += r.finished > begin && r.finished <= end ? 1 : 0;
  }
  return end > records.front().planned && came > 0 ? static_cast<double>(left) / static_cast<double>(came) : 1;
}

double counter(const ServeResult& r, const char* name) {
  const auto found = r.server.find(name);
  return found == r.server.end() ? kNone : found->second;
}

}  // namespace

Result<Goodput> Goodput::Parse(const char* flag, const std::vector<std::string>& limits) {
  Goodput out;
  for (const std::string& limit : limits) {
    const size_t colon = limit.find(':');
    const std::string name = limit.substr(0, colon);
    std::optional<double>* target = name == "ttft"   ? &out.ttft
                                    : name == "tpot" ? &out.tpot
                                    : name == "e2el" ? &out.e2el
                                                     : nullptr;
    if (target == nullptr || colon == std::string::npos)
      return Err(Status::InvalidArgument("{} is \"{}\", must be ttft:MS, tpot:MS or e2el:MS", flag, limit));
    const auto value = cli::parse_real(limit.substr(colon + 1), 1e-6, 1e9);
    if (!value) return Err(Status::InvalidArgument("{}: {}: {}", flag, limit, value.error().message()));
    *target = *value;
  }
  return out;
}

bool Goodput::met(const LoadRecord& r) const {
  const auto within = [](const std::optional<double>& limit, double seconds) {
    // An answer of one token has no time per token.
    return !limit.has_value() || std::isnan(seconds) || seconds * 1e3 <= *limit;
  };
  return r.ok() && within(ttft, r.ttft()) && within(tpot, r.tpot()) && within(e2el, r.latency());
}

ServeResult summarize(ServeConditions conditions, const LoadRun& run) {
  ServeResult out;
  out.conditions = std::move(conditions);
  out.interrupted = run.stopped;
  out.duration = run.seconds;
  out.peak_in_flight = run.peak_in_flight;
  std::vector<double> ttft, tpot, itl, e2el, delay;
  int64_t good = 0;
  for (const LoadRecord& r : run.records) {
    delay.push_back((r.sent - r.planned) * 1e3);
    if (!r.ok()) {
      ++out.failed;
      ++out.errors[r.error];
      continue;
    }
    ++out.completed;
    good += out.conditions.goodput.met(r) ? 1 : 0;
    out.total_input_tokens += r.input_tokens;
    out.total_output_tokens += r.output_tokens;
    out.cached_tokens += r.cached_tokens;
    out.counted_by_client += r.counted_by_server ? 0 : 1;
    ttft.push_back(r.ttft() * 1e3);
    tpot.push_back(r.tpot() * 1e3);
    e2el.push_back(r.latency() * 1e3);
    for (const float gap : r.gaps) itl.push_back(static_cast<double>(gap) * 1e3);
  }
  out.request_throughput = ratio(static_cast<double>(out.completed), run.seconds);
  out.output_throughput = ratio(static_cast<double>(out.total_output_tokens), run.seconds);
  out.total_token_throughput = ratio(static_cast<double>(out.total_input_tokens + out.total_output_tokens), run.seconds);
  out.request_goodput = ratio(static_cast<double>(good), run.seconds);
  if (run.records.size() > 1) {
    const auto gaps = static_cast<double>(run.records.size() - 1);
    out.offered_rate = ratio(gaps, run.records.back().planned - run.records.front().planned);
    out.sent_rate = ratio(gaps, run.records.back().sent - run.records.front().sent);
    out.served_share = served_share(run.records);
  }
  out.ttft = distribution(std::move(ttft));
  out.tpot = distribution(std::move(tpot));
  out.itl = distribution(std::move(itl));
  out.e2el = distribution(std::move(e2el));
  out.delay = distribution(std::move(delay));
  std::vector<double> lag = run.lag;
  for (double& value : lag) value *= 1e3;
  out.lag = distribution(std::move(lag));
  out.client_cpu_share = ratio(run.cpu_seconds, run.seconds);
  return out;
}

std::map<std::string, double> read_counters(std::string_view metrics) {
  std::map<std::string, double> out;
  while (!metrics.empty()) {
    const size_t end = metrics.find('\n');
    const std::string_view text = metrics.substr(0, end);
    metrics.remove_prefix(end == std::string_view::npos ? metrics.size() : end + 1);
    const size_t name_end = text.find_first_of("{ ");
    // Labels may hold anything, a brace too: the value is behind the last blank.
    const size_t blank = text.rfind(' ');
    if (text.empty() || text[0] == '#' || name_end == std::string_view::npos || blank < name_end) continue;
    const std::string value(text.substr(blank + 1));
    char* rest = nullptr;
    const double number = std::strtod(value.c_str(), &rest);
    if (rest != value.c_str() && std::isfinite(number)) out[std::string(text.substr(0, name_end))] += number;
  }
  return out;
}

std::string format_table(const ServeResult& r) {
  std::string out = rule(" Serving Benchmark Result ", '=');
  out += line("Successful requests", r.completed);
  out += line("Failed requests", r.failed);
  if (r.conditions.max_concurrency > 0) out += line("Maximum request concurrency", r.conditions.max_concurrency);
  if (std::isfinite(r.conditions.workload.request_rate))
    out += line("Request rate configured (RPS)", r.conditions.workload.request_rate);
  out += line("Benchmark duration (s)", r.duration);
  out += line("Total input tokens", r.total_input_tokens);
  out += line("Total generated tokens", r.total_output_tokens);
  out += line("Request throughput (req/s)", r.request_throughput);
  if (r.conditions.goodput.any()) out += line("Request goodput (req/s)", r.request_goodput);
  out += line("Output token throughput (tok/s)", r.output_throughput);
  out += line("Peak concurrent requests", r.peak_in_flight);
  out += line("Total token throughput (tok/s)", r.total_token_throughput);
  out += distribution_lines("Time to First Token", "TTFT", r.ttft);
  out += distribution_lines("Time per Output Token (excl. 1st token)", "TPOT", r.tpot);
  out += distribution_lines("Inter-token Latency", "ITL", r.itl);
  out += distribution_lines("End-to-end Latency", "E2EL", r.e2el);
  out += rule("Cache and drafts", '-');
  out += line("Cached prompt tokens (%)",
              100 * ratio(static_cast<double>(r.cached_tokens), static_cast<double>(r.total_input_tokens)));
  if (const double drafted = counter(r, "vllm:spec_decode_num_draft_tokens_total"); drafted > 0)
    out += line("Acceptance rate (%)", 100 * counter(r, "vllm:spec_decode_num_accepted_tokens_total") / drafted);
  if (const double preemptions = counter(r, "vllm:num_preemptions_total"); std::isfinite(preemptions))
    out += line("Preemptions", static_cast<int64_t>(preemptions));
  out += rule("The client", '-');
  if (r.offered_rate > 0) out += line("Requests sent, of planned (%)", 100 * r.sent_rate / r.offered_rate);
  out += line("P99 delay of sending (ms)", r.delay.p99);
  out += line("P99 lag of the event loop (ms)", r.lag.p99);
  out += line("CPU (% of a core)", r.client_cpu_share * 100);
  if (r.counted_by_client > 0) out += line("Requests counted by chunks", r.counted_by_client);
  if (!r.errors.empty()) out += rule("Errors", '-');
  for (const auto& [error, count] : r.errors) out += fmt::format("{:>6} x {}\n", count, error);
  out += std::string(50, '=') + "\n";
  return out;
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
  json["max_concurrency"] = c.max_concurrency > 0 ? Json(c.max_concurrency) : Json(nullptr);
  json["arrival"] = arrival_name(c.workload.arrival);
  json["input_len"] = c.workload.input_len;
  json["output_len"] = c.workload.output_len;
  json["shared_prefix_ratio"] = c.workload.shared_prefix_ratio;
  json["trace"] = c.trace.empty() ? Json(nullptr) : Json(c.trace);
  json["seed"] = c.workload.seed;
  json["interrupted"] = r.interrupted;
  json["duration"] = r.duration;
  json["completed"] = r.completed;
  json["failed"] = r.failed;
  json["success_rate"] = ratio(static_cast<double>(r.completed), static_cast<double>(r.completed + r.failed));
  json["errors"] = r.errors;
  json["total_input_tokens"] = r.total_input_tokens;
  json["total_output_tokens"] = r.total_output_tokens;
  json["counted_by_client"] = r.counted_by_client;
  json["cached_tokens"] = r.cached_tokens;
  json["request_throughput"] = r.request_throughput;
  json["request_goodput"] = c.goodput.any() ? Json(r.request_goodput) : Json(nullptr);
  json["output_throughput"] = r.output_throughput;
  json["total_token_throughput"] = r.total_token_throughput;
  json["offered_rate"] = r.offered_rate;
  json["sent_rate"] = r.sent_rate;
  json["served_share"] = r.served_share;
  json["max_concurrent_requests"] = r.peak_in_flight;
  add_distribution(json, "ttft", r.ttft);
  add_distribution(json, "tpot", r.tpot);
  add_distribution(json, "itl", r.itl);
  add_distribution(json, "e2el", r.e2el);
  add_distribution(json, "send_delay", r.delay);
  add_distribution(json, "loop_lag", r.lag);
  json["client_cpu_share"] = r.client_cpu_share;
  json["server_counters"] = r.server;
  return json;
}

std::string rates_heading() {
  return fmt::format("{:>8} {:>6} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>6}\n", "req/s", "conc", "done/s", "good/s",
                     "out tok/s", "tok/s/usr", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "failed");
}

std::string rates_row(const ServeResult& r) {
  const double rate = r.conditions.workload.request_rate;
  return fmt::format("{:>8} {:>6} {:>8.2f} {:>8} {:>9.1f} {:>9.1f} {:>9.2f} {:>9.2f} {:>9.2f} {:>8.2f} {:>6}\n",
                     std::isfinite(rate) ? fmt::format("{:g}", rate) : "inf",
                     r.conditions.max_concurrency > 0 ? std::to_string(r.conditions.max_concurrency) : "-", r.request_throughput,
                     r.conditions.goodput.any() ? fmt::format("{:.2f}", r.request_goodput) : "-", r.output_throughput,
                     ratio(1e3, r.tpot.mean), r.ttft.median, r.ttft.p99, r.tpot.median, r.tpot.p99, r.failed);
}

int64_t knee(const std::vector<ServeResult>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].served_share < kKeepsUp) return static_cast<int64_t>(i);
  }
  return -1;
}

Result<ServePoint> read_point(const Json& json, const std::string& label) {
  ServePoint out;
  out.label = label;
  const auto number = [&](const char* key, double& target) -> Status {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number())
      return Status::InvalidArgument("{}: \"{}\" is missing or no number", label, key);
    target = json[key].get<double>();
    return Status::Ok();
  };
  DI_RETURN_IF_ERROR(number("output_throughput", out.output_throughput));
  DI_RETURN_IF_ERROR(number("median_ttft_ms", out.median_ttft));
  DI_RETURN_IF_ERROR(number("p99_ttft_ms", out.p99_ttft));
  DI_RETURN_IF_ERROR(number("median_tpot_ms", out.median_tpot));
  DI_RETURN_IF_ERROR(number("p99_tpot_ms", out.p99_tpot));
  double tpot = 0;
  DI_RETURN_IF_ERROR(number("mean_tpot_ms", tpot));
  out.user_throughput = ratio(1e3, tpot);
  out.rate = json.contains("request_rate") && json["request_rate"].is_number() ? json["request_rate"].get<double>() : kNone;
  out.concurrency =
      json.contains("max_concurrency") && json["max_concurrency"].is_number() ? json["max_concurrency"].get<double>() : kNone;
  out.goodput =
      json.contains("request_goodput") && json["request_goodput"].is_number() ? json["request_goodput"].get<double>() : kNone;
  return out;
}

std::vector<Plot> serve_plots(const std::vector<ServePoint>& points) {
  std::vector<std::string> labels;
  for (const ServePoint& p : points) {
    if (std::find(labels.begin(), labels.end(), p.label) == labels.end()) labels.push_back(p.label);
  }
  const bool rates = std::any_of(points.begin(), points.end(), [](const ServePoint& p) { return std::isfinite(p.rate); });
  const auto plot = [&](std::string title, std::string x_label, std::string y_label, auto x, auto y, auto y2,
                        const char* second) {
    Plot out{
        .title = std::move(title), .description = {}, .x_label = std::move(x_label), .y_label = std::move(y_label), .lines = {}};
    for (size_t i = 0; i < labels.size(); ++i) {
      PlotLine first{.label = labels[i], .points = {}, .color = static_cast<int>(i), .dashed = false};
      PlotLine other{
          .label = fmt::format("{}, {}", labels[i], second), .points = {}, .color = static_cast<int>(i), .dashed = true};
      for (const ServePoint& p : points) {
        if (p.label != labels[i]) continue;
        first.points.push_back({x(p), y(p)});
        other.points.push_back({x(p), y2(p)});
      }
      out.lines.push_back(std::move(first));
      if (*second != 0) out.lines.push_back(std::move(other));
    }
    return out;
  };
  const auto load = [rates](const ServePoint& p) { return rates ? p.rate : p.concurrency; };
  const char* load_label = rates ? "requests a second" : "concurrency";
  return {
      plot(
          "Throughput against speed for one user", "tokens/s for one user", "tokens/s of all",
          [](const ServePoint& p) { return p.user_throughput; }, [](const ServePoint& p) { return p.output_throughput; },
          [](const ServePoint&) { return 0.0; }, ""),
      plot(
          "Time to the first token", load_label, "ms", load, [](const ServePoint& p) { return p.median_ttft; },
          [](const ServePoint& p) { return p.p99_ttft; }, "p99"),
      plot(
          "Time per later token", load_label, "ms", load, [](const ServePoint& p) { return p.median_tpot; },
          [](const ServePoint& p) { return p.p99_tpot; }, "p99"),
  };
}

std::string serve_html(const std::vector<ServePoint>& points) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Serving benchmark</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n"
      ":root { color-scheme: light dark; }\nbody { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; "
      "padding: 0 1rem; }\n"
      "table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\nth, td { padding: .2rem .7rem; text-align: "
      "right; }\n"
      "th:first-child, td:first-child { text-align: left; }\ntr { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, "
      "transparent); }\n"
      "svg { max-width: 100%; height: auto; }\n</style>\n</head>\n<body>\n<h1>Serving benchmark</h1>\n";
  out += render_svg(serve_plots(points), "serve");
  out +=
      "<table>\n<tr><th>run</th><th>req/s</th><th>concurrency</th><th>tokens/s</th><th>tokens/s for one user</th>"
      "<th>TTFT p50 ms</th><th>p99</th><th>TPOT p50 ms</th><th>p99</th><th>good req/s</th></tr>\n";
  for (const ServePoint& p : points) {
    out += fmt::format("<tr><td>{}</td>", xml_escape(p.label));
    for (const double value : {p.rate, p.concurrency, p.output_throughput, p.user_throughput, p.median_ttft, p.p99_ttft,
                               p.median_tpot, p.p99_tpot, p.goodput})
      out += fmt::format("<td>{}</td>", std::isfinite(value) ? fmt::format("{:.4g}", value) : "–");
    out += "</tr>\n";
  }
  return out + "</table>\n</body>\n</html>\n";
}

}  // namespace deepinfer::bench
