#include <algorithm>
#include <cmath>

#include "bench_command.h"
#include "serve/knee_search.h"
#include "serve/serve_flags.h"
#include "serve/serve_report.h"
#include "serve/serve_run.h"
#include "terminal.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBusyClient = 0.8;  ///< of a core: whose limit a knee is, is open

/// Runs one after the other; what each gives is written as soon as it is over.
class Sweep {
 public:
  static Result<Sweep> Open(const ServeFlags& flags, const ServePlan& plan) {
    Sweep out(flags, plan);
    DI_ASSIGN_OR_RETURN(out.json_, OutputFile::Open("--json", flags.json, flags.append_result));
    DI_ASSIGN_OR_RETURN(out.svg_, OutputFile::Open("--svg", flags.svg));
    DI_ASSIGN_OR_RETURN(out.html_, OutputFile::Open("--html", flags.html));
    return out;
  }

  Status run(double rate, int64_t limit) {
    // Prompts that no run before has left in the cache.
    const uint64_t seed = static_cast<uint64_t>(flags_.seed) + results_.size();
    DI_ASSIGN_OR_RETURN(ServeResult result, run_once(plan_, rate, limit, flags_.prompts_at(rate), seed));
    if (several_ && results_.empty()) print(rates_heading());
    print(several_ ? rates_row(result) : format_table(result));
    const std::string line = to_json(result).dump(-1, ' ', false, Json::error_handler_t::replace);
    DI_RETURN_IF_ERROR(json_.write(line + "\n"));
    DI_ASSIGN_OR_RETURN(ServePoint point, read_point(Json::parse(line), flags_.label));
    points_.push_back(std::move(point));
    results_.push_back(std::move(result));
    return Status::Ok();
  }

  bool interrupted() const { return !results_.empty() && results_.back().interrupted; }
  const std::vector<ServeResult>& results() const { return results_; }

  void print(const std::string& text) const {
    if (!json_.is_stdout() && !svg_.is_stdout() && !html_.is_stdout()) (void)cli::write_output(text);
  }

  Result<int> finish() {
    if (!flags_.svg.empty()) DI_RETURN_IF_ERROR(svg_.write(render_svg(serve_plots(points_), "serve")));
    if (!flags_.html.empty()) DI_RETURN_IF_ERROR(html_.write(serve_html(points_)));
    if (interrupted()) return cli::kInterruptedExit;
    return std::any_of(results_.begin(), results_.end(), [](const ServeResult& r) { return r.completed > 0; }) ? 0 : 1;
  }

 private:
  Sweep(const ServeFlags& flags, const ServePlan& plan)
      : flags_(flags), plan_(plan), several_(flags.find_knee || plan.rates.size() * plan.limits.size() > 1) {}

  const ServeFlags& flags_;
  const ServePlan& plan_;
  bool several_;
  OutputFile json_, svg_, html_;
  std::vector<ServeResult> results_;
  std::vector<ServePoint> points_;
};

Status find_knee(const ServePlan& plan, Sweep& sweep) {
  KneeSearch search(plan.rates.front());
  while (const auto rate = search.next()) {
    DI_RETURN_IF_ERROR(sweep.run(*rate, plan.limits.front()));
    if (sweep.interrupted()) return Status::Ok();
    search.tried(*rate, sweep.results().back().kept_up());
  }
  const bool none = search.kept_up() == 0, all = std::isinf(search.too_much());
  sweep.print(none  ? fmt::format("the server does not keep up with {:g} requests a second\n", search.too_much())
              : all ? fmt::format("the server keeps up with {:g} requests a second, where the search ends\n", search.kept_up())
                    : fmt::format("the server keeps up with {:g} requests a second, not with {:g}\n", search.kept_up(),
                                  search.too_much()));
  for (const ServeResult& r : sweep.results()) {
    if (r.conditions.workload.request_rate == search.too_much() && r.client_cpu_share > kBusyClient)
      sweep.print(fmt::format("the client used {:.0f} % of a core there: the limit may be its own\n", r.client_cpu_share * 100));
  }
  return Status::Ok();
}

/// The highest of the given rates below which all were kept up with.
void print_knee(const std::vector<ServeResult>& results, Sweep& sweep) {
  std::vector<const ServeResult*> by_rate;
  by_rate.reserve(results.size());
  for (const ServeResult& r : results) by_rate.push_back(&r);
  const auto rate = [](const ServeResult* r) { return r->conditions.workload.request_rate; };
  std::sort(by_rate.begin(), by_rate.end(), [&](auto* a, auto* b) { return rate(a) < rate(b); });
  const auto failed = std::find_if(by_rate.begin(), by_rate.end(), [](const ServeResult* r) { return !r->kept_up(); });
  if (failed == by_rate.end() || !std::isfinite(rate(*failed))) return;
  sweep.print(failed == by_rate.begin() ? "the server kept up with none of these rates\n"
                                        : fmt::format("the server kept up with {:g} requests a second, not with {:g}\n",
                                                      rate(*(failed - 1)), rate(*failed)));
}

Result<int> run_serve(const ServeFlags& flags) {
  DI_ASSIGN_OR_RETURN(ServePlan plan, flags.plan());
  DI_ASSIGN_OR_RETURN(Sweep sweep, Sweep::Open(flags, plan));
  cli::catch_signals();
  const Status probed = probe(plan, !flags.no_probe);
  if (cli::interrupted()) return cli::kInterruptedExit;
  DI_RETURN_IF_ERROR(probed);
  if (flags.find_knee) {
    DI_RETURN_IF_ERROR(find_knee(plan, sweep));
    return sweep.finish();
  }
  for (const int64_t limit : plan.limits) {
    for (const double rate : plan.rates) {
      if (!sweep.interrupted()) DI_RETURN_IF_ERROR(sweep.run(rate, limit));
    }
  }
  // Rates of one series only: with several limits the run before may have another one.
  if (plan.rates.size() > 1 && plan.limits.size() == 1 && !sweep.interrupted()) print_knee(sweep.results(), sweep);
  return sweep.finish();
}

}  // namespace

void add_serve_command(CLI::App& bench, cli::Command& chosen) {
  CLI::App* command =
      bench.add_subcommand("serve", "Load on any OpenAI-compatible server: throughput, latencies, goodput, the knee");
  auto flags = std::make_shared<ServeFlags>();
  flags->add_to(*command);
  command->footer(
      "Labels and JSON keys are those of vllm bench serve. Ctrl-C reports what was done until then (exit code 130).\n\n"
      "Examples:\n"
      "  deepinfer bench serve --base-url http://127.0.0.1:8000 --num-prompts 200 --request-rate 8 --goodput ttft:500 tpot:50\n"
      "  deepinfer bench serve --request-rate 2,4,8,16 --seconds-per-rate 30 --json ours.jsonl --svg ours.svg\n"
      "  deepinfer bench serve --find-knee --goodput ttft:500 tpot:50 --json ours.jsonl\n"
      "  deepinfer bench serve --endpoint /v1/chat/completions --num-clients 8 --num-rounds 5 --think-time 2 --num-prompts 200\n"
      "  deepinfer bench report ours=ours.jsonl peer=peer.jsonl -o report.html");
  command->callback([flags, &chosen] { chosen = [flags] { return run_serve(*flags); }; });
}

}  // namespace deepinfer::bench
