// Public traces through the real engine and its tiers: hit rate by tier, prefill saved, time to first token and cost of a request
// against retention, beside what the rules alone (page_replay.h) predict for the same prompts. Requests come one after the other
// at the moments of the trace, on a clock that skips the pauses between them.

#include <time.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <thread>

#include "base/json_line.h"
#include "cache/kv_store_rig.h"
#include "cache/replay_traces.h"
#include "cache/tiers/kv_retention.h"
#include "cache/tiers/tier_workers.h"
#include "deepinfer/engine.h"
#include "page_replay.h"
#include "svg_plot.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::bench;
using cache::PageTrace;

constexpr double kForEver = std::numeric_limits<double>::infinity();
constexpr double kMonth = 30 * 86400.0, kGib = 1 << 30;

struct Setting {
  std::string model = DEEPINFER_SOURCE_DIR "/models/nano";
  std::string traces, directory, svg;
  std::vector<double> ttls = {0, 30, 120, 300, 600, kForEver};
  std::vector<int64_t> capacities = {1024, 512, 256};
  int64_t mooncake_each = 16, azure_each = 100;
  int64_t mooncake_block = 32, azure_block = 256;
  int64_t device_pages = 80, host_pages = 160;
  int threads = 0;
  bool processor_time = false;
  double device_per_hour = 2, host_per_gib_month = 3, store_per_gib_month = 0.02;
};

/// Processor time of the process: with one thread of the backend what a device of its own would take, however busy the machine.
double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Retention {
  double ttl = kForEver;
  int64_t store_pages = 0;  ///< that the local store may hold; 0: all
};

struct NamedPrompts {
  std::string name, reuse;
  int64_t block_tokens = 0, cut = 0;
  std::vector<ReplayRequest> requests;
};

/// What a whole trace took.
struct Totals {
  int64_t prompt_tokens = 0, pages = 0, cached_tokens = 0, replayed_tokens = 0, bytes = 0;
  int64_t requests_hit = 0;
  std::map<std::string, int64_t> tokens_of_tier;
  double first_token_seconds = 0, processor_seconds = 0, match_seconds = 0, pull_seconds = 0;
  std::map<std::string, double> page_seconds;  ///< held x how long on the trace's clock, by tier
  std::vector<int32_t> answers;
  EngineStats stats;
};

/// An engine whose clock follows the trace's: it skips ahead when nothing runs.
class Replayed {
 public:
  Replayed(const Setting& setting, const Retention& retention, int64_t page_bytes) {
    EngineOptions o;
    o.model = setting.model;
    o.threads = setting.threads;
    o.max_num_seqs = 8;
    o.kv_cache_memory = setting.device_pages * page_bytes;
    o.cache_ttl_chat = std::min(retention.ttl, kMaxKvTtlSeconds);
    o.cache_ttl_agent = std::max(o.cache_ttl_agent, o.cache_ttl_chat);
    o.kv_tiers.host_bytes = setting.host_pages * page_bytes;
    o.kv_tiers.store = setting.directory;
    o.kv_tiers.ttl_chat = std::min(retention.ttl, kMaxKvTtlSeconds);
    // Its sizes are of pages with their headers and checksums, some 200 bytes.
    o.kv_tiers.store_bytes = retention.store_pages > 0 ? retention.store_pages * (page_bytes + 256) : int64_t{4} << 30;
    o.kv_tiers.match_limit = 1;  // of a busy machine, whose delays are no store's
    o.time_skipped = [skipped = skipped_] { return skipped->load(); };
    engine_ = must(Engine::Create(o));
    begin_ = steady_seconds();
  }

  ModelInfo model() const { return engine_->model(); }
  EngineStats stats() const { return engine_->stats(); }
  double now() const { return steady_seconds() - begin_ + skipped_->load(); }
  /// A moment of the trace that has passed already passes at once.
  void skip_to(double time) { *skipped_ += std::max(time - now(), 0.0); }

  Output ask(std::vector<int32_t> prompt, double& first_token) {
    Request request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0;
    request.max_tokens = 1;
    request.ignore_eos = true;
    request.detokenize = false;
    const double begin = steady_seconds();
    RequestHandle handle = must(engine_->submit(std::move(request)));
    Output last;
    while (std::optional<Output> news = handle.next()) {
      must(news->error);
      last = std::move(*news);
    }
    first_token = steady_seconds() - begin;
    return last;
  }

  /// Until every tier has what it was given: in the pauses that are skipped it would have had the time.
  void settle() {
    const double begin = steady_seconds();
    for (;;) {
      const KvTiersStats stats = engine_->stats().tiers;
      const bool done = std::all_of(stats.tiers.begin(), stats.tiers.end(), [&](const KvTierStats& tier) {
        return tier.pages_written + tier.pages_dropped >= stats.pages_retained;
      });
      if (done) return;
      if (steady_seconds() - begin > 20) fail("a tier doesn't write what it was given");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

 private:
  std::shared_ptr<std::atomic<double>> skipped_ = std::make_shared<std::atomic<double>>(0);
  std::unique_ptr<Engine> engine_;
  double begin_ = 0;
};

void count(Totals& totals, const Output& output, double first_token) {
  const Usage& usage = output.usage;
  totals.prompt_tokens += usage.prompt_tokens;
  totals.cached_tokens += usage.cached_tokens;
  totals.replayed_tokens += usage.replayed_tokens;
  totals.requests_hit += usage.cached_tokens > 0 ? 1 : 0;
  totals.bytes += usage.tiers.bytes;
  totals.first_token_seconds += first_token;
  totals.match_seconds += usage.tiers.match_seconds;
  totals.pull_seconds += usage.tiers.pull_seconds;
  totals.tokens_of_tier["device"] += usage.cached_tokens - usage.tiers.tokens();
  for (const TierUsage::Part& part : usage.tiers.parts) totals.tokens_of_tier[std::string(part.tier)] += part.tokens;
  totals.answers.push_back(output.tokens.empty() ? -1 : output.tokens.front());
}

Totals replay(const NamedPrompts& trace, const Setting& setting, const Retention& retention, int64_t page_bytes) {
  std::filesystem::remove_all(setting.directory);
  std::filesystem::create_directories(setting.directory);
  Replayed engine(setting, retention, page_bytes);
  const int64_t page = engine.model().page_tokens;
  double unused = 0;
  (void)engine.ask(std::vector<int32_t>(static_cast<size_t>(page) - 1, 1), unused);  // too short to be kept
  Totals totals;
  const double start = engine.now() - trace.requests.front().time;
  double held_since = engine.now();
  for (const ReplayRequest& request : trace.requests) {
    engine.settle();
    const KvTiersStats tiers = engine.stats().tiers;
    engine.skip_to(start + request.time);
    const double now = engine.now();
    for (const KvTierStats& tier : tiers.tiers)
      totals.page_seconds[tier.name] += static_cast<double>(tier.pages) * (now - held_since);
    held_since = now;
    double first_token = 0;
    const double work_begin = processor_seconds();
    const Output output = engine.ask(request.prompt, first_token);
    totals.processor_seconds += processor_seconds() - work_begin;
    count(totals, output, first_token);
    totals.pages += static_cast<int64_t>(request.prompt.size()) / page;
  }
  totals.stats = engine.stats();
  return totals;
}

std::string seconds_text(double seconds) { return std::isinf(seconds) ? "inf" : fmt::format("{:g}", seconds); }
double part(int64_t a, int64_t b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0; }

struct Costs {
  double device = 0, storage = 0;  ///< of a request
  double total() const { return device + storage; }
};

Costs costs_of(const Totals& totals, const Setting& setting, int64_t page_bytes, size_t requests) {
  const auto n = static_cast<double>(requests);
  const auto kept = [&](const char* tier, double price) {
    const auto at = totals.page_seconds.find(tier);
    return at == totals.page_seconds.end() ? 0 : at->second * static_cast<double>(page_bytes) * price / kGib / kMonth;
  };
  const double device_seconds = setting.processor_time ? totals.processor_seconds : totals.first_token_seconds;
  return {.device = device_seconds * setting.device_per_hour / 3600 / n,
          .storage = (kept("host", setting.host_per_gib_month) + kept("local", setting.store_per_gib_month)) / n};
}

/// Rows times layers that were left out, of those of an engine without cache and replay.
double work_saved(const EngineStats& stats) { return 1 - part(stats.row_layers, stats.full_row_layers); }

void print(const NamedPrompts& trace, const Setting& setting, const Retention& retention, const Totals& t, const Totals& without,
           const cache::ReplayCounts& predicted, int64_t page_bytes) {
  const Costs cost = costs_of(t, setting, page_bytes, trace.requests.size());
  const Costs cold = costs_of(without, setting, page_bytes, trace.requests.size());
  const auto n = static_cast<double>(trace.requests.size());
  const auto of_tier = [&](const char* tier) {
    const auto at = t.tokens_of_tier.find(tier);
    return fmt::format("{:.4f}", at == t.tokens_of_tier.end() ? 0 : part(at->second, t.pages * kPagePositions));
  };
  const auto held = [&](const char* tier) {
    const auto at = t.page_seconds.find(tier);
    return fmt::format("{:.4g}", at == t.page_seconds.end() ? 0 : at->second * static_cast<double>(page_bytes));
  };
  const int64_t computed = t.prompt_tokens - t.cached_tokens + t.replayed_tokens;
  int64_t others = 0;
  for (size_t i = 0; i < t.answers.size(); ++i) others += t.answers[i] != without.answers[i] ? 1 : 0;
  print_bench_line(stdout, "kv_engine_replay", part(t.cached_tokens, t.pages * kPagePositions), "pages", std::nullopt,
                   {{"trace", trace.name},
                    {"reuse", trace.reuse},
                    {"block_tokens", std::to_string(trace.block_tokens)},
                    {"requests", std::to_string(trace.requests.size())},
                    {"prompts_cut", std::to_string(trace.cut)},
                    {"ttl_seconds", seconds_text(retention.ttl)},
                    {"store_pages", retention.store_pages == 0 ? "all" : std::to_string(retention.store_pages)},
                    {"device_pages", std::to_string(setting.device_pages)},
                    {"host_pages", std::to_string(setting.host_pages)},
                    {"predicted", fmt::format("{:.4f}", predicted.hit_rate())},
                    {"hit_device", of_tier("device")},
                    {"hit_host", of_tier("host")},
                    {"hit_local", of_tier("local")},
                    {"requests_hit", std::to_string(t.requests_hit)},
                    {"requests_hit_predicted", std::to_string(predicted.requests_hit)},
                    {"prompt_tokens", std::to_string(t.prompt_tokens)},
                    {"computed_tokens", std::to_string(computed)},
                    {"prefill_saved", fmt::format("{:.4f}", 1 - part(computed, t.prompt_tokens))},
                    {"work_saved", fmt::format("{:.4f}", work_saved(t.stats))},
                    {"work_saved_cold", fmt::format("{:.4f}", work_saved(without.stats))},
                    {"pulls", std::to_string(t.stats.pulls)},
                    {"pulls_refused", std::to_string(t.stats.pulls_refused)},
                    {"pulls_failed", std::to_string(t.stats.pulls_failed)},
                    {"pull_bytes", std::to_string(t.bytes)},
                    {"pull_seconds", fmt::format("{:.4f}", t.pull_seconds)},
                    {"match_seconds", fmt::format("{:.4f}", t.match_seconds)},
                    {"snapshot_hits", std::to_string(t.stats.snapshot_hits)},
                    {"first_token_ms", fmt::format("{:.3f}", t.first_token_seconds / n * 1e3)},
                    {"first_token_of_cold", fmt::format("{:.4f}", t.first_token_seconds / without.first_token_seconds)},
                    {"processor_ms", fmt::format("{:.3f}", t.processor_seconds / n * 1e3)},
                    {"processor_of_cold", fmt::format("{:.4f}", t.processor_seconds / without.processor_seconds)},
                    {"device_seconds_are", setting.processor_time ? "processor time" : "time to first token"},
                    {"threads", std::to_string(setting.threads)},
                    {"host_byte_seconds", held("host")},
                    {"store_byte_seconds", held("local")},
                    {"predicted_byte_seconds", fmt::format("{:.4g}", predicted.page_seconds * static_cast<double>(page_bytes))},
                    {"cost_device", fmt::format("{:.4g}", cost.device)},
                    {"cost_storage", fmt::format("{:.4g}", cost.storage)},
                    {"cost_relative", fmt::format("{:.4f}", cost.total() / cold.total())},
                    {"other_first_tokens", std::to_string(others)},
                    {"page_bytes", std::to_string(page_bytes)},
                    {"prices", fmt::format("{:g} an hour, {:g} and {:g} a GiB and month of memory and store",
                                           setting.device_per_hour, setting.host_per_gib_month, setting.store_per_gib_month)}});
  std::fflush(stdout);
}

std::vector<NamedPrompts> load_prompts(const Setting& setting, const PromptScale& scale) {
  const auto load = [&](const char* file) { return must(load_trace(setting.traces + "/" + file)); };
  std::vector<NamedPrompts> traces;
  const auto add = [&](std::string name, std::string reuse, const std::vector<TraceRow>& rows, int64_t block) {
    PromptScale own = scale;
    own.block_tokens = block;
    NamedPrompts& trace = traces.emplace_back(
        NamedPrompts{.name = std::move(name), .reuse = std::move(reuse), .block_tokens = block, .requests = {}});
    trace.requests = make_prompts(rows, own, trace.cut);
    if (trace.requests.empty()) fail(trace.name + ": no requests");
  };
  const std::vector<TraceRow> mooncake = load("mooncake_conversation_4000.jsonl");
  add("mooncake conversation", "its hash_ids", choose_conversations(mooncake, setting.mooncake_each), setting.mooncake_block);
  PageTrace pages{.requests = {}, .page_positions = kPagePositions};
  must(add_rows(pages, mooncake, CacheClass::kChat, 0));
  sort_requests(pages);
  const Reuse reuse = measure_reuse(pages);
  const std::string assumed =
      fmt::format("assumed: {:.0f} % of requests go on from an earlier one, after mooncake's intervals", reuse.continued * 100);
  uint64_t seed = 0;
  for (const char* kind : {"conv", "code"}) {
    const std::vector<TraceRow> rows = load(fmt::format("azure_llm_2023_{}.csv", kind).c_str());
    const std::string name = fmt::format("azure {}", kind);
    const std::vector<TraceRow> sessions = assume_sessions(rows, reuse, ++seed);
    add(name, assumed, choose_conversations(sessions, setting.azure_each), setting.azure_block);
    add(name, "none: arrivals and lengths alone", choose_conversations(rows, setting.azure_each), setting.azure_block);
  }
  return traces;
}

void run(const NamedPrompts& trace, const Setting& setting, int64_t page_bytes, std::vector<Plot>& plots, int color) {
  const PageTrace pages = pages_of_prompts(trace.requests, kPagePositions);
  const bool shares = !trace.reuse.starts_with("none");
  PlotLine hits{.label = trace.name, .points = {}, .color = color};
  PlotLine predictions{.label = trace.name + ", by the rules", .points = {}, .color = color, .dashed = true}, costs = hits;
  std::optional<Totals> without;
  const auto measure = [&](const Retention& retention) {
    cache::ReplayOptions rules;
    rules.ttl_seconds.fill(retention.ttl);
    rules.capacity_pages = retention.store_pages;
    const cache::ReplayCounts predicted = cache::replay(pages, rules).total();
    const Totals totals = replay(trace, setting, retention, page_bytes);
    if (!without) without = totals;
    print(trace, setting, retention, totals, *without, predicted, page_bytes);
    if (retention.store_pages > 0 || retention.ttl == 0) return;
    // For ever, drawn at the trace's whole length.
    const double x = std::min(retention.ttl, pages.span());
    hits.points.push_back({x, part(totals.cached_tokens, totals.pages * kPagePositions)});
    predictions.points.push_back({x, predicted.hit_rate()});
    costs.points.push_back({x, costs_of(totals, setting, page_bytes, trace.requests.size()).total() /
                                   costs_of(*without, setting, page_bytes, trace.requests.size()).total()});
  };
  for (const double ttl : setting.ttls) {
    if (shares || ttl == 0 || std::isinf(ttl)) measure({.ttl = ttl});
  }
  for (const int64_t capacity : setting.capacities) {
    if (trace.reuse == "its hash_ids") measure({.store_pages = capacity});
  }
  if (!shares) return;
  plots[0].lines.push_back(std::move(hits));
  plots[0].lines.push_back(std::move(predictions));
  plots[1].lines.push_back(std::move(costs));
}

}  // namespace

int main(int argc, char** argv) {
  const char* shared = std::getenv("DEEPINFER_SHARED");
  Setting setting;
  setting.traces = std::string(shared != nullptr ? shared : DEEPINFER_SOURCE_DIR "/../shared") + "/vectors/public/traces";
  CLI::App app("Public traces through the engine and its tiers, against retention");
  app.add_option("--model", setting.model);
  app.add_option("--traces", setting.traces, "folder of the traces (default: $DEEPINFER_SHARED/vectors/public/traces)");
  app.add_option("--directory", setting.directory, "where the local store goes; its subfolder kv_engine_replay is emptied")
      ->required();
  app.add_option("--ttls", setting.ttls, "times to live in seconds, the first 0, of which the others' costs are a part")
      ->delimiter(',');
  app.add_option("--capacities", setting.capacities, "pages of the local store, for pages that live for ever")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 24));
  app.add_option("--mooncake-each", setting.mooncake_each, "one of so many conversations")->check(CLI::Range(1, 1 << 20));
  app.add_option("--azure-each", setting.azure_each, "one of so many conversations")->check(CLI::Range(1, 1 << 20));
  app.add_option("--mooncake-block", setting.mooncake_block, "tokens that 512 of the trace become")->check(CLI::Range(1, 512));
  app.add_option("--azure-block", setting.azure_block, "tokens that 512 of the trace become")->check(CLI::Range(1, 512));
  app.add_option("--device-pages", setting.device_pages)->check(CLI::Range(65, 1 << 24));
  app.add_option("--host-pages", setting.host_pages)->check(CLI::Range(1, 1 << 24));
  app.add_option("--threads", setting.threads, "of the backend (default: all)")->check(CLI::Range(1, 1024));
  app.add_flag("--processor-time", setting.processor_time,
               "costs are of processor time instead of the time to first token: for a busy machine, with --threads 1");
  app.add_option("--device-cost", setting.device_per_hour, "of an hour")->check(CLI::Range(1e-9, 1e9));
  app.add_option("--host-cost", setting.host_per_gib_month, "of a GiB of memory for a month")->check(CLI::Range(0.0, 1e9));
  app.add_option("--storage-cost", setting.store_per_gib_month, "of a GiB of the store for a month")->check(CLI::Range(0.0, 1e9));
  app.add_option("--svg", setting.svg, "plots");
  CLI11_PARSE(app, argc, argv);
  if (setting.ttls.empty() || setting.ttls.front() != 0) fail("--ttls: must begin with 0");
  setting.directory += "/kv_engine_replay";

  PromptScale scale;
  int64_t page_bytes = 0;
  {
    EngineOptions probe;
    probe.model = setting.model;
    probe.kv_cache_memory = int64_t{16} << 20;
    const auto engine = must(Engine::Create(probe));
    scale.vocab_size = engine->model().vocab_size;
    scale.most_tokens = engine->model().max_model_len - 1;
    page_bytes = engine->model().page_bytes;
    if (engine->model().page_tokens != kPagePositions) fail("pages of another size");
  }
  std::vector<Plot> plots = {{.title = "Hit rate through the engine, and by the tiers' rules",
                              .description = "",
                              .x_label = "time to live (s)",
                              .y_label = "pages hit / asked for",
                              .lines = {},
                              .log_x = true},
                             {.title = "Cost of a request",
                              .description = "",
                              .x_label = "time to live (s)",
                              .y_label = "cost / cost without a cache",
                              .lines = {},
                              .log_x = true}};
  int color = 0;
  for (const NamedPrompts& trace : load_prompts(setting, scale)) run(trace, setting, page_bytes, plots, color++);
  if (!setting.svg.empty()) std::ofstream(setting.svg) << render_svg(plots, "kv-engine-replay");
  std::filesystem::remove_all(setting.directory);
  return 0;
}
