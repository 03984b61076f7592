#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/build_info.h"
#include "base/mapped_file.h"
#include "commands.h"
#include "engine_flags.h"
#include "eval_suite.h"
#include "flag_values.h"
#include "model_engine.h"
#include "progress.h"
#include "terminal.h"

namespace deepinfer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxReportBytes = int64_t{64} << 20;
constexpr int64_t kRowsAtOnce = 16;

struct EvalOptions {
  EngineFlags engine;
  SuiteOptions run;
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

double work_saved(const SuiteResult& r) {
  return r.full_row_layers > 0 ? 1 - static_cast<double>(r.row_layers) / static_cast<double>(r.full_row_layers) : 0;
}

std::string format_speed(const SuiteResult& result, double seconds, const ModelInfo& model) {
  return fmt::format("{:.1f} s: {} prompt tokens and {} decoded, {:.1f} tokens/s ({}, {} threads)\n", seconds,
                     result.prompt_tokens, result.decoded_tokens,
                     static_cast<double>(result.prompt_tokens + result.decoded_tokens) / seconds, model.backend, model.threads);
}

/// Of bounded replay and of hits: what came from the cache and how much was left out.
std::string format_replay(const SuiteResult& result, const EngineOptions& engine, const EvalOptions& options) {
  if (engine.replay == ReplayMode::kExact && !options.run.hit.has_value()) return "";
  return fmt::format(
      "{} replay, decoder {}: {} rows with a hit, {} tokens cached, {} of them replayed; {} of {} row-layers, {:.1f} % saved\n",
      replay_mode_name(engine.replay), decoder_replay_name(engine.decoder_replay), result.hit_rows, result.cached_tokens,
      result.replayed_tokens, result.row_layers, result.full_row_layers, work_saved(result) * 100);
}

std::string to_json(const EvalScore& scores, const SuiteResult& result, double seconds, const Engine& engine,
                    const EvalOptions& options) {
  const auto nullable = [](std::optional<double> v) { return v.has_value() ? Json(*v) : Json(nullptr); };
  const ModelInfo model = engine.model();
  Json json;
  json["model"] = options.engine.model;
  json["suite"] = options.suite;
  json["backend"] = model.backend;
  json["threads"] = model.threads;
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
  const EngineOptions& o = engine.options();
  json["replay"] = Json{{"mode", replay_mode_name(o.replay)},
                        {"decoder_replay", decoder_replay_name(o.decoder_replay)},
                        {"decoder_keep_tokens", o.decoder_keep_tokens},
                        {"window_snapshot_memory", o.window_snapshot_memory},
                        {"hit_before_end", options.run.hit.has_value() ? Json(*options.run.hit) : Json(nullptr)},
                        {"hit_rows", result.hit_rows},
                        {"cached_tokens", result.cached_tokens},
                        {"replayed_tokens", result.replayed_tokens},
                        {"row_layers", result.row_layers},
                        {"full_row_layers", result.full_row_layers},
                        {"work_saved", work_saved(result)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<EngineOptions> engine_options(const EvalOptions& options) {
  DI_ASSIGN_OR_RETURN(EngineOptions base, exact_options());
  base.max_num_seqs = kRowsAtOnce;
  base.enable_prefix_caching = options.run.hit.has_value();
  base.window_snapshot_memory = 0;
  return options.engine.to_options(std::move(base));
}

Result<int> run_eval(const EvalOptions& options) {
  DI_ASSIGN_OR_RETURN(EngineOptions setting, engine_options(options));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, create_engine(std::move(setting)));
  DI_ASSIGN_OR_RETURN(const Suite suite, load_suite(options.suite, engine->model(), options.filter));
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
  DI_ASSIGN_OR_RETURN(const SuiteResult result, run_suite(*engine, suite, options.run, show, [] { return interrupted(); }));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress.clear();

  const EvalScore scores = score(suite, result, read_expected(options.engine.model, suite.skills));
  const std::string json = to_json(scores, result, seconds, *engine, options) + "\n";
  if (report.is_open()) {
    report.close();
    report.open(options.report, std::ios::binary | std::ios::trunc);
    report << json;
    report.close();
    if (!report) return Err(Status::DataLoss("--report: {}: cannot write", options.report));
  }
  const auto table = [&] {
    return format_table(scores) + format_speed(result, seconds, engine->model()) +
           format_replay(result, engine->options(), options);
  };
  DI_RETURN_IF_ERROR(write_output(options.json ? json : table()));
  if (result.interrupted) print_diagnostic(fmt::format("interrupted after {:.0f} s: only the rows decided so far\n", seconds));
  return result.interrupted ? kInterruptedExit : 0;
}

}  // namespace

void add_eval_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("eval", "Score a suite of skills: greedy answers against the expected ones");
  auto options = std::make_shared<EvalOptions>();
  EvalOptions& o = *options;
  o.engine.add_to(*command, EngineUse::kSuite);
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
  add_value(*command, "--hit", "Tokens before the end of each prompt, up to which whole pages of it are cached; none or all", "N",
            [&o](const std::string& text) -> Status {
              o.run.hit.reset();
              if (text == "none") return Status::Ok();
              if (text == "all") {
                o.run.hit = 1;
                return Status::Ok();
              }
              auto tokens = parse_whole(text, 1, int64_t{1} << 40);
              if (!tokens) return Status(tokens.error().code(), tokens.error().message() + ", or none or all");
              o.run.hit = *tokens;
              return Status::Ok();
            })
      ->group("Suite");
  command->add_option("--report", o.report, "Write the result as JSON to a file, too")->type_name("FILE")->group("Output");
  command->add_flag("--json", o.json, "One JSON object instead of the table")->group("Output");
  command->footer(
      "A row passes when the greedy continuation of its prompt starts with its answer. Expected values are those of report.json "
      "in\n"
      "the checkpoint folder. Ctrl-C prints what is decided so far (exit code 130).\n"
      "Rows share nothing, and prompts run through all layers (--replay exact, --hit none) unless told otherwise.\n\n"
      "Examples:\n"
      "  deepinfer eval -m models/nano --suite models/nano/skills.jsonl --skill chat --skill sort\n"
      "  deepinfer eval -m models/nano --suite models/nano/skills.jsonl --replay bounded --hit 200");
  command->callback([options, &chosen] { chosen = [options] { return run_eval(*options); }; });
}

}  // namespace deepinfer::cli
