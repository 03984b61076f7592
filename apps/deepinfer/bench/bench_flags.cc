#include "bench_flags.h"

#include <algorithm>
#include <cmath>

#include "flag_values.h"
#include "trace.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kMaxPrompts = 10'000'000;
constexpr int64_t kMaxConcurrency = 1'000'000;
constexpr int64_t kMaxLength = int64_t{1} << 24;
constexpr int64_t kDefaultConcurrency = 16;
constexpr int64_t kDefaultOpenPrompts = 128;
constexpr size_t kMaxRuns = 1000;

template <typename T>
CLI::Option* add_one_or_more(CLI::App& c, bool sweep, const std::string& names, std::vector<T>& target, T low, T high,
                             const std::string& description) {
  const auto single = [&](auto parse) {
    return cli::add_value(c, names, description, "N", [&target, low, high, parse](const std::string& text) -> Status {
      DI_ASSIGN_OR_RETURN(const T value, parse(text, low, high));
      target = {value};
      return Status::Ok();
    });
  };
  if constexpr (std::is_same_v<T, double>) {
    return sweep ? cli::add_real_list(c, names, target, low, high, description)
                 : single([](const std::string& t, double l, double h) { return cli::parse_real(t, l, h); });
  } else {
    return sweep ? cli::add_whole_list(c, names, target, low, high, description)
                 : single([](const std::string& t, int64_t l, int64_t h) { return cli::parse_whole(t, l, h); });
  }
}

/// Values of the list, or the default alone.
template <typename T>
std::vector<T> values_or(const std::vector<T>& values, T otherwise) {
  return values.empty() ? std::vector<T>{otherwise} : values;
}

void add_workload(CLI::App& c, BenchFlags& f, bool sweep) {
  const auto in = [](CLI::Option* option) { option->group("Workload"); };
  const std::string several = sweep ? "; a list: 1,4,16" : "";
  in(add_one_or_more(c, sweep, "--input-len", f.input_len, int64_t{1}, kMaxLength, "Prompt tokens (default: 256)" + several));
  in(add_one_or_more(c, sweep, "--output-len", f.output_len, int64_t{1}, kMaxLength,
                     "Tokens to generate (default: 64)" + several));
  in(cli::add_whole(c, "--num-prompts", f.num_prompts, 1, kMaxPrompts,
                    "Requests (default: 4 x concurrency, at least 16; 128 in an open loop; all of a trace)"));
  in(add_one_or_more(c, sweep, "--max-concurrency,--concurrency", f.concurrency, int64_t{1}, kMaxConcurrency,
                     "Requests in flight (default: 16; in an open loop no limit)" + several));
  in(cli::add_choice(c, "--arrival", f.arrival, {"closed", "poisson", "trace"},
                     "closed: the next when one ends; poisson: at random times; trace: from a file"));
  in(cli::add_real(c, "--request-rate", f.request_rate, 1e-6, HUGE_VAL, "Requests a second on average, or inf; implies poisson",
                   "R"));
  in(c.add_option("--trace", f.trace, "Our JSON Lines, Mooncake's, or Azure's CSV; implies trace")->type_name("FILE"));
  in(add_one_or_more(c, sweep, "--shared-prefix-ratio", f.shared_prefix_ratio, 0.0, 1.0,
                     sweep ? "Part of each prompt that all share (default: 0); a list: 0,0.9"
                           : "Part of each prompt that all share (default: 0)"));
  in(cli::add_whole(c, "--num-prefixes", f.num_prefixes, 1, kMaxPrompts, "Groups that share, each among itself (default: 1)",
                    "K"));
  in(cli::add_real(c, "--length-jitter", f.length_jitter, 0, 1, "Lengths vary by this part, evenly (default: 0)"));
  in(cli::add_whole(c, "--seed", f.seed, 0, INT64_MAX, "Same seed, same requests (default: 0)", "S"));
  in(cli::add_whole(c, "--num-warmups,--warmup", f.warmup, 0, kMaxPrompts, "Requests before it counts (default: 0)"));
  in(cli::add_real(c, "--duration", f.duration, 1e-3, 1e7,
                   "Seconds, after which what still runs is cancelled (default: no limit)", "S"));
}

void add_requests(CLI::App& c, BenchFlags& f) {
  const auto in = [](CLI::Option* option) { option->group("Requests"); };
  SamplingParams& s = f.settings.sampling;
  in(cli::add_real(c, "--temperature", s.temperature, 0, 100, "0: greedy (default: 1)", "T"));
  in(cli::add_real(c, "--top-p", s.top_p, 1e-6, 1, "Smallest set of tokens with this probability (default: 1, off)", "P"));
  in(cli::add_whole(c, "--top-k", s.top_k, 0, kMaxLength, "The K most probable tokens (default: 0, off)", "K"));
  in(cli::add_whole(c, "-n,--n", f.settings.n, 1, kMaxChoices, "Answers to each prompt (default: 1)"));
  in(c.add_flag("--no-ignore-eos", f.no_ignore_eos, "Answers may end early (default: they have the wanted length)"));
  in(cli::add_choice(c, "--cache-class", f.cache_class, {"chat", "agent", "pinned"},
                     "How long the pages of prompts are kept (default: chat)"));
  in(cli::add_whole(c, "--priority", f.settings.priority, -1'000'000, 1'000'000, "Smaller runs sooner (default: 0)", "P"));
}

void add_output(CLI::App& c, BenchFlags& f, bool sweep) {
  const auto in = [](CLI::Option* option) { option->group("Output"); };
  const auto file = [&](const char* name, std::string& target, const char* description) {
    in(c.add_option(name, target, description)->type_name("FILE"));
  };
  if (sweep) {
    file("--json", f.json, "One JSON object a line and run; -: standard output, without the table");
    file("--csv", f.csv, "One line per run; -: standard output, without the table");
    file("--svg", f.svg, "Plots: throughput, time to the first token, inter-token time");
    file("--html", f.html, "A page with the plots and the table, which loads nothing");
    in(c.add_flag("--reuse-engine", f.reuse_engine,
                  "One engine for all runs, each with its own prompts (default: a fresh one each)"));
  } else {
    file("--json", f.json, "The result as one JSON object; -: standard output, without the table");
    file("--save-requests", f.save_requests, "CSV, one line per request");
  }
  in(c.add_flag("--append-result", f.append_result, "Append to the JSON file instead of replacing it"));
}

Result<Arrival> choose_arrival(const BenchFlags& f) {
  const std::string implied = !f.trace.empty() ? "trace" : f.request_rate.has_value() ? "poisson" : "closed";
  const std::string arrival = f.arrival.value_or(implied);
  const auto contradiction = [&](const char* flag, const char* wanted) {
    return Err(Status::InvalidArgument("{} needs --arrival {}, which is {}", flag, wanted, arrival));
  };
  if (arrival == "trace" && f.trace.empty())
    return Err(Status::InvalidArgument("--arrival is trace: give the file with --trace"));
  if (arrival != "trace" && !f.trace.empty()) return contradiction("--trace", "trace");
  if (arrival != "poisson" && f.request_rate.has_value()) return contradiction("--request-rate", "poisson");
  if (arrival != "trace") return arrival == "closed" ? Arrival::kClosed : Arrival::kPoisson;
  const std::pair<const char*, bool> shapes[] = {{"--input-len", !f.input_len.empty()},
                                                 {"--output-len", !f.output_len.empty()},
                                                 {"--shared-prefix-ratio", !f.shared_prefix_ratio.empty()},
                                                 {"--num-prefixes", f.num_prefixes.has_value()},
                                                 {"--length-jitter", f.length_jitter.has_value()}};
  for (const auto& [flag, given] : shapes) {
    if (given) return Err(Status::InvalidArgument("{} does not go with --trace, which has the lengths", flag));
  }
  return Arrival::kTrace;
}

int64_t default_prompts(Arrival arrival, int64_t concurrency) {
  if (arrival == Arrival::kTrace) return 0;
  return arrival == Arrival::kPoisson ? kDefaultOpenPrompts : std::max<int64_t>(4 * concurrency, 16);
}

}  // namespace

void BenchFlags::add_to(CLI::App& command, bool sweep) {
  engine.add_to(command);
  add_workload(command, *this, sweep);
  add_requests(command, *this);
  add_output(command, *this, sweep);
  if (!sweep) trace_file.add_to(command, "--trace-file");  // --trace is a workload here
}

Result<std::vector<RunPlan>> BenchFlags::plans() const {
  RunPlan base;
  WorkloadOptions& w = base.workload;
  DI_ASSIGN_OR_RETURN(w.arrival, choose_arrival(*this));
  if (num_prefixes.value_or(1) > 1 &&
      std::all_of(shared_prefix_ratio.begin(), shared_prefix_ratio.end(), [](double ratio) { return ratio == 0; })) {
    return Err(Status::InvalidArgument("--num-prefixes is {}, but nothing is shared: give --shared-prefix-ratio", *num_prefixes));
  }
  if (!trace.empty()) {
    auto rows = load_trace(trace);
    if (!rows) return Err(rows.error().with_context("--trace"));
    w.trace = std::make_shared<const std::vector<TraceRow>>(std::move(*rows));
    base.trace = trace;
  }
  w.request_rate = request_rate.value_or(HUGE_VAL);
  w.length_jitter = length_jitter.value_or(0);
  w.num_prefixes = num_prefixes.value_or(1);
  w.seed = static_cast<uint64_t>(seed);
  w.warmup = warmup.value_or(0);
  w.cache_class = cache_class.value_or("chat");
  base.settings = settings;
  base.settings.ignore_eos = !no_ignore_eos;
  base.duration = duration;

  const int64_t no_limit = w.arrival == Arrival::kClosed ? kDefaultConcurrency : 0;
  std::vector<RunPlan> out;
  for (const double ratio : values_or(shared_prefix_ratio, 0.0)) {
    for (const int64_t input : values_or(input_len, w.input_len)) {
      for (const int64_t output : values_or(output_len, w.output_len)) {
        for (const int64_t in_flight : values_or(concurrency, no_limit)) {
          RunPlan run = base;
          run.concurrency = in_flight;
          run.workload.shared_prefix_ratio = ratio;
          run.workload.input_len = input;
          run.workload.output_len = output;
          run.workload.num_prompts = num_prompts.value_or(default_prompts(w.arrival, in_flight));
          out.push_back(std::move(run));
          if (out.size() > kMaxRuns) return Err(Status::OutOfRange("the lists make more than {} runs", kMaxRuns));
        }
      }
    }
  }
  return out;
}

}  // namespace deepinfer::bench
