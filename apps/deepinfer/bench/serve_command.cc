#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench_command.h"
#include "flag_values.h"
#include "progress.h"
#include "serve_result.h"
#include "terminal.h"
#include "trace.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxPrompts = 1'000'000;
constexpr int64_t kMaxLength = int64_t{1} << 24;
constexpr int64_t kMaxReportBytes = int64_t{64} << 20;

struct ServeFlags {
  std::string url, host = "127.0.0.1", endpoint = "/v1/completions", model, api_key, trace, json, svg, html, label = "server";
  std::vector<double> request_rate;
  std::vector<int64_t> max_concurrency;
  std::vector<std::string> goodput;
  int64_t num_prompts = 100, input_len = 256, output_len = 64, num_prefixes = 1, seed = 0, warmup = 0, vocab_size = 4096;
  double shared_prefix_ratio = 0, length_jitter = 0, timeout = 600, request_timeout = 3600, temperature = 0, burstiness = 1,
         time_scale = 1;
  int64_t port = 8000;
  std::optional<int64_t> max_input_len, max_output_len;
  bool no_ignore_eos = false, append_result = false;

  bool chat() const { return endpoint.find("chat") != std::string::npos; }
};

/// Words that no tokenizer merges across: about one token each.
std::string words(std::span<const int32_t> ids) {
  std::string out;
  for (const int32_t id : ids) {
    out += ' ';
    for (auto rest = static_cast<uint32_t>(id); out.back() == ' ' || rest > 0; rest /= 26)
      out += static_cast<char>('a' + rest % 26);
  }
  return out;
}

std::string body(const ServeFlags& f, const PlannedRequest& request) {
  Json json;
  json["model"] = f.model;
  json[f.chat() ? "messages" : "prompt"] =
      f.chat() ? Json::array({Json{{"role", "user"}, {"content", words(request.prompt)}}}) : Json(request.prompt);
  json["max_tokens"] = request.output_len;
  json["temperature"] = f.temperature;
  json["seed"] = request.seed & 0x7FFF'FFFF;
  if (!f.no_ignore_eos) json["ignore_eos"] = true;
  json["stream"] = true;
  json["stream_options"] = Json{{"include_usage", true}};
  return json.dump();
}

std::vector<LoadRequest> load_requests(const ServeFlags& f, const std::vector<PlannedRequest>& planned) {
  std::vector<LoadRequest> out;
  out.reserve(planned.size());
  for (const PlannedRequest& request : planned)
    out.push_back({.at = request.arrival, .body = body(f, request), .input_tokens = static_cast<int64_t>(request.prompt.size())});
  return out;
}

Result<std::string> first_model(const Endpoint& endpoint) {
  DI_ASSIGN_OR_RETURN(const std::string text, http_get(endpoint, "/v1/models"));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto name = Json::json_pointer("/data/0/id");
  if (!json.is_object() || !json.contains(name) || !json[name].is_string())
    return Err(Status::FailedPrecondition("{}/v1/models lists no model: give --model", endpoint.url()));
  return json[name].get<std::string>();
}

/// What the server's counters rose by; empty where it has none.
std::map<std::string, double> risen(const Result<std::string>& before, const Result<std::string>& after) {
  std::map<std::string, double> out;
  if (!before || !after) return out;
  const auto start = read_counters(*before);
  for (const auto& [name, value] : read_counters(*after)) {
    const auto old = start.find(name);
    if (name.ends_with("_total") && old != start.end() && value > old->second) out[name] = value - old->second;
    if (name == "vllm:num_preemptions_total" && old != start.end()) out[name] = value - old->second;
  }
  return out;
}

Result<ServeResult> run_one(const ServeFlags& f, const Endpoint& endpoint, const WorkloadOptions& options, int64_t concurrency,
                            const Goodput& goodput) {
  DI_ASSIGN_OR_RETURN(const Workload workload, make_workload(options));
  cli::ProgressLine progress;
  LoadOptions load;
  load.max_concurrency = concurrency;
  load.timeout = f.timeout;
  load.request_timeout = f.request_timeout;
  load.stop = [] { return cli::interrupted(); };
  if (!workload.warmup.empty()) {
    LoadOptions warm = load;
    warm.max_concurrency = concurrency > 0 ? concurrency : 16;
    run_load(endpoint, load_requests(f, workload.warmup), warm);
  }
  load.progress = [&](const LoadProgress& p) {
    progress.update("requests", static_cast<double>(p.done), static_cast<double>(p.total),
                    fmt::format("{} of {}, {} in flight, {} failed", p.done, p.total, p.in_flight, p.failed));
  };
  const auto requests = load_requests(f, workload.requests);
  const auto before = http_get(endpoint, "/metrics");
  const LoadRun run = run_load(endpoint, requests, load);
  const auto after = http_get(endpoint, "/metrics");
  progress.clear();

  BenchConditions machine;
  describe_machine(machine);
  ServeConditions conditions{.date = machine.date,
                             .commit = machine.commit,
                             .cpu = machine.cpu,
                             .url = endpoint.url(),
                             .path = endpoint.path,
                             .model = f.model,
                             .workload = options,
                             .trace = f.trace,
                             .max_concurrency = concurrency,
                             .goodput = goodput};
  ServeResult result = summarize(std::move(conditions), run);
  result.server = risen(before, after);
  return result;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Result<int> run_serve(ServeFlags f) {
  DI_ASSIGN_OR_RETURN(const Endpoint endpoint, [&]() -> Result<Endpoint> {
    const bool by_parts = f.url.empty();
    auto parsed = Endpoint::Parse(by_parts ? "--host" : "--base-url",
                                  by_parts ? fmt::format("http://{}:{}", f.host, f.port) : f.url, f.endpoint);
    if (parsed) parsed->api_key = f.api_key;
    return parsed;
  }());
  DI_ASSIGN_OR_RETURN(const Goodput goodput, Goodput::Parse("--goodput", f.goodput));
  WorkloadOptions workload;
  workload.num_prompts = f.num_prompts;
  workload.input_len = f.input_len;
  workload.output_len = f.output_len;
  workload.length_jitter = f.length_jitter;
  workload.shared_prefix_ratio = f.shared_prefix_ratio;
  workload.num_prefixes = f.num_prefixes;
  workload.warmup = f.warmup;
  workload.vocab_size = f.vocab_size;
  workload.arrival = Arrival::kPoisson;
  workload.burstiness = f.burstiness;
  workload.time_scale = f.time_scale;
  if (f.trace.empty() && (f.max_input_len || f.max_output_len))
    return Err(Status::InvalidArgument("--max-input-len and --max-output-len need a --trace"));
  if (!f.trace.empty()) {
    if (!f.request_rate.empty())
      return Err(Status::InvalidArgument("--request-rate does not go with --trace, which has the times"));
    DI_ASSIGN_OR_RETURN(auto rows, load_trace(f.trace));
    for (TraceRow& row : rows) {
      row.input_len = std::min(row.input_len, f.max_input_len.value_or(row.input_len));
      row.prefix_len = std::min(row.prefix_len, row.input_len);
      row.output_len = std::min(row.output_len, f.max_output_len.value_or(row.output_len));
    }
    workload.arrival = Arrival::kTrace;
    workload.trace = std::make_shared<const std::vector<TraceRow>>(std::move(rows));
  }
  DI_ASSIGN_OR_RETURN(OutputFile json, OutputFile::Open("--json", f.json, f.append_result));
  DI_ASSIGN_OR_RETURN(OutputFile svg, OutputFile::Open("--svg", f.svg));
  DI_ASSIGN_OR_RETURN(OutputFile html, OutputFile::Open("--html", f.html));
  if (f.model.empty()) {
    DI_ASSIGN_OR_RETURN(f.model, first_model(endpoint));
  }
  cli::catch_signals();

  const auto rates = f.request_rate.empty() ? std::vector<double>{HUGE_VAL} : f.request_rate;
  const auto limits = f.max_concurrency.empty() ? std::vector<int64_t>{0} : f.max_concurrency;
  const bool sweep = rates.size() * limits.size() > 1;
  const auto print = [&](const std::string& text) {
    if (!json.is_stdout()) (void)cli::write_output(text);
  };
  if (sweep) print(rates_heading());
  std::vector<ServeResult> results;
  std::vector<ServePoint> points;
  for (const int64_t limit : limits) {
    for (const double rate : rates) {
      workload.request_rate = rate;
      workload.seed = static_cast<uint64_t>(f.seed) + results.size();  // prompts that no run before has left in the cache
      DI_ASSIGN_OR_RETURN(ServeResult result, run_one(f, endpoint, workload, limit, goodput));
      print(sweep ? rates_row(result) : format_table(result));
      const Json line = to_json(result);
      DI_RETURN_IF_ERROR(json.write(dump(line) + "\n"));
      if (auto point = read_point(Json::parse(dump(line)), f.label)) points.push_back(std::move(*point));
      const bool stopped = result.interrupted;
      results.push_back(std::move(result));
      if (stopped) break;
    }
    if (results.back().interrupted) break;
  }
  // Rates of one series only: with several limits the run before may have another one.
  if (const int64_t at = sweep && limits.size() == 1 ? knee(results) : -1; at >= 0) {
    print(fmt::format(
        "the server kept up to {}\n",
        at == 0 ? "none of these rates"
                : fmt::format("{:g} requests a second", results[static_cast<size_t>(at - 1)].conditions.workload.request_rate)));
  }
  if (!f.svg.empty()) DI_RETURN_IF_ERROR(svg.write(render_svg(serve_plots(points), "serve")));
  if (!f.html.empty()) DI_RETURN_IF_ERROR(html.write(serve_html(points)));
  if (results.back().interrupted) return cli::kInterruptedExit;
  return std::any_of(results.begin(), results.end(), [](const ServeResult& r) { return r.completed > 0; }) ? 0 : 1;
}

Result<int> run_report(const std::vector<std::string>& files, const std::string& output) {
  std::vector<ServePoint> points;
  for (const std::string& argument : files) {
    const size_t equals = argument.find('=');
    const std::string path = equals == std::string::npos ? argument : argument.substr(equals + 1);
    const std::string label = equals == std::string::npos ? path.substr(path.rfind('/') + 1) : argument.substr(0, equals);
    std::ifstream file(path, std::ios::binary);
    if (!file) return Err(Status::NotFound("{}: cannot read", path));
    std::string text;
    int64_t number = 0, bytes = 0;
    while (std::getline(file, text)) {
      ++number;
      bytes += static_cast<int64_t>(text.size());
      if (bytes > kMaxReportBytes) return Err(Status::OutOfRange("{}: more than {} bytes", path, kMaxReportBytes));
      if (text.empty()) continue;
      auto point = read_point(Json::parse(text, nullptr, /*allow_exceptions=*/false), label);
      if (!point) return Err(Status::InvalidArgument("{}, line {}: {}", path, number, point.error().message()));
      points.push_back(std::move(*point));
    }
  }
  if (points.empty()) return Err(Status::InvalidArgument("no run in {} file(s)", files.size()));
  DI_ASSIGN_OR_RETURN(OutputFile out, OutputFile::Open("--output", output));
  DI_RETURN_IF_ERROR(out.write(serve_html(points)));
  return 0;
}

}  // namespace

void add_serve_command(CLI::App& bench, cli::Command& chosen) {
  CLI::App* c = bench.add_subcommand("serve", "Load on any OpenAI-compatible server: throughput, latencies, goodput, the knee");
  auto f = std::make_shared<ServeFlags>();
  c->add_option("--base-url", f->url, "http://HOST[:PORT], instead of --host and --port")->type_name("URL");
  c->add_option("--host", f->host, "Name or address (default: 127.0.0.1)")->type_name("HOST");
  cli::add_whole(*c, "--port", f->port, 1, 65535, "(default: 8000)");
  c->add_option("--endpoint", f->endpoint, "/v1/completions (default) or /v1/chat/completions")->type_name("PATH");
  c->add_option("--model", f->model, "Name in the requests (default: the first that the server lists)")->type_name("NAME");
  c->add_option("--api-key", f->api_key, "Sent as a bearer token")->type_name("KEY");
  cli::add_whole(*c, "--num-prompts", f->num_prompts, 1, kMaxPrompts, "Requests (default: 100)");
  cli::add_whole(*c, "--random-input-len,--input-len", f->input_len, 1, kMaxLength, "Prompt tokens (default: 256)");
  cli::add_whole(*c, "--random-output-len,--output-len", f->output_len, 1, kMaxLength, "Tokens to generate (default: 64)");
  cli::add_real(*c, "--length-jitter", f->length_jitter, 0, 1, "Lengths vary by this part, evenly (default: 0)");
  cli::add_real(*c, "--shared-prefix-ratio", f->shared_prefix_ratio, 0, 1, "Part of each prompt that all share (default: 0)");
  cli::add_whole(*c, "--num-prefixes", f->num_prefixes, 1, kMaxPrompts, "Groups that share, each among itself (default: 1)", "K");
  cli::add_whole(*c, "--vocab-size", f->vocab_size, 16, int64_t{1} << 24,
                 "Prompts are random ids of a vocabulary of this size (default: 4096)");
  cli::add_real_list(*c, "--request-rate", f->request_rate, 1e-6, HUGE_VAL,
                     "Requests a second on average, at random times; a list is a sweep: 1,2,4 (default: inf, all at once)");
  cli::add_whole_list(*c, "--max-concurrency", f->max_concurrency, 1, kMaxPrompts,
                      "Requests in flight (default: no limit); a list is a sweep");
  cli::add_real(*c, "--burstiness", f->burstiness, 1e-3, 1e6,
                "Shape of the gamma distribution of the gaps; 1: Poisson, less: burstier (default: 1)");
  c->add_option("--trace", f->trace, "Our JSON Lines, Mooncake's, or Azure's CSV: requests come at its times")->type_name("FILE");
  cli::add_real(*c, "--time-scale", f->time_scale, 0, 1e6, "Times of the trace are multiplied by it (default: 1)");
  cli::add_whole(*c, "--max-input-len", f->max_input_len, 1, kMaxLength, "Longer prompts of the trace are cut");
  cli::add_whole(*c, "--max-output-len", f->max_output_len, 1, kMaxLength, "Longer answers of the trace are cut");
  c->add_option("--goodput", f->goodput, "Limits of a good request: ttft:500 tpot:50 e2el:5000, in ms")->type_name("NAME:MS");
  cli::add_real(*c, "--temperature", f->temperature, 0, 100, "0: greedy (default)", "T");
  c->add_flag("--no-ignore-eos", f->no_ignore_eos, "Answers may end early; for servers that don't know ignore_eos");
  cli::add_whole(*c, "--seed", f->seed, 0, INT64_MAX, "Same seed, same requests (default: 0)", "S");
  cli::add_whole(*c, "--num-warmups", f->warmup, 0, kMaxPrompts, "Requests before it counts (default: 0)");
  cli::add_real(*c, "--timeout", f->timeout, 1e-3, 1e6, "Seconds that an answer may be silent (default: 600)", "S");
  cli::add_real(*c, "--request-timeout", f->request_timeout, 1e-3, 1e6, "Seconds for a whole answer (default: 3600)", "S");
  c->add_option("--json,--save-result", f->json, "One JSON object a line and run, with vLLM's keys; -: standard output")
      ->type_name("FILE");
  c->add_flag("--append-result", f->append_result, "Append to the JSON file instead of replacing it");
  c->add_option("--svg", f->svg, "Plots: throughput against speed for one user, latencies")->type_name("FILE");
  c->add_option("--html", f->html, "A page with the plots and a table, which loads nothing")->type_name("FILE");
  c->add_option("--label", f->label, "Name of the series in plots (default: server)")->type_name("NAME");
  c->footer(
      "Labels and JSON keys are those of vllm bench serve. Examples:\n"
      "  deepinfer bench serve --base-url http://127.0.0.1:8000 --num-prompts 200 --request-rate 8 --goodput ttft:500 tpot:50\n"
      "  deepinfer bench serve --request-rate 2,4,8,16 --json ours.jsonl --svg ours.svg\n"
      "  deepinfer bench report ours=ours.jsonl peer=peer.jsonl -o report.html");
  c->callback([f, &chosen] { chosen = [f] { return run_serve(*f); }; });

  CLI::App* report = bench.add_subcommand("report", "One HTML page of several results of bench serve");
  auto files = std::make_shared<std::vector<std::string>>();
  auto output = std::make_shared<std::string>();
  report->add_option("files", *files, "JSON Lines of bench serve, each with a label or without")
      ->type_name("[LABEL=]FILE")
      ->required();
  report->add_option("-o,--output", *output, "The page; -: standard output")->type_name("FILE")->required();
  report->callback([files, output, &chosen] { chosen = [files, output] { return run_report(*files, *output); }; });
}

}  // namespace deepinfer::bench
