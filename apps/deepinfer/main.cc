// The command line: one subcommand per file NAME_command.cc.

#include <CLI/CLI.hpp>

#include "base/build_info.h"
#include "bench_command.h"
#include "cache_command.h"
#include "commands.h"
#include "ops/cpu/kernels.h"
#include "ops/ops.h"
#include "terminal.h"

namespace deepinfer::cli {
namespace {

/// Without the ranges, defaults and exclusions that the library would print beside each option: errors name those.
class PlainFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    const std::string type = option->get_type_name();
    return " " + type.substr(0, type.find(':')) + (option->get_required() ? " (required)" : "");
  }
};

/// What stands where a command should, if it is none: the library would say only that a command is missing.
bool unknown_command(CLI::App& app, const std::string& word) {
  if (word.starts_with('-')) return app.get_option_no_throw(word) == nullptr;
  return app.get_subcommands([&](const CLI::App* command) { return command->get_name() == word; }).empty();
}

/// The command whose help knows more about what was given.
std::string help_command(const CLI::App& app) {
  std::string out = "deepinfer";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    out += " " + at->get_name();
  }
  return out + " --help";
}

/// With the kernels of the CPU backend: those that run, and those that DEEPINFER_CPU_KERNELS may name on this processor.
Result<std::string> version() {
  DI_ASSIGN_OR_RETURN(const cpu::CpuKernels* kernels, cpu::wanted_kernels());
  std::string all;
  for (const cpu::CpuKernels* k : cpu::cpu_kernels()) all += fmt::format("{}{}", all.empty() ? "" : ", ", k->name);
  ThreadPool pool(1);
  return fmt::format("deepinfer {} (commit {})\nbackends: cpu/{} (of {}), {}\n", build_version(), build_commit(), kernels->name,
                     all, make_reference_backend(&pool)->name());
}

int print_version() {
  const Result<std::string> text = version();
  if (text) return write_output(*text).ok() ? 0 : 1;
  print_error(text.error().message());
  return 1;
}

int run(int argc, char** argv) {
  CLI::App app("Inference engine for DeepSeek-V4.1-Flash", "deepinfer");
  const auto formatter = std::make_shared<PlainFormatter>();
  formatter->column_width(30);
  app.formatter(formatter);
  app.require_subcommand(1);
  bool show_version = false;
  app.add_flag("--version", show_version, "Version, commit and the kernels that this processor gets")->trigger_on_parse();
  app.footer(
      "Each command has its own help: deepinfer COMMAND --help\n\n"
      "Examples:\n"
      "  deepinfer inspect models/nano\n"
      "  deepinfer generate -m models/nano -p 'Tell me a story about a fox and a lamp.'\n"
      "  deepinfer serve models/nano\n"
      "  deepinfer chat -m models/nano\n"
      "  deepinfer eval -m models/nano --suite models/nano/skills.jsonl\n"
      "  deepinfer bench throughput -m models/nano --concurrency 16\n"
      "  deepinfer cache stat /var/lib/deepinfer/kv");
  Command chosen;
  add_generate_command(app, chosen);
  add_inspect_command(app, chosen);
  add_eval_command(app, chosen);
  add_serve_command(app, chosen);
  add_chat_command(app, chosen);
  bench::add_bench_command(app, chosen, &Engine::Create);
  cache::add_cache_command(app, chosen);
  if (argc > 1 && unknown_command(app, argv[1])) {
    print_error(fmt::format("unknown command or option '{}' (see deepinfer --help)", argv[1]));
    return 1;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    // Asked for alone, the version comes with the complaint that there is no command.
    if (show_version) return print_version();
    print_error(fmt::format("{} (see {})", error.what(), help_command(app)));
    return 1;
  }
  if (show_version) return print_version();
  const Result<int> code = chosen();
  if (code) return *code;
  print_error(code.error().message());
  return 1;
}

}  // namespace
}  // namespace deepinfer::cli

int main(int argc, char** argv) {
  try {
    deepinfer::cli::open_standard_streams();
    return deepinfer::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    deepinfer::cli::print_error("out of memory");
  } catch (const std::exception& error) {
    deepinfer::cli::print_error(error.what());
  }
  return 1;
}
