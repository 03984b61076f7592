#include "bench_command.h"
#include "sweep_report.h"
#include "terminal.h"

namespace deepinfer::bench {
namespace {

/// Where a sweep's results go as they come, and at the end.
class SweepOutput {
 public:
  static Result<SweepOutput> Open(const BenchFlags& flags) {
    SweepOutput out;
    DI_ASSIGN_OR_RETURN(out.json_, OutputFile::Open("--json", flags.json, flags.append_result));
    DI_ASSIGN_OR_RETURN(out.csv_, OutputFile::Open("--csv", flags.csv));
    DI_ASSIGN_OR_RETURN(out.svg_, OutputFile::Open("--svg", flags.svg));
    DI_ASSIGN_OR_RETURN(out.html_, OutputFile::Open("--html", flags.html));
    const OutputFile* const files[] = {&out.json_, &out.csv_, &out.svg_, &out.html_};
    int on_stdout = 0;
    for (const OutputFile* file : files) on_stdout += file->is_stdout() ? 1 : 0;
    if (on_stdout > 1)
      return Err(Status::InvalidArgument("more than one of --json, --csv, --svg and --html is -: standard output takes one"));
    out.table_ = on_stdout == 0;
    return out;
  }

  Status begin() {
    DI_RETURN_IF_ERROR(csv_.write(sweep_csv_heading()));
    return table(sweep_heading());
  }

  Status add(BenchResult result) {
    DI_RETURN_IF_ERROR(
        json_.write(to_json(result).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"));
    DI_RETURN_IF_ERROR(csv_.write(sweep_csv_row(result)));
    DI_RETURN_IF_ERROR(table(sweep_row(result)));
    results_.push_back(std::move(result));
    return Status::Ok();
  }

  Status end() {
    if (results_.empty()) return Status::Ok();
    DI_RETURN_IF_ERROR(svg_.write(render_svg(sweep_plots(results_))));
    return html_.write(sweep_html(results_));
  }

  const std::vector<BenchResult>& results() const { return results_; }

 private:
  Status table(const std::string& text) const {
    if (!table_) return Status::Ok();
    const Status written = cli::write_output(text);
    return written.code() == StatusCode::kCancelled ? Status::Ok() : written;
  }

  OutputFile json_, csv_, svg_, html_;
  bool table_ = true;
  std::vector<BenchResult> results_;
};

/// Runs every plan; an error of one ends it, and what was measured before stays.
Status run_plans(std::vector<RunPlan> plans, const BenchFlags& flags, const EngineOptions& options, const EngineFactory& factory,
                 SweepOutput& output) {
  std::unique_ptr<Engine> engine;
  for (size_t i = 0; i < plans.size() && !cli::interrupted(); ++i) {
    RunPlan plan = plans[i];
    if (!flags.reuse_engine) engine.reset();  // two at once would need twice the memory
    if (engine == nullptr) {
      DI_ASSIGN_OR_RETURN(engine, factory(options));
    }
    if (i == 0) {
      // The last combination may not fit; better to know before the first has run for an hour.
      for (const RunPlan& each : plans) DI_RETURN_IF_ERROR(check_lengths(each, engine->model()));
      DI_RETURN_IF_ERROR(output.begin());
    }
    // In one engine, the same prompts would be cached from the run before.
    if (flags.reuse_engine) plan.workload.seed += i;
    const std::string label = fmt::format("run {} of {}", i + 1, plans.size());
    DI_ASSIGN_OR_RETURN(Measured measured, measure(*engine, std::move(plan), label, flags.reuse_engine));
    DI_RETURN_IF_ERROR(output.add(std::move(measured.result)));
  }
  return Status::Ok();
}

Result<int> run_sweep(const BenchFlags& flags, const EngineFactory& factory) {
  DI_ASSIGN_OR_RETURN(std::vector<RunPlan> plans, flags.plans());
  DI_ASSIGN_OR_RETURN(const EngineOptions options, engine_options(flags));
  DI_ASSIGN_OR_RETURN(SweepOutput output, SweepOutput::Open(flags));
  const size_t count = plans.size();
  cli::catch_signals();
  const Status status = run_plans(std::move(plans), flags, options, factory, output);
  DI_RETURN_IF_ERROR(output.end());
  if (!status.ok()) return Err(status);

  int64_t failed = 0, completed = 0;
  std::string first_error;
  for (const BenchResult& result : output.results()) {
    failed += result.failed;
    completed += result.completed;
    if (first_error.empty()) first_error = result.first_error;
  }
  if (failed > 0) cli::print_error(fmt::format("{} requests failed, the first with: {}", failed, first_error));
  if (cli::interrupted()) {
    cli::print_diagnostic(
        fmt::format("interrupted in run {} of {}: only what was done until then\n", output.results().size(), count));
    return cli::kInterruptedExit;
  }
  return failed > 0 && completed == 0 ? 1 : 0;
}

}  // namespace

void add_sweep_command(CLI::App& bench, cli::Command& chosen, const EngineFactory& factory) {
  CLI::App* command = bench.add_subcommand("sweep", "A run for every combination of settings, with a table and plots");
  auto flags = std::make_shared<BenchFlags>();
  flags->add_to(*command, /*sweep=*/true);
  command->footer(
      "Lists are values with commas between them. A row of the table comes as soon as its run is over.\n"
      "Ctrl-C ends the sweep with what was done (exit code 130).\n\n"
      "Example:\n"
      "  deepinfer bench sweep -m models/nano --concurrency 1,4,16,64 --input-len 128,512 --shared-prefix-ratio 0,0.9 \\\n"
      "    --json sweep.jsonl --html sweep.html");
  command->callback([flags, factory, &chosen] { chosen = [flags, factory] { return run_sweep(*flags, factory); }; });
}

}  // namespace deepinfer::bench
