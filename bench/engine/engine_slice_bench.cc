// The engine over a slice of layers at true V4.1 dimensions: what share of the time the device waits for the host, with and
// without asynchronous scheduling, and a timeline that shows it.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json_line.h"
#include "common/ceilings.h"
#include "common/slice_model.h"
#include "engine/engine_core.h"
#include "engine/model_executor.h"
#include "engine/request_check.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::bench;

template <typename T>
T must(Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "engine_slice_bench: %s\n", r.error().message().c_str());
  std::exit(1);
}

constexpr size_t kSpans = 60;  ///< that are drawn

struct Run {
  double idle_fraction = 0;
  double step_ms = 0;
  double plan_us = 0, publish_us = 0;
  double tokens_per_second = 0;
  std::vector<telemetry::Span> spans;  ///< of the steps that the timeline shows: plan, step, publish
};

/// The first plans, steps and publications.
std::vector<telemetry::Span> steps_of(std::vector<telemetry::Span> spans) {
  std::erase_if(spans, [](const telemetry::Span& s) {
    const std::string_view name = s.name;
    return s.request != 0 || (name != "plan" && name != "step" && name != "publish");
  });
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  if (spans.size() > kSpans) spans.resize(kSpans);
  return spans;
}

Run run(const SliceModel& slice, bool async, int64_t sequences, int64_t prompt, int64_t steps) {
  Model* const model = slice.model.get();
  const ModelConfig& config = model->config();
  const int64_t pages = sequences * ((prompt + steps + 64) / kPagePositions + 2);
  auto cache = must(KvCache::Create(
      must(PagePool::Create(model->page_layout().page_bytes, pages * (model->page_layout().page_bytes + 64))), KvCacheOptions{}));
  WindowSnapshotPool<CachedWindow> windows(0, 0);
  ModelExecutor device(model, slice.pool.get(), sequences);
  CoreOptions options;
  options.limits = {sequences, std::max<int64_t>(512, sequences), kPagePositions};
  options.vocab_size = config.vocab_size;
  options.geometry = ReplayGeometry::Of(config);
  options.decoder_keep = config.sliding_window + 12;
  options.async = async;
  options.snapshots = false;
  EngineCore core(options, cache.get(), &windows, &device, nullptr, PrefixHasher::Random(), step_clock);
  RequestLimits limits;
  limits.vocab_size = config.vocab_size;
  limits.max_model_len = config.max_position_embeddings;
  limits.max_num_seqs = sequences;
  limits.total_pages = cache->total_pages();
  std::vector<RequestHandle> handles;
  for (int64_t s = 0; s < sequences; ++s) {
    Request request;
    for (int64_t i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<int32_t>((s * 7919 + i * 31) % config.vocab_size));
    request.max_tokens = steps + 50;
    request.ignore_eos = true;
    request.detokenize = false;
    request.seed = static_cast<uint64_t>(s);
    auto active = must(check_request(std::move(request), limits));
    active->id = static_cast<RequestId>(s + 1);
    active->stream = std::make_shared<RequestStream>(active->id, 1, [](RequestId) {});
    handles.emplace_back(active->stream);
    core.submit(std::move(active), step_clock());
  }
  // Until all decode.
  while (core.running() < sequences || core.last_plan().row_count() != sequences) core.turn(step_clock());
  for (int i = 0; i < 3; ++i) core.turn(step_clock());
  Run out;
  telemetry::TraceRecorder recorder;
  core.set_trace(&recorder);
  const EngineStats before = core.stats();
  const double start = step_clock();
  for (int64_t i = 0; i < steps; ++i) core.turn(step_clock());
  const double seconds = step_clock() - start;
  const EngineStats after = core.stats();
  const auto count = static_cast<double>(after.step.count - before.step.count);
  out.idle_fraction = (after.device_idle_seconds - before.device_idle_seconds) / seconds;
  out.step_ms = (after.step.total - before.step.total) / count * 1e3;
  out.plan_us = (after.plan.total - before.plan.total) / count * 1e6;
  out.publish_us = (after.publish.total - before.publish.total) / count * 1e6;
  out.tokens_per_second = static_cast<double>(after.generation_tokens - before.generation_tokens) / seconds;
  core.set_trace(nullptr);
  out.spans = steps_of(recorder.snapshot());
  core.end_all(FinishReason::kCancelled);
  while (core.busy()) core.turn(step_clock());
  return out;
}

/// The spans in the format of Chrome's tracing page and Perfetto.
void write_trace(const std::string& path, const std::vector<std::pair<std::string, const Run*>>& runs) {
  std::ofstream file(path);
  file << "[";
  bool first = true;
  int process = 0;
  for (const auto& [name, r] : runs) {
    ++process;
    int64_t zero = INT64_MAX;
    for (const telemetry::Span& span : r->spans) zero = std::min(zero, span.begin);
    file << (first ? "" : ",\n") << R"({"name":"process_name","ph":"M","pid":)" << process << R"(,"args":{"name":")" << name
         << "\"}}";
    first = false;
    for (const telemetry::Span& span : r->spans) {
      const bool device = span.category == telemetry::Category::kDevice;
      file << fmt::format(R"(,{}{{"name":"{} {}","ph":"X","pid":{},"tid":"{}","ts":{:.1f},"dur":{:.1f},"args":{{"rows":{}}}}})",
                          "\n", span.name, span.step, process, device ? "device" : "host",
                          static_cast<double>(span.begin - zero) * 1e-3, static_cast<double>(span.end - span.begin) * 1e-3,
                          span.args.front().value);
    }
  }
  file << "]\n";
}

/// The first steps of each run as bars: device above, host below. Host spans are drawn at least a pixel wide.
void write_svg(const std::string& path, const std::vector<std::pair<std::string, const Run*>>& runs, double seconds) {
  constexpr double kWidth = 900, kLeft = 110, kRow = 26;
  std::ofstream file(path);
  const double height = 40 + static_cast<double>(runs.size()) * (2 * kRow + 24) + 30;
  file << fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">)",
                      kWidth + kLeft + 20, height)
       << "<title>Timeline of engine steps</title><style>text{fill:#333}.d{fill:#4878a8}.p{fill:#c8553d}.u{fill:#588157}"
          "@media (prefers-color-scheme:dark){text{fill:#ddd}}</style>\n";
  file << fmt::format(R"(<text x="{}" y="18">device step</text><rect class="d" x="{}" y="8" width="12" height="12"/>)",
                      kLeft + 18, kLeft)
       << fmt::format(R"(<text x="{}" y="18">plan</text><rect class="p" x="{}" y="8" width="12" height="12"/>)", kLeft + 138,
                      kLeft + 120)
       << fmt::format(R"(<text x="{}" y="18">publish</text><rect class="u" x="{}" y="8" width="12" height="12"/>)", kLeft + 218,
                      kLeft + 200);
  double y = 34;
  for (const auto& [name, r] : runs) {
    int64_t zero = INT64_MAX;
    for (const telemetry::Span& span : r->spans) zero = std::min(zero, span.begin);
    file << fmt::format("<text x=\"4\" y=\"{}\">{}: device</text><text x=\"4\" y=\"{}\">host</text>\n", y + 16, name,
                        y + kRow + 16);
    for (const telemetry::Span& span : r->spans) {
      const double x0 = kLeft + static_cast<double>(span.begin - zero) * 1e-9 / seconds * kWidth;
      const double x1 = kLeft + static_cast<double>(span.end - zero) * 1e-9 / seconds * kWidth;
      if (x0 < kLeft || x1 > kLeft + kWidth) continue;
      const bool device = span.category == telemetry::Category::kDevice;
      file << fmt::format(
          "<rect class=\"{}\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" stroke=\"#fff\" stroke-width=\"{}\"/>\n",
          device                                  ? 'd'
          : std::string_view(span.name) == "plan" ? 'p'
                                                  : 'u',
          x0, device ? y : y + kRow, std::max(1.0, x1 - x0), kRow - 4, device ? 0.5 : 0.0);
    }
    y += 2 * kRow + 24;
  }
  file << fmt::format("<text x=\"{}\" y=\"{}\">0</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.1f} ms</text></svg>\n",
                      kLeft, y + 4, kLeft + kWidth, y + 4, seconds * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Device idle share of the engine over a slice of layers at true V4.1 dimensions");
  int threads = available_threads();
  int64_t experts = 64, sequences = 8, prompt = 256, steps = 100;
  int rounds = 3;
  std::string directory = (std::filesystem::temp_directory_path() / "deepinfer-slice").string();
  std::string trace, svg;
  bool keep = false;
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_option("--experts", experts, "routed experts per layer (released: 384)")->check(CLI::Range(6, 384));
  app.add_option("--sequences", sequences, "decoding at once")->check(CLI::Range(1, 4096));
  app.add_option("--prompt", prompt, "tokens of each")->check(CLI::Range(1, 100000));
  app.add_option("--steps", steps, "steps that are measured")->check(CLI::Range(10, 1000000));
  app.add_option("--rounds", rounds, "async and sync in turn")->check(CLI::Range(1, 100));
  app.add_option("--dir", directory, "where the random checkpoint is written");
  app.add_option("--trace", trace, "write a timeline of the last round (Chrome trace JSON)");
  app.add_option("--svg", svg, "draw the first steps of the last round");
  app.add_flag("--keep", keep, "keep the random checkpoint for the next run");
  CLI11_PARSE(app, argc, argv);

  const SliceModel slice = make_slice_model(directory, experts, threads);
  std::vector<Run> async, sync;
  for (int r = 0; r < rounds; ++r) {
    async.push_back(run(slice, true, sequences, prompt, steps));
    sync.push_back(run(slice, false, sequences, prompt, steps));
  }
  const auto median = [](const std::vector<Run>& runs, double Run::*field) {
    std::vector<double> values;
    for (const Run& r : runs) values.push_back(r.*field);
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  for (const auto& [name, runs] : {std::pair{"async", &async}, {"sync", &sync}}) {
    const BenchConditions conditions = {{"scheduling", name},
                                        {"backend", slice.backend->name()},
                                        {"threads", std::to_string(threads)},
                                        {"layers", kSliceLayers},
                                        {"experts", std::to_string(experts) + " of 384"},
                                        {"sequences", std::to_string(sequences)},
                                        {"prompt", std::to_string(prompt)},
                                        {"steps", std::to_string(steps)},
                                        {"rounds", std::to_string(rounds)}};
    print_bench_line(stdout, "engine_slice_idle", median(*runs, &Run::idle_fraction) * 100, "%", 2.0, conditions);
    print_bench_line(stdout, "engine_slice_step", median(*runs, &Run::step_ms), "ms", std::nullopt, conditions);
    print_bench_line(stdout, "engine_slice_plan", median(*runs, &Run::plan_us), "us", std::nullopt, conditions);
    print_bench_line(stdout, "engine_slice_publish", median(*runs, &Run::publish_us), "us", std::nullopt, conditions);
    print_bench_line(stdout, "engine_slice_decode", median(*runs, &Run::tokens_per_second), "token/s", std::nullopt, conditions);
  }
  if (!trace.empty()) write_trace(trace, {{"async", &async.back()}, {"sync", &sync.back()}});
  if (!svg.empty()) write_svg(svg, {{"async", &async.back()}, {"sync", &sync.back()}}, async.back().step_ms * 1e-3 * 6);
  if (!keep) std::filesystem::remove_all(directory);
  return 0;
}
