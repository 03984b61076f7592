// What recording costs: decode steps of nano with and without it, block by block in turns, in one process.

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json_line.h"
#include "engine/engine_core.h"
#include "engine/loaded_model.h"
#include "engine/model_executor.h"
#include "engine/request_check.h"
#include "telemetry/chrome_trace.h"

namespace {

using namespace deepinfer;

template <typename T>
T must(Result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "trace_overhead_bench: %s\n", r.error().message().c_str());
  std::exit(1);
}

double process_cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

struct Setting {
  std::string model;
  int threads = 1;
  int64_t sequences = 1, prompt = 64, steps = 20;
};

/// An engine without its thread: it decodes when it is told to.
class Decoder {
 public:
  Decoder(const Setting& setting, telemetry::TraceRecorder* recorder)
      : setting_(setting),
        loaded_(must(load_model(setting.model, "cpu", setting.threads, {}, recorder))),
        limit_(std::min<int64_t>(loaded_.config().max_position_embeddings, 4096)),
        cache_(must(KvCache::Create(must(PagePool::Create(loaded_.model->page_layout().page_bytes, kCacheBytes)), {}))),
        windows_(0, 0),
        device_(loaded_.model.get(), loaded_.pool.get(), setting.sequences),
        core_(options(), cache_.get(), &windows_, &device_, loaded_.tokenizer, PrefixHasher::Random(), step_clock) {
    core_.set_trace(recorder);
  }
  ~Decoder() {
    core_.end_all(FinishReason::kCancelled);
    while (core_.busy()) core_.turn(step_clock());
  }

  /// From now on; nullptr: nothing.
  void record(telemetry::TraceRecorder* recorder) { core_.set_trace(recorder); }
  /// All sequences decode, and will for the next `steps`.
  void make_ready() {
    if (left_ >= setting_.steps) return;
    core_.end_all(FinishReason::kCancelled);
    while (core_.busy()) core_.turn(step_clock());
    left_ = limit_ - setting_.prompt - 64;
    for (int64_t s = 0; s < setting_.sequences; ++s) submit();
    while (core_.running() < setting_.sequences || core_.last_plan().row_count() != setting_.sequences) core_.turn(step_clock());
    for (int i = 0; i < 3; ++i) core_.turn(step_clock());
  }

  struct Times {
    double wall = 0, cpu = 0;
  };
  Times run() {
    const double wall = step_clock(), cpu = process_cpu_seconds();
    for (int64_t i = 0; i < setting_.steps; ++i) core_.turn(step_clock());
    left_ -= setting_.steps;
    return {step_clock() - wall, process_cpu_seconds() - cpu};
  }

 private:
  static constexpr int64_t kCacheBytes = int64_t{256} << 20;

  CoreOptions options() const {
    CoreOptions o;
    o.limits = {setting_.sequences, std::max<int64_t>(512, setting_.sequences), kPagePositions};
    o.vocab_size = loaded_.config().vocab_size;
    o.geometry = ReplayGeometry::Of(loaded_.config());
    o.decoder_keep = loaded_.config().sliding_window + 12;
    o.snapshots = false;
    return o;
  }

  void submit() {
    Request request;
    for (int64_t i = 0; i < setting_.prompt; ++i)
      request.prompt.push_back(static_cast<int32_t>(100 + (next_ * 7919 + static_cast<uint64_t>(i) * 31) % 1000));
    request.max_tokens = limit_ - setting_.prompt;
    request.ignore_eos = true;
    request.seed = next_;
    RequestLimits limits;
    limits.vocab_size = loaded_.config().vocab_size;
    limits.max_model_len = limit_;
    limits.max_num_seqs = setting_.sequences;
    limits.total_pages = cache_->total_pages();
    auto active = must(check_request(std::move(request), limits));
    active->id = next_++;
    active->stream = std::make_shared<RequestStream>(active->id, 1, [](RequestId) {});
    core_.submit(std::move(active), step_clock());
  }

  const Setting setting_;
  LoadedModel loaded_;
  const int64_t limit_;
  std::unique_ptr<KvCache> cache_;
  WindowSnapshotPool<CachedWindow> windows_;
  ModelExecutor device_;
  EngineCore core_;
  RequestId next_ = 1;
  int64_t left_ = 0;
};

double quantile(std::vector<double> values, double q) {
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size()));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What recording costs: time of decode steps with it over time without");
  Setting setting;
  setting.model = "models/nano";
  int64_t rounds = 400;
  std::string directory = std::filesystem::temp_directory_path().string();
  app.add_option("--model", setting.model);
  app.add_option("--threads", setting.threads)->check(CLI::Range(1, 1024));
  app.add_option("--sequences", setting.sequences)->check(CLI::Range(1, 64));
  app.add_option("--steps", setting.steps, "of a block")->check(CLI::Range(1, 1000));
  app.add_option("--rounds", rounds, "of a block without and one with it")->check(CLI::Range(10, 1'000'000));
  app.add_option("--directory", directory, "for trace files, which are removed");
  CLI11_PARSE(app, argc, argv);

  const std::string path = directory + "/deepinfer-trace-overhead-" + std::to_string(::getpid()) + ".json";
  // `control`: nothing is recorded on either side. What it differs from 1 by is what this machine cannot tell.
  for (const std::string variant : {"control", "timeline", "file", "ops"}) {
    telemetry::TraceRecorder::Options options;
    options.ops = variant == "ops";
    const auto recorder = std::make_shared<telemetry::TraceRecorder>(options);
    std::unique_ptr<telemetry::ChromeTrace> file;
    if (variant == "file") file = must(telemetry::ChromeTrace::Create(recorder, {.path = path}));
    // One engine, told to record and not to, so that both have the same memory and threads. Operators need a backend of their
    // own.
    Decoder one(setting, nullptr);
    std::unique_ptr<Decoder> other = options.ops ? std::make_unique<Decoder>(setting, recorder.get()) : nullptr;
    const auto block = [&](bool record) {
      Decoder& decoder = record && other != nullptr ? *other : one;
      if (other == nullptr) decoder.record(record && variant != "control" ? recorder.get() : nullptr);
      decoder.make_ready();
      return decoder.run();
    };
    std::vector<double> wall_on, wall_off, cpu;
    for (int64_t r = -10; r < rounds; ++r) {
      // Which goes first changes from round to round.
      Decoder::Times times[2] = {block(r % 2 != 0), block(r % 2 == 0)};
      if (r % 2 != 0) std::swap(times[0], times[1]);
      if (r < 0) continue;
      wall_off.push_back(times[0].wall);
      wall_on.push_back(times[1].wall);
      cpu.push_back(times[1].cpu / times[0].cpu);
    }
    // On a shared machine most blocks are held up by somebody: the quick ones say what the work takes.
    constexpr double kQuick = 0.1;
    const double step_us = quantile(wall_off, kQuick) / static_cast<double>(setting.steps) * 1e6;
    BenchConditions conditions = {{"recording", variant},
                                  {"model", std::filesystem::path(setting.model).filename().string()},
                                  {"sequences", std::to_string(setting.sequences)},
                                  {"threads", std::to_string(setting.threads)},
                                  {"steps_per_block", std::to_string(setting.steps)},
                                  {"rounds", std::to_string(rounds)},
                                  {"step_us_without", fmt::format("{:.0f}", step_us)},
                                  {"spans", std::to_string(recorder->recorded())},
                                  {"statistic", "median of the rounds' ratios of process CPU time"}};
    print_bench_line(stdout, "trace_overhead_cpu", quantile(cpu, 0.5), "ratio", std::nullopt, conditions);
    conditions.back().second = "ratio of the 10th percentiles of block times";
    print_bench_line(stdout, "trace_overhead_wall", quantile(wall_on, kQuick) / quantile(wall_off, kQuick), "ratio", std::nullopt,
                     conditions);
    if (file != nullptr) (void)file->close();
    std::filesystem::remove(path);
  }
  return 0;
}
