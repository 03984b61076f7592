#include "serve/serve_flags.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "flag_values.h"
#include "terminal.h"
#include "trace.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kMaxPrompts = 1'000'000;
constexpr int64_t kMaxLength = int64_t{1} << 24;
constexpr int64_t kMaxTurns = 10'000;
constexpr double kMaxSeconds = 1e6;
constexpr int64_t kDefaultPrompts = 100;
constexpr double kDefaultSecondsPerRate = 30;
constexpr int64_t kFewestPrompts = 16;  ///< of a run that is to take some seconds

void add_server(CLI::App& c, ServeFlags& f) {
  const auto in = [](CLI::Option* option) { option->group("Server"); };
  in(c.add_option("--base-url", f.url, "http[s]://HOST[:PORT][/PREFIX], instead of --host and --port")->type_name("URL"));
  in(c.add_option("--host", f.host, "Name or address (default: 127.0.0.1)")->type_name("HOST"));
  in(cli::add_whole(c, "--port", f.port, 1, 65535, "(default: 8000)"));
  in(c.add_option("--endpoint", f.endpoint, "/v1/completions (default) or /v1/chat/completions")->type_name("PATH"));
  in(c.add_option("--model", f.model, "Name in the requests (default: the first that the server lists)")->type_name("NAME"));
  in(c.add_option("--api-key", f.api_key, "Sent as a bearer token (default: the environment's OPENAI_API_KEY)")
         ->type_name("KEY"));
  in(c.add_option("--cacert", f.ca_file, "Authorities, in PEM, that its certificate may come from (default: the system's)")
         ->type_name("FILE"));
  in(c.add_flag("--insecure", f.insecure, "Certificates are not checked"));
  in(cli::add_real(c, "--timeout", f.timeout, 1e-3, kMaxSeconds, "Seconds that an answer may be silent (default: 600)", "S"));
  in(cli::add_real(c, "--request-timeout", f.request_timeout, 1e-3, kMaxSeconds, "Seconds for a whole answer (default: 3600)",
                   "S"));
  in(c.add_flag("--no-probe", f.no_probe, "No short request first, which finds out what the server knows"));
}

void add_workload(CLI::App& c, ServeFlags& f) {
  const auto in = [](CLI::Option* option) { option->group("Workload"); };
  in(cli::add_whole(c, "--num-prompts", f.num_prompts, 1, kMaxPrompts, "Requests (default: 100; all of a trace)"));
  in(cli::add_whole(c, "--random-input-len,--input-len", f.input_len, 1, kMaxLength, "Prompt tokens (default: 256)"));
  in(cli::add_whole(c, "--random-output-len,--output-len", f.output_len, 1, kMaxLength, "Tokens to generate (default: 64)"));
  in(cli::add_real(c, "--length-jitter", f.length_jitter, 0, 1, "Lengths vary by this part, evenly (default: 0)"));
  in(cli::add_real(c, "--shared-prefix-ratio", f.shared_prefix_ratio, 0, 1,
                   "Part of each prompt that all share; of sessions, their first (default: 0)"));
  in(cli::add_whole(c, "--num-prefixes", f.num_prefixes, 1, kMaxPrompts, "Groups that share, each among itself (default: 1)",
                    "K"));
  in(cli::add_whole(c, "--num-rounds", f.turns, 1, kMaxTurns,
                    "Requests of a session, each with the conversation so far and the model's own answers (default: 1)"));
  in(cli::add_whole(c, "--sub-question-input-length,--round-input-len", f.turn_input_len, 1, kMaxLength,
                    "Tokens that later rounds add (default: --input-len)"));
  in(cli::add_real(c, "--think-time", f.think_time, 0, kMaxSeconds,
                   "Seconds between answer and next round on average, exponentially distributed (default: 0)", "S"));
  in(c.add_option("--trace", f.trace, "Our JSON Lines, Mooncake's, or Azure's CSV: requests come at its times; -: standard input")
         ->type_name("FILE"));
  in(cli::add_real(c, "--time-scale", f.time_scale, 0, 1e6, "Times of the trace are multiplied by it (default: 1)"));
  in(cli::add_whole(c, "--max-input-len", f.max_input_len, 1, kMaxLength, "Longer prompts of the trace are cut"));
  in(cli::add_whole(c, "--max-output-len", f.max_output_len, 1, kMaxLength, "Longer answers of the trace are cut"));
  in(cli::add_whole(c, "--vocab-size", f.vocab_size, 16, int64_t{1} << 24,
                    "Prompts are random ids of a vocabulary of this size (default: 4096); in chats and sessions, words"));
  in(cli::add_whole(c, "--seed", f.seed, 0, INT64_MAX, "Same seed, same requests (default: 0)", "S"));
  in(cli::add_whole(c, "--num-warmups", f.warmup, 0, kMaxPrompts, "Requests before it counts (default: 0)"));
}

void add_load(CLI::App& c, ServeFlags& f) {
  const auto in = [](CLI::Option* option) { option->group("Load"); };
  in(cli::add_real_list(c, "--request-rate", f.request_rate, 1e-6, HUGE_VAL,
                        "Requests a second on average, at random times; a list is a sweep: 1,2,4 (default: inf, all at once)"));
  in(cli::add_real(c, "--burstiness", f.burstiness, 1e-3, 1e6,
                   "Shape of the gamma distribution of the gaps; 1: Poisson, less: burstier (default: 1)"));
  in(cli::add_whole_list(c, "--max-concurrency", f.max_concurrency, 1, kMaxPrompts,
                         "Requests in flight (default: no limit); a list is a sweep"));
  in(cli::add_whole_list(
      c, "--num-clients", f.num_clients, 1, kMaxPrompts,
      "Sessions at a time: a client whose session is over begins the next (default: no limit); a list is a sweep"));
  in(c.add_flag("--find-knee", f.find_knee,
                "Search: doubles the rate, from --request-rate or 1, until the server does not keep up, then narrows it down"));
  in(cli::add_real(c, "--seconds-per-rate", f.seconds_per_rate, 0.1, kMaxSeconds,
                   "Length of each run of a sweep, instead of --num-prompts (default: 30 of a search)", "S"));
}

void add_requests(CLI::App& c, ServeFlags& f) {
  const auto in = [](CLI::Option* option) { option->group("Requests"); };
  in(cli::add_real(c, "--temperature", f.temperature, 0, 100, "0: greedy (default)", "T"));
  in(c.add_flag("--no-ignore-eos", f.no_ignore_eos, "Answers may end early (default: only where the server refuses ignore_eos)"));
  in(c.add_option("--extra-body", f.extra_body, "An object whose members each request gets, too")->type_name("JSON"));
}

void add_output(CLI::App& c, ServeFlags& f) {
  const auto in = [](CLI::Option* option) { option->group("Output"); };
  in(c.add_option("--goodput", f.goodput, "Limits of a good request: ttft:500 tpot:50 e2el:5000, in ms")->type_name("LIMITS"));
  in(c.add_option("--json,--save-result", f.json,
                  "One JSON object a line and run, with vLLM's keys; -: standard output, without the table")
         ->type_name("FILE"));
  in(c.add_flag("--append-result", f.append_result, "Append to the JSON file instead of replacing it"));
  in(c.add_option("--svg", f.svg, "Plots: throughput against speed for one user, latencies")->type_name("FILE"));
  in(c.add_option("--html", f.html, "A page with the plots and a table, which loads nothing")->type_name("FILE"));
  in(c.add_option("--label", f.label, "Name of the series in plots (default: server)")->type_name("NAME"));
}

Status clash(const char* one, const char* other) { return Status::InvalidArgument("{} does not go with {}", one, other); }

Status check_trace(const ServeFlags& f) {
  if (f.trace.empty()) {
    if (f.max_input_len) return Status::InvalidArgument("--max-input-len needs a --trace");
    if (f.max_output_len) return Status::InvalidArgument("--max-output-len needs a --trace");
    return Status::Ok();
  }
  if (!f.request_rate.empty()) return clash("--request-rate", "--trace, which has the times");
  if (f.find_knee) return clash("--find-knee", "--trace, which has the times");
  if (f.seconds_per_rate) return clash("--seconds-per-rate", "--trace, which has the times");
  if (f.turns > 1) return clash("--num-rounds", "--trace, whose requests stand for themselves");
  if (f.shared_prefix_ratio > 0) return clash("--shared-prefix-ratio", "--trace, which has its own prefixes");
  return Status::Ok();
}

Status check_load(const ServeFlags& f) {
  if (!f.num_clients.empty() && !f.max_concurrency.empty())
    return clash("--num-clients", "--max-concurrency: a client has one request in flight");
  if (f.seconds_per_rate && f.num_prompts) return clash("--seconds-per-rate", "--num-prompts");
  if (f.seconds_per_rate && !f.find_knee && f.request_rate.empty())
    return Status::InvalidArgument("--seconds-per-rate needs a --request-rate");
  if (f.turns == 1 && f.think_time > 0) return Status::InvalidArgument("--think-time needs --num-rounds of at least 2");
  if (f.turns == 1 && f.turn_input_len) return Status::InvalidArgument("--round-input-len needs --num-rounds of at least 2");
  if (f.num_prefixes > 1 && f.trace.empty() && f.shared_prefix_ratio == 0)
    return Status::InvalidArgument("--num-prefixes is {}, but nothing is shared: give --shared-prefix-ratio", f.num_prefixes);
  if (!f.find_knee) return Status::Ok();
  if (f.request_rate.size() > 1) return clash("--find-knee", "a list of --request-rate, which is a sweep");
  if (f.num_clients.size() > 1 || f.max_concurrency.size() > 1) return clash("--find-knee", "a list of limits, which is a sweep");
  if (!f.request_rate.empty() && std::isinf(f.request_rate.front())) return clash("--find-knee", "--request-rate inf");
  return Status::Ok();
}

Result<Endpoint> make_endpoint(const ServeFlags& f) {
  if (f.url.empty() && (f.host.empty() || f.host.find_first_of("/?#@ \t\r\n") != std::string::npos)) {
    return Err(Status::InvalidArgument("--host is \"{}\", must be a name or an address; a URL goes into --base-url",
                                       cli::one_line(f.host)));
  }
  const bool bare_address = f.host.find(':') != std::string::npos && !f.host.starts_with('[');
  const std::string url =
      !f.url.empty() ? f.url : fmt::format("http://{}:{}", bare_address ? "[" + f.host + "]" : f.host, f.port);
  DI_ASSIGN_OR_RETURN(Endpoint out, Endpoint::Parse(f.url.empty() ? "--host" : "--base-url", url, f.endpoint));
  const char* const key = std::getenv("OPENAI_API_KEY");
  out.api_key = !f.api_key.empty() ? f.api_key : key != nullptr ? key : "";
  if (std::any_of(out.api_key.begin(), out.api_key.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }))
    return Err(Status::InvalidArgument("--api-key has a line break or another character that a header cannot carry"));
  if (!out.tls && (f.insecure || !f.ca_file.empty()))
    return Err(Status::InvalidArgument("{} needs a --base-url of https", f.insecure ? "--insecure" : "--cacert"));
  if (f.insecure && !f.ca_file.empty()) return Err(clash("--insecure", "--cacert"));
  out.insecure = f.insecure;
  out.ca_file = f.ca_file;
  return out;
}

Result<RequestFormat> make_format(const ServeFlags& f) {
  RequestFormat out;
  out.chat = f.endpoint.find("chat") != std::string::npos;
  out.words = f.turns > 1;
  out.model = f.model;
  out.temperature = f.temperature;
  out.ignore_eos = !f.no_ignore_eos;
  if (f.extra_body.empty()) return out;
  out.extra = nlohmann::ordered_json::parse(f.extra_body, nullptr, /*allow_exceptions=*/false);
  if (!out.extra.is_object())
    return Err(
        Status::InvalidArgument("--extra-body is \"{}\", must be a JSON object", cli::one_line(f.extra_body.substr(0, 100))));
  for (const char* ours : {"model", "prompt", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens",
                           "seed", "ignore_eos", "temperature"}) {
    if (out.extra.contains(ours)) return Err(Status::InvalidArgument("--extra-body has {}, which has a flag or is fixed", ours));
  }
  return out;
}

Result<WorkloadOptions> make_options(const ServeFlags& f) {
  WorkloadOptions out;
  out.arrival = Arrival::kPoisson;
  out.input_len = f.input_len;
  out.output_len = f.output_len;
  out.length_jitter = f.length_jitter;
  out.shared_prefix_ratio = f.shared_prefix_ratio;
  out.num_prefixes = f.num_prefixes;
  out.turns = f.turns;
  out.turn_input_len = f.turn_input_len.value_or(0);
  out.think_time = f.think_time;
  out.burstiness = f.burstiness;
  out.time_scale = f.time_scale;
  out.warmup = f.warmup;
  out.vocab_size = f.vocab_size;
  if (f.trace.empty()) return out;
  auto rows = load_trace(f.trace);
  if (!rows) return Err(rows.error().with_context("--trace"));
  for (TraceRow& row : *rows) {
    row.input_len = std::min(row.input_len, f.max_input_len.value_or(row.input_len));
    row.prefix_len = std::min(row.prefix_len, row.input_len);
    row.output_len = std::min(row.output_len, f.max_output_len.value_or(row.output_len));
  }
  out.arrival = Arrival::kTrace;
  out.trace = std::make_shared<const std::vector<TraceRow>>(std::move(*rows));
  return out;
}

}  // namespace

void ServeFlags::add_to(CLI::App& command) {
  add_server(command, *this);
  add_workload(command, *this);
  add_load(command, *this);
  add_requests(command, *this);
  add_output(command, *this);
}

Result<ServePlan> ServeFlags::plan() const {
  DI_RETURN_IF_ERROR(check_trace(*this));
  DI_RETURN_IF_ERROR(check_load(*this));
  ServePlan out;
  DI_ASSIGN_OR_RETURN(out.endpoint, make_endpoint(*this));
  DI_ASSIGN_OR_RETURN(out.format, make_format(*this));
  DI_ASSIGN_OR_RETURN(out.goodput, Goodput::Parse("--goodput", goodput));
  DI_ASSIGN_OR_RETURN(out.workload, make_options(*this));
  out.trace = trace;
  out.timeout = timeout;
  out.request_timeout = request_timeout;
  out.rates = request_rate.empty() ? std::vector<double>{find_knee ? 1.0 : HUGE_VAL} : request_rate;
  out.limits_are_clients = !num_clients.empty();
  out.limits = out.limits_are_clients ? num_clients : max_concurrency;
  if (out.limits.empty()) out.limits = {0};
  return out;
}

int64_t ServeFlags::prompts_at(double rate) const {
  if (num_prompts) return *num_prompts;
  if (!trace.empty()) return 0;
  if ((!find_knee && !seconds_per_rate) || !std::isfinite(rate)) return kDefaultPrompts;
  const double wanted = rate * seconds_per_rate.value_or(kDefaultSecondsPerRate);
  const auto count = static_cast<int64_t>(std::clamp(std::ceil(wanted), 1.0, static_cast<double>(kMaxPrompts)));
  return std::max(kFewestPrompts, (count + turns - 1) / turns * turns);  // whole sessions
}

}  // namespace deepinfer::bench
