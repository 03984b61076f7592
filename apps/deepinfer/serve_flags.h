#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "engine_flags.h"
#include "server/event_log.h"
#include "server/fake_engine.h"
#include "server/server_options.h"
#include "trace_flags.h"

namespace deepinfer::cli {

/// The flags of `deepinfer serve` besides those of the engine. Names are those of `vllm serve` where the meaning is the same.
struct ServeFlags {
  EngineFlags engine;
  std::string model;  ///< the word after `serve`
  server::ServerOptions server;
  std::string api_key_file;
  std::string log_format = "text", log_level = "info";
  bool shared_prefix_cache = false;
  bool no_dashboard = false;
  bool no_default_thinking = false;
  bool honour_sampling_in_thinking = false;
  std::optional<int64_t> default_max_tokens;
  bool fake_engine = false;
  server::FakeEngineOptions fake;
  std::string tokenizer;
  int64_t timeline_memory = int64_t{32} << 20;
  TraceFlags trace;
  std::string debug_endpoints = "auto";
  std::string otlp_endpoint, otlp_service = "deepinfer";
  bool print_config = false;

  /// The flags keep references to this object.
  void add_to(CLI::App& command);
  /// What can be said before anything is loaded; fills in keys from their file.
  Status finish();
};

}  // namespace deepinfer::cli
