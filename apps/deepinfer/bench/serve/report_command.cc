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

struct ReportFlags {
  std::vector<std::string> files;
  std::string page, svg;
};

Result<int> run_report(const ReportFlags& flags) {
  if (flags.page.empty() && flags.svg.empty()) return Err(Status::InvalidArgument("nothing to write: give --output or --svg"));
  std::vector<ServePoint> points;
  for (const std::string& file : flags.files) {
    DI_ASSIGN_OR_RETURN(const auto more, read_file(file));
    points.insert(points.end(), more.begin(), more.end());
  }
  DI_ASSIGN_OR_RETURN(OutputFile page, OutputFile::Open("--output", flags.page));
  DI_ASSIGN_OR_RETURN(OutputFile svg, OutputFile::Open("--svg", flags.svg));
  if (!flags.page.empty()) DI_RETURN_IF_ERROR(page.write(serve_html(points)));
  if (!flags.svg.empty()) DI_RETURN_IF_ERROR(svg.write(render_svg(serve_plots(points), "serve")));
  return 0;
}

}  // namespace

void add_report_command(CLI::App& bench, cli::Command& chosen) {
  CLI::App* command = bench.add_subcommand("report", "One HTML page of several results of bench serve, or of vllm bench serve");
  auto flags = std::make_shared<ReportFlags>();
  command->add_option("files", flags->files, "Results, each a series of the plots, with a label or without; -: standard input")
      ->type_name("[LABEL=]FILE")
      ->required();
  command->add_option("-o,--output", flags->page, "The page; -: standard output")->type_name("FILE");
  command->add_option("--svg", flags->svg, "The plots alone; -: standard output")->type_name("FILE");
  command->footer(
      "Example:\n"
      "  deepinfer bench report ours=ours.jsonl peer=peer.jsonl -o report.html");
  command->callback([flags, &chosen] { chosen = [flags] { return run_report(*flags); }; });
}

}  // namespace deepinfer::bench
