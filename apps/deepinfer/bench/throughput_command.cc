#include "bench_command.h"
#include "terminal.h"

namespace deepinfer::bench {
namespace {

Result<int> run_throughput(const BenchFlags& flags, const EngineFactory& factory) {
  DI_ASSIGN_OR_RETURN(std::vector<RunPlan> plans, flags.plans());
  DI_ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags));
  DI_ASSIGN_OR_RETURN(OutputFile json, OutputFile::Open("--json", flags.json, flags.append_result));
  DI_ASSIGN_OR_RETURN(OutputFile requests, OutputFile::Open("--save-requests", flags.save_requests));
  if (json.is_stdout() && requests.is_stdout())
    return Err(Status::InvalidArgument("--json and --save-requests are both -: standard output takes one of them"));
  DI_ASSIGN_OR_RETURN(cli::Trace trace, cli::Trace::Start(flags.trace_file));
  options.trace = trace.recorder();
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, factory(options));

  cli::catch_signals();
  DI_ASSIGN_OR_RETURN(const Measured measured, measure(*engine, std::move(plans.front()), "requests", /*reused_engine=*/false));
  engine->shutdown();
  DI_RETURN_IF_ERROR(trace.finish());
  const BenchResult& result = measured.result;
  DI_RETURN_IF_ERROR(json.write(to_json(result).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"));
  DI_RETURN_IF_ERROR(requests.write(requests_csv(measured.run)));
  if (!json.is_stdout() && !requests.is_stdout()) {
    const Status written = cli::write_output(format_table(result));
    if (!written.ok() && written.code() != StatusCode::kCancelled) return Err(written);
  }
  if (result.interrupted)
    cli::print_diagnostic(fmt::format("interrupted after {:.0f} s: only what was done until then\n", result.duration));
  if (result.failed > 0) {
    cli::print_error(fmt::format("{} of {} requests failed, the first with: {}", result.failed, measured.run.requests.size(),
                                 result.first_error));
  }
  if (result.interrupted) return cli::kInterruptedExit;
  return result.failed > 0 && result.completed == 0 ? 1 : 0;
}

}  // namespace

void add_throughput_command(CLI::App& bench, cli::Command& chosen, const EngineFactory& factory) {
  CLI::App* command = bench.add_subcommand("throughput", "One run: throughput, latencies, cache, host and device times");
  auto flags = std::make_shared<BenchFlags>();
  flags->add_to(*command, /*sweep=*/false);
  command->footer(
      "Prompts are random token ids. Names are those of vllm bench: TTFT is the time to the first token, TPOT the mean time per\n"
      "later token of a request, ITL each single one, E2EL the whole request. Ctrl-C reports what was done (exit code 130).\n\n"
      "Examples:\n"
      "  deepinfer bench throughput -m models/nano --input-len 512 --output-len 64 --concurrency 16 --shared-prefix-ratio 0.9\n"
      "  deepinfer bench throughput -m models/nano --request-rate 8 --num-prompts 200 --json result.json\n"
      "  deepinfer bench throughput -m models/nano --trace bench/traces/sessions.jsonl");
  command->callback([flags, factory, &chosen] { chosen = [flags, factory] { return run_throughput(*flags, factory); }; });
}

}  // namespace deepinfer::bench
