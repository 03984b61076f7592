#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "driver.h"
#include "engine_flags.h"
#include "trace_flags.h"
#include "workload.h"

namespace deepinfer::bench {

/// One run, as the flags want it.
struct RunPlan {
  WorkloadOptions workload;  ///< vocab_size is the engine's business
  RequestSettings settings;
  std::string trace;
  int64_t concurrency = 0;  ///< 0: any number
  double duration = 0;      ///< 0: no limit
};

/// The flags of both commands.
struct BenchFlags {
  cli::EngineFlags engine;

  std::optional<std::string> arrival;
  std::optional<double> request_rate;
  std::string trace;
  std::optional<int64_t> num_prompts;
  std::vector<int64_t> concurrency, input_len, output_len;  ///< one value, or more in a sweep; empty: the default
  std::vector<double> shared_prefix_ratio;
  std::optional<int64_t> num_prefixes;
  std::optional<double> length_jitter;
  int64_t seed = 0;
  std::optional<int64_t> warmup;
  double duration = 0;
  std::optional<std::string> cache_class;
  RequestSettings settings;
  bool no_ignore_eos = false;

  std::string json, save_requests, csv, svg, html;
  bool append_result = false;
  bool reuse_engine = false;
  cli::TraceFlags trace_file;  ///< of a single run

  /// The flags keep references to this object.
  void add_to(CLI::App& command, bool sweep);
  /// Every combination, the concurrency last, or why the flags contradict each other. Reads the trace.
  Result<std::vector<RunPlan>> plans() const;
};

}  // namespace deepinfer::bench
