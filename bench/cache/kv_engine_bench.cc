// What a cached prefix is worth to a request: time to first token against the length of the prefix, by where its pages lie. The
// same prompts through engines with one tier each, in turns, so that they meet the same machine.

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "base/json_line.h"
#include "cache/kv_store_rig.h"
#include "deepinfer/engine.h"
#include "svg_plot.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::bench;

struct Setting {
  std::string model = DEEPINFER_SOURCE_DIR "/models/nano";
  std::string directory, redis, svg;
  std::vector<int64_t> prefixes = {128, 256, 512, 1024, 2048, 4096};
  std::string backend = "cpu";
  int threads = 0;
  int repeats = 7;
};

/// Tokens behind the prefix: a question about it.
constexpr int64_t kSuffix = 32;
constexpr int64_t kAnswer = 4;
constexpr double kPatience = 60;

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// An engine whose prefixes come from one place.
class Place {
 public:
  Place(std::string name, const Setting& setting, KvTierOptions tiers) : name_(std::move(name)), tier_(tiers.any()) {
    EngineOptions options;
    options.model = setting.model;
    options.backend = setting.backend;
    options.threads = setting.threads;
    // Several engines share a GPU, and one would take what it has left.
    if (setting.backend == "cuda") options.kv_cache_memory = int64_t{1} << 30;
    options.window_snapshot_memory = 0;  // only what lies on the device has snapshots: without them all replay the same
    options.kv_tiers = std::move(tiers);
    options.kv_tiers.match_limit = options.kv_tiers.pull_limit = kPatience;
    options.kv_tiers.cut_over = false;  // what a hit takes, also where computing takes less
    options.max_num_batched_tokens = 8192;
    engine_ = must(Engine::Create(options));
  }

  const std::string& name() const { return name_; }
  bool tier() const { return tier_; }
  int64_t vocabulary() const { return engine_->model().vocab_size; }

  struct Answer {
    double first_token = 0;  ///< seconds
    std::vector<int32_t> tokens;
    Usage usage;
  };
  Answer ask(const std::vector<int32_t>& prompt) {
    Request request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = kAnswer;
    request.ignore_eos = true;
    request.detokenize = false;
    const double begin = seconds_now();
    RequestHandle handle = must(engine_->submit(std::move(request)));
    Answer answer;
    while (const std::optional<Output> news = handle.next()) {
      if (answer.tokens.empty() && !news->tokens.empty()) answer.first_token = seconds_now() - begin;
      answer.tokens.insert(answer.tokens.end(), news->tokens.begin(), news->tokens.end());
      answer.usage = news->usage;
      if (!news->error.ok()) fail(name_ + ": " + news->error.message());
    }
    return answer;
  }

  void forget() { engine_->reset_prefix_cache(); }
  /// Until the tier has so many pages of ours.
  void wait_for_pages(int64_t written) {
    const double begin = seconds_now();
    while (pages_written() < written) {
      if (seconds_now() - begin > kPatience)
        fail(fmt::format("{}: {} of {} pages were written", name_, pages_written(), written));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  int64_t pages_written() const {
    const EngineStats stats = engine_->stats();
    return stats.tiers.tiers.empty() ? 0 : stats.tiers.tiers.front().pages_written;
  }

 private:
  std::string name_;
  bool tier_;
  std::unique_ptr<Engine> engine_;
};

std::vector<int32_t> make_prompt(int64_t tokens, int64_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  // Away from both ends, where special tokens are.
  const auto middle = static_cast<uint64_t>(vocabulary / 2);
  for (int32_t& token : prompt) token = static_cast<int32_t>(static_cast<uint64_t>(vocabulary / 4) + random() % middle);
  return prompt;
}

struct Times {
  std::vector<double> first_token, pull, match;
  int64_t bytes = 0;
  int declined = 0;  ///< computing was thought to be faster
};

/// One prompt: computed, then asked for again where its pages lie.
void round(Place& place, const std::vector<int32_t>& prompt, int64_t prefix, Times& cold, Times& times,
           std::vector<int32_t>& expected) {
  const int64_t before = place.pages_written();
  const Place::Answer first = place.ask(prompt);
  if (first.usage.cached_tokens != 0) fail(place.name() + ": a new prompt was cached");
  if (!place.tier()) cold.first_token.push_back(first.first_token);
  if (place.tier()) {
    place.wait_for_pages(before + prefix / kPagePositions);
    place.forget();
  }
  const Place::Answer again = place.ask(prompt);
  const TierUsage& tiers = again.usage.tiers;
  const bool declined = place.tier() && tiers.miss == "slow";
  if (!declined && (again.usage.cached_tokens != prefix || (place.tier() && tiers.tokens() != prefix))) {
    fail(fmt::format("{}: {} of {} tokens were cached, {} of them in the tier ({})", place.name(), again.usage.cached_tokens,
                     prefix, tiers.tokens(), tiers.miss));
  }
  times.declined += declined ? 1 : 0;
  // Wherever the pages came from: the same rows, and so the same answer.
  if (expected.empty()) expected = again.tokens;
  if (!declined && again.tokens != expected) fail(place.name() + ": another answer");
  times.first_token.push_back(again.first_token);
  times.pull.push_back(tiers.pull_seconds);
  times.match.push_back(tiers.match_seconds);
  times.bytes = tiers.bytes;
}

void print(const std::string& name, int64_t prefix, const Times& times, const Times& cold, const Setting& setting) {
  const double median = quantile(times.first_token, 0.5);
  print_bench_line(stdout, "kv_ttft", median * 1e3, "ms", std::nullopt,
                   {{"store", name},
                    {"prefix_tokens", std::to_string(prefix)},
                    {"suffix_tokens", std::to_string(kSuffix)},
                    {"of_cold", fmt::format("{:.3f}", median / quantile(cold.first_token, 0.5))},
                    {"p90_ms", fmt::format("{:.2f}", quantile(times.first_token, 0.9) * 1e3)},
                    {"match_ms", times.match.empty() ? "-" : fmt::format("{:.3f}", quantile(times.match, 0.5) * 1e3)},
                    {"pull_ms", times.pull.empty() ? "-" : fmt::format("{:.3f}", quantile(times.pull, 0.5) * 1e3)},
                    {"bytes", std::to_string(times.bytes)},
                    {"declined", std::to_string(times.declined)},
                    {"model", std::filesystem::path(setting.model).filename().string()},
                    {"repeats", std::to_string(setting.repeats)}});
}

std::vector<std::unique_ptr<Place>> open_places(const Setting& setting) {
  std::vector<std::unique_ptr<Place>> places;
  const auto add = [&](const char* name, const std::function<void(KvTierOptions&, const std::string&)>& set) {
    KvTierOptions tiers;
    const std::string directory = setting.directory + "/" + name;
    std::filesystem::create_directories(directory);
    set(tiers, directory);
    places.push_back(std::make_unique<Place>(name, setting, std::move(tiers)));
  };
  add("device", [](KvTierOptions&, const std::string&) {});
  add("host", [](KvTierOptions& t, const std::string&) { t.host_bytes = int64_t{1} << 30; });
  add("local", [](KvTierOptions& t, const std::string& directory) { t.store = directory; });
  add("shared", [](KvTierOptions& t, const std::string& directory) { t.shared = directory; });
  if (!setting.redis.empty()) {
    add("redis", [&](KvTierOptions& t, const std::string& directory) {
      t.shared = directory;
      t.directory = setting.redis;
    });
  }
  return places;
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  CLI::App app("Time to first token against the length of a cached prefix, by the tier that has it");
  app.add_option("--model", setting.model);
  app.add_option("--directory", setting.directory, "where the stores' files go; its subfolder kv_engine_bench is emptied")
      ->required();
  app.add_option("--redis", setting.redis, "a Redis server for the shared store's directory");
  app.add_option("--prefixes", setting.prefixes, "lengths in tokens, whole pages")
      ->delimiter(',')
      ->check(CLI::Range(128, 1 << 20));
  app.add_option("--backend", setting.backend)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--threads", setting.threads, "of the backend (default: all)")->check(CLI::Range(1, 1024));
  app.add_option("--repeats", setting.repeats)->check(CLI::Range(1, 1000));
  app.add_option("--svg", setting.svg, "a plot");
  CLI11_PARSE(app, argc, argv);

  setting.directory += "/kv_engine_bench";
  std::filesystem::remove_all(setting.directory);
  const auto places = open_places(setting);
  std::vector<PlotLine> lines(places.size() + 1);
  lines[0].label = "cold";
  double prefill_rate = 0;
  for (const int64_t length : setting.prefixes) {
    const int64_t prefix = length / kPagePositions * kPagePositions;
    Times cold;
    std::vector<Times> times(places.size());
    for (int repeat = -1; repeat < setting.repeats; ++repeat) {  // the first warms up
      const auto prompt = make_prompt(prefix + kSuffix, places[0]->vocabulary(),
                                      static_cast<uint64_t>(prefix) * 1000 + static_cast<uint64_t>(repeat + 1));
      std::vector<int32_t> expected;
      Times unused_cold, unused;
      for (size_t p = 0; p < places.size(); ++p)
        round(*places[p], prompt, prefix, repeat < 0 ? unused_cold : cold, repeat < 0 ? unused : times[p], expected);
    }
    print("cold", prefix, cold, cold, setting);
    const auto x = static_cast<double>(prefix);
    lines[0].points.push_back({x, quantile(cold.first_token, 0.5) * 1e3});
    for (size_t p = 0; p < places.size(); ++p) {
      print(places[p]->name(), prefix, times[p], cold, setting);
      lines[p + 1].label = places[p]->name();
      lines[p + 1].color = static_cast<int>(p + 1);
      lines[p + 1].points.push_back({x, quantile(times[p].first_token, 0.5) * 1e3});
    }
    prefill_rate = static_cast<double>(prefix + kSuffix) / quantile(cold.first_token, 0.5);
  }
  print_bench_line(stdout, "kv_prefill", prefill_rate, "tokens/s", std::nullopt,
                   {{"tokens", std::to_string(setting.prefixes.back() + kSuffix)},
                    {"model", std::filesystem::path(setting.model).filename().string()}});
  if (!setting.svg.empty()) {
    const std::string y = "time to first token (ms)", x = "prefix (tokens)";
    const Plot all{.title = "Time to first token against the prefix",
                   .description = "Median time to first token of a prompt of the prefix and 32 more tokens, computed and cached.",
                   .x_label = x,
                   .y_label = y,
                   .lines = lines};
    lines.erase(lines.begin());
    const Plot cached{.title = "The same, without the prompts that are computed",
                      .description = "Median time to first token by where the prefix lies.",
                      .x_label = x,
                      .y_label = y,
                      .lines = lines};
    std::ofstream(setting.svg) << render_svg({all, cached}, "kv-ttft");
  }
  std::filesystem::remove_all(setting.directory);
  return 0;
}
