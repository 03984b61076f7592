#pragma once

#include <functional>
#include <memory>

#include "bench_flags.h"
#include "bench_result.h"
#include "commands.h"
#include "deepinfer/engine.h"

namespace deepinfer::bench {

/// Engine::Create, or a fake one in tests.
using EngineFactory = std::function<Result<std::unique_ptr<Engine>>(const EngineOptions&)>;

/// `deepinfer bench throughput`, `sweep`, `serve` and `report`.
void add_bench_command(CLI::App& app, cli::Command& chosen, const EngineFactory& factory);

/// What throughput and sweep share.
struct Measured {
  BenchResult result;
  RunRecord run;
};
/// Engine options from flags and environment.
Result<EngineOptions> engine_options(const BenchFlags& flags);
/// Whether every request of the plan fits the model, before anything runs.
Status check_lengths(const RunPlan& plan, const ModelInfo& model);
/// Warms up and runs the plan; a line of progress with `label` before it. Ctrl-C ends it early.
Result<Measured> measure(Engine& engine, RunPlan plan, const std::string& label, bool reused_engine);

/// A file that a flag names. It is opened before the run, so that a long one does not end with a file that cannot be written, and
/// emptied at the first write only.
class OutputFile {
 public:
  /// An empty path: nothing is written. "-" is standard output.
  static Result<OutputFile> Open(const char* flag, const std::string& path, bool append = false);

  bool is_stdout() const { return path_ == "-"; }
  Status write(const std::string& text);

 private:
  std::string flag_, path_;
  bool append_ = false;
};

void add_throughput_command(CLI::App& bench, cli::Command& chosen, const EngineFactory& factory);
void add_sweep_command(CLI::App& bench, cli::Command& chosen, const EngineFactory& factory);
// A server from the outside: these need no engine.
void add_serve_command(CLI::App& bench, cli::Command& chosen);
void add_report_command(CLI::App& bench, cli::Command& chosen);

}  // namespace deepinfer::bench
