#include "bench_command.h"

#include <cmath>
#include <fstream>

#include "progress.h"
#include "terminal.h"

namespace deepinfer::bench {

Result<OutputFile> OutputFile::Open(const char* flag, const std::string& path, bool append) {
  OutputFile out;
  out.flag_ = flag;
  out.path_ = path;
  out.append_ = append;
  if (!path.empty() && path != "-" && !std::ofstream(path, std::ios::binary | std::ios::app))
    return Err(Status::InvalidArgument("{}: {}: cannot open for writing", flag, path));
  return out;
}

Status OutputFile::write(const std::string& text) {
  if (path_.empty()) return Status::Ok();
  if (is_stdout()) {
    const Status status = cli::write_output(text);
    // A reader that has seen enough (head) is no error.
    return status.code() == StatusCode::kCancelled ? Status::Ok() : status;
  }
  std::ofstream file(path_, std::ios::binary | (append_ ? std::ios::app : std::ios::trunc));
  append_ = true;  // what comes later is added
  file << text;
  file.close();
  return file ? Status::Ok() : Status::DataLoss("{}: {}: cannot write", flag_, path_);
}

Result<EngineOptions> engine_options(const BenchFlags& flags) {
  EngineOptions base;
  DI_RETURN_IF_ERROR(base.apply_environment());
  return flags.engine.to_options(std::move(base));
}

Status check_lengths(const RunPlan& plan, const ModelInfo& model) {
  const WorkloadOptions& w = plan.workload;
  const int64_t limit = model.max_model_len;
  if (w.arrival == Arrival::kTrace && w.trace != nullptr) {
    for (size_t i = 0; i < w.trace->size(); ++i) {
      const TraceRow& row = (*w.trace)[i];
      if (row.input_len + row.output_len > limit) {
        return Status::OutOfRange("--trace: {}: request {} has input_len {} and output_len {}, max_model_len is {}", plan.trace,
                                  i + 1, row.input_len, row.output_len, limit);
      }
    }
    return Status::Ok();
  }
  const auto most = [&](int64_t length) { return static_cast<int64_t>(static_cast<double>(length) * (1 + w.length_jitter)); };
  if (most(w.input_len) + most(w.output_len) <= limit) return Status::Ok();
  return Status::OutOfRange("--input-len is {} and --output-len {}{}: {} tokens, max_model_len is {}", w.input_len, w.output_len,
                            w.length_jitter > 0 ? fmt::format(", --length-jitter {}", w.length_jitter) : "",
                            most(w.input_len) + most(w.output_len), limit);
}

Result<Measured> measure(Engine& engine, RunPlan plan, const std::string& label, bool reused_engine) {
  const ModelInfo model = engine.model();
  DI_RETURN_IF_ERROR(check_lengths(plan, model));
  plan.workload.vocab_size = model.vocab_size;
  DI_ASSIGN_OR_RETURN(const Workload workload, make_workload(plan.workload));
  if (workload.output_tokens() > kMaxWorkloadTokens / plan.settings.n) {
    return Err(Status::OutOfRange("--n is {}: {} tokens to generate, must be at most {}", plan.settings.n,
                                  workload.output_tokens() * plan.settings.n, kMaxWorkloadTokens));
  }

  cli::ProgressLine progress;
  DriverOptions driver;
  driver.stop = [] { return cli::interrupted(); };
  driver.max_in_flight = plan.concurrency > 0 ? plan.concurrency : workload.warmup.empty() ? 0 : 16;
  const auto show = [&](const std::string& what) {
    driver.progress = [&progress, what](const RunProgress& p) {
      progress.update(
          what, static_cast<double>(p.done), static_cast<double>(p.total),
          fmt::format("{} of {} requests, {} in flight, {:.1f} tokens/s", p.done, p.total, p.in_flight, p.tokens_per_second));
    };
  };
  if (!workload.warmup.empty()) {
    show("warming up");
    run_workload(engine, workload.warmup, plan.settings, driver);
  }
  show(label);
  driver.max_in_flight = plan.concurrency;
  if (plan.duration > 0) driver.duration = plan.duration;

  BenchConditions conditions;
  conditions.engine = engine.options();
  conditions.model = model;
  conditions.reused_engine = reused_engine;
  describe_machine(conditions);
  Measured out;
  out.run = run_workload(engine, workload.requests, plan.settings, driver);
  progress.clear();
  conditions.workload = std::move(plan.workload);
  conditions.workload.num_prompts = static_cast<int64_t>(workload.requests.size());
  conditions.trace = plan.trace;
  conditions.settings = plan.settings;
  conditions.concurrency = plan.concurrency;
  conditions.duration = plan.duration;
  out.result = summarize(std::move(conditions), out.run);
  return out;
}

void add_bench_command(CLI::App& app, cli::Command& chosen, const EngineFactory& factory) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure throughput and latency of the engine, or of any server, with made-up requests");
  // Not by the library's own check, which would hide a name that it does not know.
  bench->require_subcommand(0, 1);
  bench->callback([bench] {
    if (bench->get_subcommands().empty()) throw CLI::ValidationError("bench", "throughput, sweep, serve or report must follow");
  });
  bench->footer(
      "Each has its own help: deepinfer bench throughput --help\n\n"
      "Examples:\n"
      "  deepinfer bench throughput -m models/nano --input-len 256 --output-len 64 --concurrency 16\n"
      "  deepinfer bench sweep -m models/nano --concurrency 1,4,16,64 --shared-prefix-ratio 0,0.9 --html sweep.html");
  add_throughput_command(*bench, chosen, factory);
  add_sweep_command(*bench, chosen, factory);
  add_serve_command(*bench, chosen);
  add_report_command(*bench, chosen);
}

}  // namespace deepinfer::bench
