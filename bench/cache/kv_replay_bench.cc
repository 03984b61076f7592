// Public traces through the page cache's rules, at the page size and prices of a model: hit rate, prefill saved and cost of a
// request against the time to live. Traces are read where they lie and are no part of this repository.

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>

#include "base/json_line.h"
#include "cache/replay_traces.h"
#include "page_replay.h"
#include "page_trace.h"
#include "retention_plan.h"
#include "svg_plot.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::bench;
using namespace deepinfer::cache;

constexpr int64_t kPagePositions = 128;
constexpr double kTtls[] = {0, 3, 10, 30, 60, 120, 300, 600, 1200, 3600};

template <typename T>
T must(Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "kv_replay_bench: %s\n", r.error().message().c_str());
  std::exit(1);
}

struct Setting {
  std::string traces, svg;
  PlanPrices prices;
};

struct NamedTrace {
  std::string name, reuse;
  PageTrace pages;
};

PageTrace pages_of(const std::vector<TraceRow>& rows, CacheClass cache_class) {
  PageTrace trace{.requests = {}, .page_positions = kPagePositions};
  const Status added = add_rows(trace, rows, cache_class, 0);
  if (!added.ok()) must(Result<int>(Err(added)));
  sort_requests(trace);
  return trace;
}

std::vector<NamedTrace> load_traces(const Setting& setting) {
  std::vector<NamedTrace> traces;
  const auto load = [&](const char* file) { return must(load_trace(setting.traces + "/" + file)); };
  traces.push_back(
      {"mooncake conversation", "its hash_ids", pages_of(load("mooncake_conversation_4000.jsonl"), CacheClass::kChat)});
  const Reuse reuse = measure_reuse(traces[0].pages);
  const std::string assumed =
      fmt::format("assumed: {:.0f} % of requests go on from an earlier one, after mooncake's intervals", reuse.continued * 100);
  traces.push_back(
      {"azure conversation", assumed, pages_of(assume_sessions(load("azure_llm_2023_conv.csv"), reuse, 1), CacheClass::kChat)});
  traces.push_back(
      {"azure code", assumed, pages_of(assume_sessions(load("azure_llm_2023_code.csv"), reuse, 2), CacheClass::kAgent)});
  return traces;
}

void replay_trace(const NamedTrace& trace, const Setting& setting, Plot& hits, Plot& costs, int color) {
  const PageCosts prices = setting.prices.page_costs();
  PlotLine hit_line{.label = trace.name, .points = {}, .color = color}, cost_line = hit_line;
  double without = 0;
  for (const double ttl : kTtls) {
    ReplayOptions options;
    options.ttl_seconds.fill(ttl);
    const ReplayResult result = replay(trace.pages, options);
    const ReplayCounts all = result.total();
    const auto requests = static_cast<double>(all.requests);
    const double cost = (static_cast<double>(all.pages - all.hit_pages) * prices.prefill +
                         static_cast<double>(all.hit_pages) * prices.hit + all.page_seconds * prices.storage_per_second) /
                        requests;
    if (ttl == 0) without = cost;
    const auto saved = static_cast<double>(all.hit_pages * kPagePositions);
    print_bench_line(stdout, "kv_replay_hit_rate", all.hit_rate(), "pages", std::nullopt,
                     {{"trace", trace.name},
                      {"reuse", trace.reuse},
                      {"ttl_seconds", fmt::format("{:g}", ttl)},
                      {"requests", std::to_string(all.requests)},
                      {"requests_hit", std::to_string(all.requests_hit)},
                      {"prompt_tokens", std::to_string(all.prompt_tokens)},
                      {"prefill_saved", fmt::format("{:.4f}", saved / static_cast<double>(all.prompt_tokens))},
                      {"most_bytes", std::to_string(result.most_pages * setting.prices.page_bytes)},
                      {"cost_per_request", fmt::format("{:.4g}", cost)},
                      {"cost_relative", fmt::format("{:.4f}", cost / without)},
                      {"page_bytes", std::to_string(setting.prices.page_bytes)}});
    if (ttl == 0) continue;
    hit_line.points.push_back({ttl, all.hit_rate()});
    cost_line.points.push_back({ttl, cost / without});
  }
  hits.lines.push_back(std::move(hit_line));
  costs.lines.push_back(std::move(cost_line));
}

}  // namespace

int main(int argc, char** argv) {
  const char* shared = std::getenv("DEEPINFER_SHARED");
  Setting setting;
  setting.traces = std::string(shared != nullptr ? shared : DEEPINFER_SOURCE_DIR "/../shared") + "/vectors/public/traces";
  PlanPrices& p = setting.prices;
  p.page_positions = kPagePositions;
  p.device_per_hour = 2;
  p.storage_per_gib_month = 0.02;
  CLI::App app("Public traces against the time to live of pages");
  app.add_option("--traces", setting.traces, "folder of the traces (default: $DEEPINFER_SHARED/vectors/public/traces)");
  app.add_option("--page-bytes", p.page_bytes)->required()->check(CLI::Range(1, 1 << 30));
  app.add_option("--prefill-rate", p.prefill_tokens_per_second, "tokens/s (kv_prefill)")
      ->required()
      ->check(CLI::Range(1e-3, 1e12));
  app.add_option("--pull-rate", p.pull_bytes_per_second, "bytes/s (kv_pull)")->required()->check(CLI::Range(1.0, 1e15));
  app.add_option("--device-cost", p.device_per_hour, "of an hour")->check(CLI::Range(1e-9, 1e9));
  app.add_option("--storage-cost", p.storage_per_gib_month, "of a GiB for a month")->check(CLI::Range(0.0, 1e9));
  app.add_option("--svg", setting.svg, "plots");
  CLI11_PARSE(app, argc, argv);

  Plot hits{.title = "Hit rate",
            .description = "",
            .x_label = "time to live (s)",
            .y_label = "pages hit / asked for",
            .lines = {},
            .log_x = true};
  Plot costs{.title = "Cost of a request",
             .description = "",
             .x_label = "time to live (s)",
             .y_label = "cost / cost without a cache",
             .lines = {},
             .log_x = true};
  int color = 0;
  for (const NamedTrace& trace : load_traces(setting)) replay_trace(trace, setting, hits, costs, color++);
  if (!setting.svg.empty()) std::ofstream(setting.svg) << render_svg({hits, costs}, "kv-replay");
  return 0;
}
