#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/request_body.h"
#include "serve/serve_result.h"

namespace deepinfer::bench {

/// What the flags ask for, checked.
struct ServePlan {
  Endpoint endpoint;
  RequestFormat format;  ///< the model may be empty: the first that the server lists
  WorkloadOptions workload;
  std::string trace;
  Goodput goodput;
  double timeout = 0, request_timeout = 0;
  std::vector<double> rates;    ///< at least one
  std::vector<int64_t> limits;  ///< at least one; of clients or of requests in flight; 0: none
  bool limits_are_clients = false;
};

/// The flags of `bench serve`, with the names of `vllm bench serve` and of SGLang's benchmarks where they mean the same.
struct ServeFlags {
  std::string url, host = "127.0.0.1", endpoint = "/v1/completions", model, api_key, ca_file;
  int64_t port = 8000;
  bool insecure = false, no_probe = false;
  double timeout = 600, request_timeout = 3600;

  std::optional<int64_t> num_prompts, turn_input_len, max_input_len, max_output_len;
  int64_t input_len = 256, output_len = 64, num_prefixes = 1, turns = 1, vocab_size = 4096, seed = 0, warmup = 0;
  double length_jitter = 0, shared_prefix_ratio = 0, think_time = 0, time_scale = 1;
  std::string trace;

  std::vector<double> request_rate;
  std::vector<int64_t> max_concurrency, num_clients;
  double burstiness = 1;
  bool find_knee = false;
  std::optional<double> seconds_per_rate;

  double temperature = 0;
  bool no_ignore_eos = false;
  std::string extra_body;

  std::vector<std::string> goodput;
  std::string json, svg, html, label = "server";
  bool append_result = false;

  /// The flags keep references to this object.
  void add_to(CLI::App& command);
  /// Reads the trace. Errors: flags that contradict each other, or files.
  Result<ServePlan> plan() const;
  /// Requests of a run at `rate`; 0: all of the trace.
  int64_t prompts_at(double rate) const;
};

}  // namespace deepinfer::bench
