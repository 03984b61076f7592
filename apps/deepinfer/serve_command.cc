// deepinfer serve: the server on an engine, or on a fake one.

#include <csignal>

#include "commands.h"
#include "flag_sources.h"
#include "ops/ops.h"
#include "performance.h"
#include "serve_flags.h"
#include "server/server.h"
#include "terminal.h"

namespace deepinfer::cli {
namespace {

Result<EngineOptions> engine_options(const ServeFlags& flags) {
  EngineOptions base;
  DI_RETURN_IF_ERROR(base.apply_environment());
  return flags.engine.to_options(std::move(base));
}

Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const ServeFlags& flags) {
  const bool given = flags.fake_engine && !flags.tokenizer.empty();
  return Tokenizer::Load(given ? flags.tokenizer : flags.engine.model + "/tokenizer.json");
}

Result<std::unique_ptr<Engine>> make_engine(const ServeFlags& flags, const std::shared_ptr<const Tokenizer>& tokenizer,
                                            std::shared_ptr<telemetry::TraceRecorder> trace) {
  DI_ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags));
  options.trace = std::move(trace);
  if (!flags.fake_engine) return Engine::Create(options);
  if (options.model.empty()) options.model = "fake";
  DI_RETURN_IF_ERROR(options.validate());
  return server::make_fake_engine(tokenizer, std::move(options), flags.fake);
}

server::Backend make_backend(const ServeFlags& flags, Engine& engine, std::shared_ptr<const Tokenizer> tokenizer) {
  server::Backend backend;
  backend.engine = &engine;
  backend.conversion.default_thinking = !flags.no_default_thinking;
  backend.conversion.max_body_bytes = flags.server.max_body_bytes;
  // The token before the system text is what tells the versions apart (spec/protocol §1).
  backend.policy.version = tokenizer->added_token(kSystemToken).has_value() ? ModelVersion::kV4_1 : ModelVersion::kV4;
  backend.policy.max_model_len = engine.model().max_model_len;
  backend.policy.grammar = !flags.fake_engine;
  backend.policy.think_end = tokenizer->added_token(kEndThinkToken);
  backend.policy.honour_sampling_in_thinking = flags.honour_sampling_in_thinking;
  if (flags.default_max_tokens.has_value())
    backend.policy.default_max_tokens = backend.policy.default_max_tokens_thinking = *flags.default_max_tokens;
  backend.tokenizer = std::move(tokenizer);
  return backend;
}

std::string kernels(const ServeFlags& flags, const ModelInfo& model) {
  if (flags.fake_engine) return fmt::format("none: fake engine, {} tokens/s", flags.fake.rate);
  std::string out = format_kernels(model.backend, model.kernels);
  if (!model.memory_plan.empty()) out += fmt::format("\nmemory    {}", model.memory_plan);
  return out;
}

std::string summary(const ServeFlags& flags, const Engine& engine, const server::Server& server) {
  const ModelInfo model = engine.model();
  const EngineOptions& options = engine.options();
  std::string out = fmt::format("model     {} ({} tokens of context)\n", model.name, model.max_model_len);
  out += fmt::format("kernels   {}\n", kernels(flags, model));
  out += fmt::format("cache     {} pages of {} tokens, prefix caching {}\n", engine.stats().pages_total, model.page_tokens,
                     options.enable_prefix_caching ? "on" : "off");
  out += fmt::format("batch     {} sequences at once, {} queued\n", options.max_num_seqs, options.max_queued_requests);
  out += fmt::format("keys      {}\n", flags.server.api_keys.empty() ? "none: everybody may use it"
                                                                     : fmt::format("{}", flags.server.api_keys.size()));
  if (server.admin_port() >= 0) out += fmt::format("admin     http://{}:{}\n", flags.server.admin_host, server.admin_port());
  return out + fmt::format("listening on {}\n", server.url());
}

Result<int> run_serve(const ServeFlags& flags) {
  DI_ASSIGN_OR_RETURN(const auto tokenizer, load_tokenizer(flags));
  DI_ASSIGN_OR_RETURN(Trace trace, Trace::Start(flags.trace, flags.timeline_memory, !flags.otlp_endpoint.empty()));
  std::shared_ptr<server::OtlpExporter> otlp;
  if (!flags.otlp_endpoint.empty()) {
    DI_ASSIGN_OR_RETURN(otlp, server::OtlpExporter::Create(
                                  trace.recorder(), {.endpoint = flags.otlp_endpoint, .service_name = flags.otlp_service}));
  }
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make_engine(flags, tokenizer, trace.recorder()));
  const auto log =
      std::make_shared<server::EventLog>(*server::parse_log_format(flags.log_format), *server::parse_log_level(flags.log_level));
  server::Backend backend = make_backend(flags, *engine, tokenizer);
  backend.trace = trace.recorder();
  backend.otlp = otlp;
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<server::Server> server,
                      server::Server::Create(flags.server, std::move(backend), log));
  if (flags.server.api_keys.empty() && !flags.server.loopback())
    log->write(server::EventLog::Level::kWarning, "no API key",
               {{"host", flags.server.host}, {"advice", "set --api-key-file: everybody who reaches the port may use it"}});
  std::signal(SIGPIPE, SIG_IGN);
  server->handle_signals();
  DI_RETURN_IF_ERROR(write_output(summary(flags, *engine, *server)));
  server->wait();
  engine->shutdown(Engine::Shutdown::kCancel);
  if (otlp != nullptr) otlp->close();
  DI_RETURN_IF_ERROR(trace.finish());
  return 0;
}

}  // namespace

void add_serve_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP: the APIs of OpenAI and Anthropic");
  auto sources = std::make_shared<FlagSources>();
  auto flags = std::make_shared<ServeFlags>();
  sources->add_to(*command);
  flags->add_to(*command);
  command->footer(
      "Every flag can come from the environment (DEEPINFER_PORT for --port) or from the file of --config, too.\n\n"
      "Examples:\n"
      "  deepinfer serve models/nano\n"
      "  deepinfer serve models/nano --port 0 --api-key-file keys.txt --log-format json\n"
      "  deepinfer serve models/nano --fake-engine --fake-rate 50");
  command->callback([sources, flags, command, &chosen] {
    chosen = [sources, flags, command]() -> Result<int> {
      if (flags->print_config) {
        DI_RETURN_IF_ERROR(write_output(sources->describe(*command)));
        return 0;
      }
      DI_RETURN_IF_ERROR(flags->finish());
      return run_serve(*flags);
    };
  });
}

}  // namespace deepinfer::cli
