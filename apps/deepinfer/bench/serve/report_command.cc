#include "bench_command.h"
#include "serve/serve_report.h"
#include "terminal.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;

/// The runs of a [LABEL=]FILE.
Result<std::vector<ServePoint>> read_file(const std::string& argument) {
  // A name may hold the sign behind a slash: what is no label is a path.
  const size_t equals = argument.substr(0, argument.find('/')).find('=');
  const std::string path = equals == std::string::npos ? argument : argument.substr(equals + 1);
  const std::string label = equals == std::string::npos ? path.substr(path.rfind('/') + 1) : argument.substr(0, equals);
  DI_ASSIGN_OR_RETURN(const std::string text, cli::read_input(path, kMaxFileBytes));
  auto points = read_points(text, label);
  if (!points) return Err(points.error().with_context(path));
  return points;
}

Result<int> run_report(const std::vector<std::string>& files, const std::string& output) {
  std::vector<ServePoint> points;
  for (const std::string& file : files) {
    DI_ASSIGN_OR_RETURN(const auto more, read_file(file));
    points.insert(points.end(), more.begin(), more.end());
  }
  DI_ASSIGN_OR_RETURN(OutputFile out, OutputFile::Open("--output", output));
  DI_RETURN_IF_ERROR(out.write(serve_html(points)));
  return 0;
}

}  // namespace

void add_report_command(CLI::App& bench, cli::Command& chosen) {
  CLI::App* command = bench.add_subcommand("report", "One HTML page of several results of bench serve, or of vllm bench serve");
  auto files = std::make_shared<std::vector<std::string>>();
  auto output = std::make_shared<std::string>();
  command->add_option("files", *files, "Results, each a series of the plots, with a label or without; -: standard input")
      ->type_name("[LABEL=]FILE")
      ->required();
  command->add_option("-o,--output", *output, "The page; -: standard output")->type_name("FILE")->required();
  command->footer(
      "Example:\n"
      "  deepinfer bench report ours=ours.jsonl peer=peer.jsonl -o report.html");
  command->callback([files, output, &chosen] { chosen = [files, output] { return run_report(*files, *output); }; });
}

}  // namespace deepinfer::bench
