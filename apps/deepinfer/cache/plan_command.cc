#include <nlohmann/json.hpp>

#include "bench_command.h"
#include "cache/revisit_intervals.h"
#include "cache_command.h"
#include "checkpoint/model_config.h"
#include "flag_values.h"
#include "model/sequence_state.h"
#include "retention_plan.h"
#include "terminal.h"
#include "trace.h"

namespace deepinfer::cache {
namespace {

constexpr int64_t kMaxPageBytes = int64_t{1} << 32;
constexpr int64_t kMaxMeasuredBytes = int64_t{64} << 20;
constexpr int64_t kMaxCapacity = int64_t{1} << 60;
constexpr double kMaxRate = 1e15;
constexpr double kMaxPrice = 1e9;
constexpr double kMaxTtl = 10 * 365 * 86400.0;
constexpr size_t kMaxTraces = 15;

struct PlanFlags {
  std::vector<std::string> traces;
  std::string intervals, save_intervals;
  std::string model;
  std::optional<int64_t> page_bytes;
  std::optional<double> prefill_rate;
  std::optional<int64_t> pull_rate;
  std::string measured, store = "local";
  double device_cost = 2, storage_cost = 0.02;
  double load = 1;
  double max_ttl = 30 * 86400.0;
  int64_t capacity = 0;
  bool json = false;
  std::string svg;
};

/// "agent=FILE" or "FILE".
struct TraceArgument {
  CacheClass cache_class = CacheClass::kChat;
  std::string path;
};

TraceArgument parse_trace_argument(const std::string& text) {
  const size_t at = text.find('=');
  if (at != std::string::npos) {
    if (const auto cache_class = parse_cache_class(text.substr(0, at))) return {*cache_class, text.substr(at + 1)};
  }
  return {.path = text};
}

Result<PageTrace> read_traces(const PlanFlags& flags) {
  PageTrace trace{.requests = {}, .page_positions = kPagePositions};
  if (flags.traces.size() > kMaxTraces)
    return Err(Status::OutOfRange("--trace: is given {} times, at most {} are read", flags.traces.size(), kMaxTraces));
  for (size_t i = 0; i < flags.traces.size(); ++i) {
    const TraceArgument argument = parse_trace_argument(flags.traces[i]);
    DI_ASSIGN_OR_RETURN(const std::vector<bench::TraceRow> rows, bench::load_trace(argument.path));
    const Status added = add_rows(trace, rows, argument.cache_class, i);
    if (!added.ok()) return Err(added.with_context(argument.path));
  }
  sort_requests(trace);
  return trace;
}

/// The latest figure of that name among lines of JSON that benchmarks printed. `store` empty: of any. A store on a disk is as
/// fast as it is for pages that are in no cache.
Result<std::optional<double>> measured_value(const PlanFlags& flags, std::string_view name, std::string_view store) {
  std::optional<double> value;
  if (flags.measured.empty()) return value;
  DI_ASSIGN_OR_RETURN(const std::string text, cli::read_input(flags.measured, kMaxMeasuredBytes));
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty()) continue;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object())
      return Err(Status::InvalidArgument("--measured: {}: line {}: not a JSON object", flags.measured, number));
    if (json.value("name", nlohmann::json()) != name || !json.value("value", nlohmann::json()).is_number()) continue;
    const auto conditions = json.value("conditions", nlohmann::json::object());
    if (!store.empty()) {
      if (!conditions.is_object() || conditions.value("store", nlohmann::json()) != store) continue;
      if (store != "host" && conditions.value("cached", nlohmann::json()) == "yes") continue;
    }
    value = json["value"].get<double>();
  }
  return value;
}

/// What the recording says of the tier that --store names; a directory in Redis only says where pages are.
double recorded_pull_rate(const PlanFlags& flags, const RecordedCosts& recorded) {
  const auto at = recorded.pull_bytes_per_second.find(flags.store == "redis" ? "shared" : flags.store);
  return at == recorded.pull_bytes_per_second.end() ? 0 : at->second;
}

/// Flags first, then benchmarks, then what the engine measured that recorded.
Result<PlanPrices> prices_of(const PlanFlags& flags, const RecordedCosts& recorded) {
  PlanPrices prices;
  prices.page_positions = kPagePositions;
  prices.device_per_hour = flags.device_cost;
  prices.storage_per_gib_month = flags.storage_cost;
  if (flags.page_bytes) {
    prices.page_bytes = *flags.page_bytes;
  } else if (!flags.model.empty()) {
    DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(flags.model + "/config.json"));
    prices.page_bytes = PageLayout(config).page_bytes;
  } else if (recorded.page_bytes > 0) {
    prices.page_bytes = recorded.page_bytes;
  } else {
    return Err(Status::InvalidArgument("--model or --page-bytes: one must say how large a page is"));
  }
  if (recorded.page_positions != 0 && recorded.page_positions != kPagePositions) {
    return Err(
        Status::OutOfRange("--intervals: measured: page_positions: is {}, must be {}", recorded.page_positions, kPagePositions));
  }
  DI_ASSIGN_OR_RETURN(const std::optional<double> prefill, measured_value(flags, "kv_prefill", ""));
  DI_ASSIGN_OR_RETURN(const std::optional<double> pull, measured_value(flags, "kv_pull", flags.store));
  prices.prefill_tokens_per_second = flags.prefill_rate.value_or(prefill.value_or(recorded.prefill_tokens_per_second));
  prices.pull_bytes_per_second = flags.pull_rate ? static_cast<double>(*flags.pull_rate)
                                 : pull          ? *pull * 1e9
                                                 : recorded_pull_rate(flags, recorded);
  if (!(prices.prefill_tokens_per_second > 0))
    return Err(Status::InvalidArgument(
        "--prefill-rate: is not given, --measured has no line kv_prefill, and --intervals does not know"));
  if (!(prices.pull_bytes_per_second > 0)) {
    return Err(Status::InvalidArgument(
        "--pull-rate: is not given, --measured has no line kv_pull of store {}, and --intervals does not know", flags.store));
  }
  return prices;
}

Result<int> run_plan(const PlanFlags& flags) {
  if (flags.traces.empty() == flags.intervals.empty())
    return Err(Status::InvalidArgument("--trace or --intervals: one of them must say when prompts come back"));
  RevisitRecording recording;
  if (!flags.intervals.empty()) {
    DI_ASSIGN_OR_RETURN(const std::string text, cli::read_input(flags.intervals, kMaxRecordingBytes));
    auto parsed = parse_recording(text);
    if (!parsed) return Err(parsed.error().with_context("--intervals: " + flags.intervals));
    recording = *std::move(parsed);
  }
  DI_ASSIGN_OR_RETURN(const PlanPrices prices, prices_of(flags, recording.costs));
  DI_ASSIGN_OR_RETURN(bench::OutputFile svg, bench::OutputFile::Open("--svg", flags.svg));
  DI_ASSIGN_OR_RETURN(bench::OutputFile saved, bench::OutputFile::Open("--save-intervals", flags.save_intervals));
  PageTrace trace;
  if (!flags.traces.empty()) {
    DI_ASSIGN_OR_RETURN(trace, read_traces(flags));
    recording.by_class = record_intervals(trace);
  }
  DI_RETURN_IF_ERROR(saved.write(recording_json(recording)));
  DI_ASSIGN_OR_RETURN(RetentionPlan plan, make_plan(recording.by_class, prices, flags.load, flags.max_ttl));
  if (!flags.traces.empty()) add_replays(plan, trace, flags.capacity);
  DI_RETURN_IF_ERROR(svg.write(plan_svg(plan)));
  DI_RETURN_IF_ERROR(cli::write_output(flags.json ? plan_json(plan) : format_plan(plan)));
  return 0;
}

}  // namespace

void add_plan_command(CLI::App& cache, cli::Command& chosen) {
  CLI::App* command = cache.add_subcommand("plan", "How long pages are worth keeping, from when prompts came back");
  auto flags = std::make_shared<PlanFlags>();
  const auto recording = "When prompts come back";
  command
      ->add_option("--trace", flags->traces,
                   "Requests with hash_ids (Mooncake) or prefix_id (bench/README.md); CLASS= before the file for rows without "
                   "a class (default: chat)")
      ->type_name("[CLASS=]FILE")
      ->group(recording);
  command->add_option("--intervals", flags->intervals, "What --save-intervals, or serve --kv-intervals, wrote, instead of traces")
      ->type_name("FILE")
      ->group(recording);
  command->add_option("--save-intervals", flags->save_intervals, "Keep the recording: a few kilobytes, no prompts in it")
      ->type_name("FILE")
      ->group(recording);
  cli::add_real(*command, "--load", flags->load, 1e-6, 1e9, "Requests to plan for, as a multiple of those (default: 1)")
      ->group(recording);
  const auto costs = "Costs";
  command->add_option("-m,--model", flags->model, "Checkpoint folder, for the size of a page; config.json is enough")
      ->type_name("DIR")
      ->group(costs);
  cli::add_size(*command, "--page-bytes", flags->page_bytes, 1, kMaxPageBytes, "Size of a page, without a model")->group(costs);
  cli::add_real(*command, "--prefill-rate", flags->prefill_rate, 1e-3, kMaxRate, "Tokens that one device computes in a second")
      ->group(costs);
  cli::add_size(*command, "--pull-rate", flags->pull_rate, 1, int64_t{1} << 50, "Bytes that a tier gives in a second")
      ->group(costs);
  command
      ->add_option("--measured", flags->measured,
                   "Lines of `./dev bench kv_store` and `./dev bench kv_engine`, for the rates that are not given")
      ->type_name("FILE")
      ->group(costs);
  command->add_option("--store", flags->store, "Store in that file: host, local, shared or redis (default: local)")->group(costs);
  cli::add_real(*command, "--device-cost", flags->device_cost, 1e-9, kMaxPrice, "Of an hour of the device (default: 2)")
      ->group(costs);
  cli::add_real(*command, "--storage-cost", flags->storage_cost, 0, kMaxPrice, "Of a GiB for a month (default: 0.02)")
      ->group(costs);
  cli::add_duration(*command, "--max-ttl", flags->max_ttl, 1, kMaxTtl, "Longest time to live to look at (default: 30d)");
  cli::add_size(*command, "--capacity", flags->capacity, 1, kMaxCapacity, "Replay the traces in this much space, too");
  command->add_flag("--json", flags->json, "One JSON object");
  command->add_option("--svg", flags->svg, "Plots of hit rate and cost over time to live")->type_name("FILE");
  command->footer(
      "Fits how long it takes until a page is used again, class by class, and finds the time to live at which\n"
      "(1 - h) prefill + h hit + storage is least. Money may be of any unit.\n\n"
      "Example:\n"
      "  deepinfer cache plan --trace conversation.jsonl -m models/v4.1 --prefill-rate 12000 --pull-rate 3GB --load 40 --svg "
      "plan.svg\n"
      "  deepinfer cache plan --intervals intervals.json --store shared");
  command->callback([flags, &chosen] { chosen = [flags] { return run_plan(*flags); }; });
}

}  // namespace deepinfer::cache
