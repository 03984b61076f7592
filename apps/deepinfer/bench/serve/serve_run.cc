#include "serve/serve_run.h"

#include <array>
#include <cmath>

#include "progress.h"
#include "serve/http_client.h"
#include "serve/server_counters.h"
#include "terminal.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kWarmupConcurrency = 16;
constexpr int64_t kProbeInputLen = 8, kProbeOutputLen = 2;

Result<std::string> first_model(const Endpoint& endpoint) {
  DI_ASSIGN_OR_RETURN(const std::string text, http_get(endpoint, "/v1/models"));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer name("/data/0/id");
  if (!json.is_object() || !json.contains(name) || !json[name].is_string())
    return Err(Status::FailedPrecondition("{}/v1/models lists no model: give --model", endpoint.url()));
  return json[name].get<std::string>();
}

LoadOptions load_options(const ServePlan& plan) {
  LoadOptions out;
  out.timeout = plan.timeout;
  out.request_timeout = plan.request_timeout;
  out.stop = [] { return cli::interrupted(); };
  return out;
}

/// The sessions of a workload, each with the bodies of its first turn.
class Sessions {
 public:
  Sessions(const RequestFormat& format, const std::vector<PlannedRequest>& requests) : format_(format), requests_(requests) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      const PlannedRequest& request = requests_[i];
      if (request.turn == 0) {
        first_.push_back(i);
        list_.push_back({.at = request.arrival, .body = request_body(format_, {&request, 1}, {}), .turns = {}});
      }
      list_.back().turns.push_back(
          {.input_tokens = static_cast<int64_t>(request.prompt.size()), .think_time = request.think_time});
    }
  }
  const std::vector<LoadSession>& list() const { return list_; }

  std::string next_body(int64_t session, const std::vector<std::string>& answers) const {
    return request_body(format_, {&requests_[first_[static_cast<size_t>(session)]], answers.size() + 1}, answers);
  }

 private:
  const RequestFormat& format_;
  const std::vector<PlannedRequest>& requests_;
  std::vector<size_t> first_;
  std::vector<LoadSession> list_;
};

/// What became of a short request in `format`.
Result<LoadRecord> try_format(const ServePlan& plan, const RequestFormat& format) {
  WorkloadOptions small;
  small.num_prompts = 1;
  small.input_len = kProbeInputLen;
  small.output_len = kProbeOutputLen;
  small.vocab_size = plan.workload.vocab_size;
  small.seed = ~plan.workload.seed;
  DI_ASSIGN_OR_RETURN(const Workload workload, make_workload(small));
  const Sessions sessions(format, workload.requests);
  DI_ASSIGN_OR_RETURN(LoadRun run, run_load(plan.endpoint, sessions.list(), load_options(plan)));
  return std::move(run.records.front());
}

/// A way to ask for less, in the order in which they are tried.
struct Concession {
  const char* field;
  void (*make)(RequestFormat& format);
};
constexpr std::array<Concession, 3> kConcessions = {{
    {"max_tokens", [](RequestFormat& f) { f.max_completion_tokens = true; }},
    {"ignore_eos", [](RequestFormat& f) { f.ignore_eos = false; }},
    {"stream_options", [](RequestFormat& f) { f.include_usage = false; }},
}};

bool refused(const LoadRecord& record) { return record.error.starts_with("HTTP 400:") || record.error.starts_with("HTTP 422:"); }

/// The format with as few concessions as the server lets pass. A refusal that names a field is believed; one that doesn't is
/// answered with less and less.
Result<RequestFormat> accepted_format(const ServePlan& plan) {
  RequestFormat format = plan.format;
  DI_ASSIGN_OR_RETURN(LoadRecord record, try_format(plan, format));
  const std::string first_error = record.error;
  std::array<bool, kConcessions.size()> made{};
  while (!record.ok() && refused(record)) {
    const auto useful = [&](size_t i) {
      return !made[i] && (i != 0 || record.error.find("max_completion_tokens") != std::string::npos) &&
             (i != 1 || format.ignore_eos);
    };
    size_t chosen = kConcessions.size();
    for (size_t i = kConcessions.size(); i-- > 0;) {
      if (useful(i)) chosen = i;
    }
    for (size_t i = 0; i < kConcessions.size(); ++i) {
      if (useful(i) && record.error.find(kConcessions[i].field) != std::string::npos) {
        chosen = i;
        break;
      }
    }
    if (chosen == kConcessions.size()) break;
    made[chosen] = true;
    kConcessions[chosen].make(format);
    DI_ASSIGN_OR_RETURN(record, try_format(plan, format));
  }
  if (!record.ok()) {
    return Err(Status::FailedPrecondition("{}{}: a first short request failed: {}", plan.endpoint.url(), plan.endpoint.path,
                                          first_error));
  }
  for (size_t i = 0; i < kConcessions.size(); ++i) {
    if (made[i]) cli::print_error(fmt::format("the server refuses {}: left out", kConcessions[i].field));
  }
  return format;
}

}  // namespace

Status probe(ServePlan& plan, bool with_request) {
  if (plan.format.model.empty()) {
    DI_ASSIGN_OR_RETURN(plan.format.model, first_model(plan.endpoint));
  }
  if (with_request) {
    DI_ASSIGN_OR_RETURN(plan.format, accepted_format(plan));
  }
  return Status::Ok();
}

Result<ServeResult> run_once(const ServePlan& plan, double rate, int64_t limit, int64_t num_prompts, uint64_t seed) {
  WorkloadOptions options = plan.workload;
  options.request_rate = rate;
  options.num_prompts = num_prompts;
  options.seed = seed;
  DI_ASSIGN_OR_RETURN(const Workload workload, make_workload(options));
  LoadOptions load = load_options(plan);
  if (!workload.warmup.empty()) {
    const Sessions warmup(plan.format, workload.warmup);
    load.max_concurrency = limit > 0 ? limit : kWarmupConcurrency;
    DI_ASSIGN_OR_RETURN(const LoadRun ignored, run_load(plan.endpoint, warmup.list(), load));
  }
  const Sessions sessions(plan.format, workload.requests);
  load.max_concurrency = plan.limits_are_clients ? 0 : limit;
  load.num_clients = plan.limits_are_clients ? limit : 0;
  load.next_body = [&](int64_t session, const std::vector<std::string>& answers) { return sessions.next_body(session, answers); };
  cli::ProgressLine progress;
  load.progress = [&](const LoadProgress& p) {
    progress.update("requests", static_cast<double>(p.done), static_cast<double>(p.total),
                    fmt::format("{} of {}, {} in flight, {} failed", p.done, p.total, p.in_flight, p.failed));
  };
  const auto before = http_get(plan.endpoint, "/metrics");
  DI_ASSIGN_OR_RETURN(const LoadRun run, run_load(plan.endpoint, sessions.list(), load));
  const auto after = http_get(plan.endpoint, "/metrics");
  progress.clear();

  BenchConditions machine;
  describe_machine(machine);
  ServeConditions conditions{.date = machine.date,
                             .commit = machine.commit,
                             .cpu = machine.cpu,
                             .url = plan.endpoint.url(),
                             .path = plan.endpoint.path,
                             .model = plan.format.model,
                             .workload = std::move(options),
                             .trace = plan.trace,
                             .max_concurrency = load.max_concurrency,
                             .num_clients = load.num_clients,
                             .ignore_eos = plan.format.ignore_eos,
                             .goodput = plan.goodput};
  ServeResult result = summarize(std::move(conditions), run);
  result.server = risen(before, after);
  return result;
}

}  // namespace deepinfer::bench
