#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/build_info.h"
#include "base/mapped_file.h"
#include "commands.h"
#include "eval_suite.h"
#include "model_options.h"
#include "progress.h"
#include "terminal.h"

namespace deepinfer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxReportBytes = int64_t{64} << 20;

struct EvalOptions {
  ModelOptions model;
  std::string suite;
  SuiteFilter filter;
  std::string report;
  bool json = false;
};

struct SkillScore {
  std::string skill;
  int64_t rows = 0;
  int64_t passed = 0;
  std::optional<double> expected;

  double exact() const { return rows > 0 ? static_cast<double>(passed) / static_cast<double>(rows) : 0; }
};

struct EvalScore {
  std::vector<SkillScore> skills;  ///< those with decided rows
  double average = 0;
  std::optional<double> expected;  ///< over the same skills, if all have one
};

/// eval.<skill>.exact of the checkpoint's report.json; what is not there, or not a number, has no expected value.
std::vector<std::optional<double>> read_expected(const std::string& directory, const std::vector<std::string>& skills) {
  std::vector<std::optional<double>> out(skills.size());
  const auto text = read_text_file(directory + "/report.json", kMaxReportBytes);
  if (!text) return out;
  const Json report = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object() || !report.contains("eval") || !report["eval"].is_object()) return out;
  const Json& eval = report["eval"];
  for (size_t i = 0; i < skills.size(); ++i) {
    const auto at = eval.find(skills[i]);
    if (at == eval.end() || !at->is_object()) continue;
    const auto exact = at->find("exact");
    if (exact != at->end() && exact->is_number()) out[i] = exact->get<double>();
  }
  return out;
}

EvalScore score(const Suite& suite, const SuiteResult& result, const std::vector<std::optional<double>>& expected) {
  EvalScore out;
  double expected_sum = 0;
  bool all_expected = true;
  for (size_t i = 0; i < suite.skills.size(); ++i) {
    if (result.rows[i] == 0) continue;
    out.skills.push_back({suite.skills[i], result.rows[i], result.passed[i], expected[i]});
    out.average += out.skills.back().exact();
    expected_sum += expected[i].value_or(0);
    all_expected = all_expected && expected[i].has_value();
  }
  const auto count = static_cast<double>(std::max<size_t>(out.skills.size(), 1));
  out.average /= count;
  if (all_expected && !out.skills.empty()) out.expected = expected_sum / count;
  return out;
}

std::string table_line(const std::string& name, const std::string& rows, double exact, std::optional<double> expected) {
  std::string line = fmt::format("{:24} {:>6} {:>7.1f}", name, rows, exact * 100);
  if (expected.has_value()) line += fmt::format(" {:>9.1f} {:>+11.1f}", *expected * 100, (exact - *expected) * 100);
  return line + "\n";
}

std::string format_table(const EvalScore& scores) {
  std::string out = fmt::format("{:24} {:>6} {:>7} {:>9} {:>11}\n", "skill", "rows", "exact", "expected", "difference");
  int64_t rows = 0;
  for (const SkillScore& s : scores.skills) {
    out += table_line(s.skill, std::to_string(s.rows), s.exact(), s.expected);
    rows += s.rows;
  }
  return out + table_line("average over skills", std::to_string(rows), scores.average, scores.expected);
}

std::string format_speed(const SuiteResult& result, double seconds, const LoadedModel& loaded) {
  return fmt::format("{:.1f} s: {} prompt tokens and {} decoded, {:.1f} tokens/s ({}, {} threads)\n", seconds,
                     result.prompt_tokens, result.decoded_tokens,
                     static_cast<double>(result.prompt_tokens + result.decoded_tokens) / seconds, loaded.backend->name(),
                     loaded.pool->size());
}

std::string to_json(const EvalScore& scores, const SuiteResult& result, double seconds, const LoadedModel& loaded,
                    const EvalOptions& options) {
  const auto nullable = [](std::optional<double> v) { return v.has_value() ? Json(*v) : Json(nullptr); };
  Json json;
  json["model"] = options.model.model;
  json["suite"] = options.suite;
  json["backend"] = loaded.backend->name();
  json["threads"] = loaded.pool->size();
  json["commit"] = build_commit();
  json["interrupted"] = result.interrupted;
  json["skills"] = Json::object();
  for (const SkillScore& s : scores.skills) {
    json["skills"][s.skill] =
        Json{{"rows", s.rows}, {"passed", s.passed}, {"exact", s.exact()}, {"expected", nullable(s.expected)}};
  }
  json["average"] = scores.average;
  json["expected_average"] = nullable(scores.expected);
  json["seconds"] = seconds;
  json["prompt_tokens"] = result.prompt_tokens;
  json["decoded_tokens"] = result.decoded_tokens;
  json["tokens_per_second"] = static_cast<double>(result.prompt_tokens + result.decoded_tokens) / seconds;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<int> run_eval(const EvalOptions& options) {
  DI_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model(options.model));
  DI_ASSIGN_OR_RETURN(const Suite suite, load_suite(options.suite, loaded.config(), options.filter));
  // Opened now: a long run should not end with a file that cannot be written.
  std::ofstream report;
  if (!options.report.empty()) {
    report.open(options.report, std::ios::binary | std::ios::app);
    if (!report) return Err(Status::InvalidArgument("--report: {}: cannot open for writing", options.report));
  }

  catch_signals();
  ProgressLine progress;
  const auto start = std::chrono::steady_clock::now();
  const auto total = static_cast<double>(suite.rows.size());
  const auto show = [&](int64_t decided) {
    progress.update("rows", static_cast<double>(decided), total, fmt::format("{} of {}", decided, suite.rows.size()));
  };
  DI_ASSIGN_OR_RETURN(const SuiteResult result, run_suite(*loaded.model, suite, show, [] { return interrupted(); }));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress.clear();

  const EvalScore scores = score(suite, result, read_expected(options.model.model, suite.skills));
  const std::string json = to_json(scores, result, seconds, loaded, options) + "\n";
  if (report.is_open()) {
    report.close();
    report.open(options.report, std::ios::binary | std::ios::trunc);
    report << json;
    report.close();
    if (!report) return Err(Status::DataLoss("--report: {}: cannot write", options.report));
  }
  DI_RETURN_IF_ERROR(write_output(options.json ? json : format_table(scores) + format_speed(result, seconds, loaded)));
  if (result.interrupted) fmt::print(stderr, "interrupted after {:.0f} s: only the rows decided so far\n", seconds);
  return result.interrupted ? kInterruptedExit : 0;
}

}  // namespace

void add_eval_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("eval", "Score a suite of skills: greedy answers against the expected ones");
  auto options = std::make_shared<EvalOptions>();
  EvalOptions& o = *options;
  o.model.add_to(*command);
  command->add_option("--suite", o.suite, "JSON Lines: {\"skill\": text, \"prompt\": ids, \"answer\": ids}")
      ->required()
      ->type_name("FILE")
      ->group("Suite");
  command->add_option("--limit", o.filter.limit, "Rows per skill (default: all)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->type_name("N")
      ->group("Suite");
  command->add_option("--skill", o.filter.skills, "Only this skill; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group("Suite");
  command->add_option("--report", o.report, "Write the result as JSON to a file, too")->type_name("FILE")->group("Output");
  command->add_flag("--json", o.json, "One JSON object instead of the table")->group("Output");
  command->footer(
      "A row passes when the greedy continuation of its prompt starts with its answer. Expected values are those of report.json "
      "in\n"
      "the checkpoint folder. Ctrl-C prints what is decided so far (exit code 130).\n\n"
      "Example:\n"
      "  deepinfer eval -m models/nano --suite skills.jsonl --limit 8 --skill chat --skill sort");
  command->callback([options, &chosen] { chosen = [options] { return run_eval(*options); }; });
}

}  // namespace deepinfer::cli
