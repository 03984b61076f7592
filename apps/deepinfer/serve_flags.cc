#include "serve_flags.h"

#include <nlohmann/json.hpp>

#include "flag_values.h"
#include "server/otlp_exporter.h"

namespace deepinfer::cli {
namespace {

constexpr int64_t kMaxBody = int64_t{1} << 32;
constexpr double kMaxSeconds = 1e6;

/// Lists as `vllm serve` takes them: JSON, or words.
Status flatten(const char* flag, std::vector<std::string>& list) {
  std::vector<std::string> out;
  for (const std::string& word : list) {
    if (!word.starts_with('[')) {
      out.push_back(word);
      continue;
    }
    const auto json = nlohmann::json::parse(word, nullptr, /*allow_exceptions=*/false);
    if (!json.is_array()) return Status::InvalidArgument("{} is \"{}\", which is not a JSON list", flag, word);
    for (const auto& item : json) {
      if (!item.is_string()) return Status::InvalidArgument("{}: every item of the list must be a string", flag);
      out.push_back(item.get<std::string>());
    }
  }
  list = std::move(out);
  return Status::Ok();
}

}  // namespace

void ServeFlags::add_to(CLI::App& c) {
  const auto in = [](CLI::Option* option, const char* group) { option->group(group); };
  c.add_option("MODEL", model, "Checkpoint folder, the same as --model");
  engine.add_to(c);
  c.get_option("--model")->required(false);

  const char* const net = "Network";
  in(c.add_option("--host", server.host, "IP address to listen on (default: 127.0.0.1)")->type_name("ADDRESS"), net);
  in(add_whole(c, "--port", server.port, 0, 65535, "0: a free one, which is printed (default: 8000)"), net);
  in(add_whole(c, "--admin-port", server.admin_port, 0, 65535,
               "A second listener for /stats, /drain, /reset_prefix_cache (default: none)"),
     net);
  in(c.add_option("--admin-host", server.admin_host, "Its address (default: 127.0.0.1)")->type_name("ADDRESS"), net);
  in(c.add_option("--ssl-certfile", server.ssl_certfile, "PEM file of the certificate and its chain")->type_name("FILE"), net);
  in(c.add_option("--ssl-keyfile", server.ssl_keyfile, "PEM file of its private key")->type_name("FILE"), net);
  in(c.add_flag("--no-dashboard", no_dashboard, "Serve no web pages at /"), net);
  in(add_whole(c, "--server-threads", server.threads, 1, 256, "Threads for connections (default: 2)"), net);

  const char* const access = "Access";
  in(c.add_option("--api-key", server.api_keys, "A key that opens everything but the probes; may be repeated")
         ->type_name("KEY")
         ->allow_extra_args(false),
     access);
  in(c.add_option("--api-key-file", api_key_file, "A file with one key a line")->type_name("FILE"), access);
  in(c.add_flag("--shared-prefix-cache", shared_prefix_cache, "Let requests of different keys share cached prefixes"), access);
  in(c.add_option("--allowed-origins", server.allowed_origins,
                  "Origins of pages that browsers let in; * is any; may be repeated, or a JSON list (default: none)")
         ->type_name("ORIGIN")
         ->allow_extra_args(false),
     access);

  const char* const api = "API";
  in(c.add_option("--served-model-name", server.served_model_names,
                  "Names that requests may use, the first is listed first (default: the folder's)")
         ->type_name("NAME"),
     api);
  in(c.add_flag("--no-default-thinking", no_default_thinking, "Requests that say nothing about thinking do not think"), api);
  in(c.add_flag("--honour-sampling-in-thinking", honour_sampling_in_thinking,
                "Temperature and penalties of a request count while thinking, too"),
     api);
  in(add_whole(c, "--default-max-tokens", default_max_tokens, 1, int64_t{1} << 40,
               "Of an answer that says nothing (default: 8192, 65536 with thinking)"),
     api);

  const char* const limits = "Limits";
  in(add_size(c, "--max-body-size", server.max_body_bytes, 1, kMaxBody, "Of one request (default: 64MiB)"), limits);
  in(add_size(c, "--max-buffered-size", server.max_buffered_bytes, 1, int64_t{1} << 40,
              "Of all bodies in memory (default: 1GiB)"),
     limits);
  in(add_size(c, "--max-header-size", server.max_header_bytes, 256, 1 << 20, "Of a request's head (default: 32KiB)"), limits);
  in(add_whole(c, "--max-header-count", server.max_headers, 8, 10'000, "Headers of a request (default: 100)"), limits);
  in(add_whole(c, "--max-connections", server.max_connections, 1, 1'000'000, "Open connections (default: 4096)"), limits);
  in(add_whole(c, "--max-concurrent-requests", server.max_concurrent_requests, 0, 10'000'000,
               "Generations in progress; 0: the queue of the engine decides (default: 0)"),
     limits);
  in(add_real(c, "--header-timeout", server.header_timeout, 0.01, kMaxSeconds, "For a request's head (default: 10)", "S"),
     limits);
  in(add_real(c, "--body-timeout", server.body_timeout, 0.01, kMaxSeconds, "For its body (default: 120)", "S"), limits);
  in(add_real(c, "--idle-timeout", server.idle_timeout, 0.01, kMaxSeconds, "Between requests of a connection (default: 75)", "S"),
     limits);
  in(add_real(c, "--write-timeout", server.write_timeout, 0.01, kMaxSeconds, "For a client to read what was sent (default: 60)",
              "S"),
     limits);
  in(add_real(c, "--ping-interval", server.ping_interval, 0.01, kMaxSeconds,
              "Silence in a stream before a keep-alive is sent (default: 15)", "S"),
     limits);
  in(add_real(c, "--shutdown-timeout", server.drain_timeout, 0, kMaxSeconds, "For running requests after SIGTERM (default: 30)",
              "S"),
     limits);

  const char* const log = "Log";
  in(c.add_option("--log-format", log_format, "text, json or off; on standard error (default: text)")->type_name("NAME"), log);
  in(c.add_option("--log-level", log_level, "debug, info, warning or error (default: info)")->type_name("NAME"), log);

  const char* const telemetry = "Telemetry";
  in(add_size(c, "--timeline-memory", timeline_memory, 0, int64_t{1} << 36,
              "For what /debug/timeline tells; 0: nothing is recorded (default: 32MiB)"),
     telemetry);
  trace.add_to(c, "--trace-file,--trace");
  in(c.add_option("--debug-endpoints", debug_endpoints,
                  "Whether the public port has /debug/*: on, off, or auto: on a loopback address with less than two keys")
         ->type_name("MODE")
         ->check(CLI::IsMember({"auto", "on", "off"})),
     telemetry);
  in(c.add_option("--otlp-traces-endpoint", otlp_endpoint,
                  "Send a trace of each request there: OTLP over HTTP, as http://127.0.0.1:4318/v1/traces")
         ->type_name("URL"),
     telemetry);
  in(c.add_option("--otlp-service-name", otlp_service, "Its service.name (default: deepinfer)")->type_name("NAME"), telemetry);

  const char* const fake_group = "Fake engine";
  in(c.add_flag("--fake-engine", fake_engine, "A fixed text instead of a model, to try clients and servers"), fake_group);
  in(add_real(c, "--fake-rate", fake.rate, 0, 1e9, "Tokens a second of each answer; 0: as fast as it goes (default: 100)", "X"),
     fake_group);
  in(add_whole(c, "--fake-tokens", fake.tokens, 0, int64_t{1} << 24, "Tokens of an answer (default: 32)"), fake_group);
  in(add_real(c, "--fake-delay", fake.first_delay, 0, kMaxSeconds, "Before the first token (default: 0)", "S"), fake_group);
  in(c.add_option("--fake-text", fake.text, "The text, repeated; special tokens may be spelled")->type_name("TEXT"), fake_group);
  in(c.add_option("--tokenizer", tokenizer, "tokenizer.json for the fake engine (default: the model's)")->type_name("FILE"),
     fake_group);
  in(c.add_flag("--print-config", print_config, "Print every setting with its value and where it came from, and end"),
     "Configuration");
}

Status ServeFlags::finish() {
  if (!model.empty() && !engine.model.empty() && model != engine.model)
    return Status::InvalidArgument("MODEL is {}, but --model is {}", model, engine.model);
  if (engine.model.empty()) engine.model = model;
  if (engine.model.empty() && !(fake_engine && !tokenizer.empty()))
    return Status::InvalidArgument("no model: deepinfer serve MODEL");
  DI_RETURN_IF_ERROR(flatten("--allowed-origins", server.allowed_origins));
  DI_RETURN_IF_ERROR(flatten("--served-model-name", server.served_model_names));
  if (!api_key_file.empty()) {
    DI_ASSIGN_OR_RETURN(const std::vector<std::string> keys, server::read_key_file(api_key_file));
    server.api_keys.insert(server.api_keys.end(), keys.begin(), keys.end());
  }
  if (!otlp_endpoint.empty()) {
    if (auto endpoint = server::parse_otlp_endpoint(otlp_endpoint); !endpoint)
      return endpoint.error().with_context("--otlp-traces-endpoint");
  }
  using Debug = server::ServerOptions::DebugEndpoints;
  server.debug_endpoints = debug_endpoints == "on" ? Debug::kOn : debug_endpoints == "off" ? Debug::kOff : Debug::kAuto;
  server.salt_per_key = !shared_prefix_cache;
  server.dashboard = !no_dashboard;
  server.max_buffered_bytes = std::max(server.max_buffered_bytes, server.max_body_bytes);
  if (auto format = server::parse_log_format(log_format); !format) return format.error().with_context("--log-format");
  if (auto level = server::parse_log_level(log_level); !level) return level.error().with_context("--log-level");
  return server.validate();
}

}  // namespace deepinfer::cli
