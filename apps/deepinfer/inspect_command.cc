#include "checkpoint/inspect.h"
#include "commands.h"
#include "engine/loaded_model.h"
#include "performance.h"
#include "progress.h"
#include "terminal.h"

namespace deepinfer::cli {
namespace {

struct InspectOptions {
  std::string directory;
  std::string verify = "headers";
  std::string device;
  bool json = false;
};

Result<int> run_inspect(const InspectOptions& options) {
  Checkpoint::Options checkpoint_options;
  DI_ASSIGN_OR_RETURN(checkpoint_options.verify, parse_verify_level(options.verify));
  ProgressLine progress;
  checkpoint_options.progress = [&](int64_t done, int64_t total) {
    progress.update("checking", static_cast<double>(done), static_cast<double>(total));
  };
  DI_ASSIGN_OR_RETURN(const Inspection inspection, inspect_checkpoint(options.directory, checkpoint_options));
  progress.clear();
  std::string text = options.json ? inspection_json(inspection) : format_inspection(inspection);
  if (!text.ends_with('\n')) text += '\n';
  if (!options.device.empty()) {
    ThreadPool pool(1);
    DI_ASSIGN_OR_RETURN(const auto backend, make_backend(options.device, &pool));
    std::vector<std::pair<std::string, std::string>> kernels;
    for (KernelChoice& k : backend->kernels()) kernels.emplace_back(std::move(k.operators), std::move(k.kernel));
    text += "kernels   " + format_kernels(backend->name(), kernels) + '\n';
  }
  DI_RETURN_IF_ERROR(write_output(text));
  return inspection.problem_count == 0 ? 0 : 1;
}

}  // namespace

void add_inspect_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("inspect", "What a checkpoint holds, what it needs, and whether it is whole");
  auto options = std::make_shared<InspectOptions>();
  command->add_option("model", options->directory, "Checkpoint folder; config.json alone is enough for the plan")
      ->required()
      ->type_name("DIR");
  command->add_option("--verify", options->verify, "headers, scales or full: every value (default: headers)")
      ->check(CLI::IsMember({"headers", "scales", "full"}))
      ->type_name("LEVEL");
  CLI::Option* json = command->add_flag("--json", options->json, "One JSON object");
  command->add_option("--device", options->device, "Also what would run it, and the kernels of each operator: cpu, cuda or auto")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->type_name("NAME")
      ->excludes(json);
  command->footer("Exit code 1 if the files do not match the config.\n\nExample:\n  deepinfer inspect models/nano --verify full");
  command->callback([options, &chosen] { chosen = [options] { return run_inspect(*options); }; });
}

}  // namespace deepinfer::cli
