#include "cache/kv_overlap.h"

#include <cstring>
#include <future>
#include <thread>

#include "base/json_line.h"
#include "cache/tiers/async_tiers.h"
#include "cache/tiers/tier_workers.h"
#include "checkpoint/model_config.h"

namespace deepinfer::bench {
namespace {

/// Moments of one pull and one step, in seconds from the start.
struct Timeline {
  std::vector<double> layer_begin, group_there;
  double end = 0, waited = 0;
};

class Rig {
 public:
  Rig(const std::string& name, const StoreBenchSetting& setting, int64_t count)
      : config_(released_config(setting)),
        shape_(release_page(setting)),
        directory_(setting.directory + "/overlap-" + name),
        layer_seconds_(setting.layer_ms * 1e-3),
        keys_(make_keys(count, 11)) {
    const auto store = open_store(name, shape_, directory_, setting.redis, count * shape_.page_bytes() + (int64_t{4} << 20));
    fill(*store, shape_, keys_, setting.write_batch);
    wait_for_directory(*store);
    AsyncTiersOptions options;
    options.read_threads = setting.threads;
    options.match_seconds = options.pull_seconds = 60;
    tiers_ = must(make_async_tiers(shape_, {store}, options));
    memory_.resize(static_cast<size_t>(count * shape_.page_bytes()));
    for (int64_t i = 0; i < count; ++i) pages_.push_back(memory_.data() + i * shape_.page_bytes());
    std::promise<KvTierMatch> promise;
    tiers_->match(keys_, true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
    match_ = promise.get_future().get();
    if (match_.pages != count) fail(name + ": not all pages are there");
  }

  const std::string& directory() const { return directory_; }
  size_t groups() const { return shape_.group_bytes.size(); }
  int64_t layers() const { return config_.num_hidden_layers; }
  int64_t source_layer(size_t group) const { return config_.kv_source_layer_ids[group]; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

  double pull_alone() {
    const double begin = steady_seconds();
    const auto pull = tiers_->pull(match_, keys_, pages_, {});
    for (size_t group = 0; group < groups(); ++group) wait(*pull, group);
    const double seconds = steady_seconds() - begin;
    check();
    return seconds;
  }
  Timeline step_alone() { return step(nullptr, steady_seconds()); }
  Timeline both() {
    const double begin = steady_seconds();
    const auto pull = tiers_->pull(match_, keys_, pages_, {});
    std::vector<double> there;
    std::jthread watching([&] {
      for (size_t group = 0; group < groups(); ++group) {
        wait(*pull, group);
        there.push_back(steady_seconds() - begin);
      }
    });
    Timeline timeline = step(pull.get(), begin);
    watching.join();
    timeline.group_there = std::move(there);
    check();
    return timeline;
  }

 private:
  static ModelConfig released_config(const StoreBenchSetting& setting) {
    return must(
        ModelConfig::Load(setting.config.empty() ? DEEPINFER_SOURCE_DIR "/tests/data/released_config.json" : setting.config));
  }
  static void wait(KvPull& pull, size_t group) {
    if (!pull.wait(static_cast<int64_t>(group))) fail("a pull failed");
  }
  void check() const {
    for (size_t i = 0; i < pages_.size(); ++i) {
      if (std::memcmp(pages_[i], &i, sizeof(i)) != 0) fail("wrong bytes");
    }
  }
  Timeline step(KvPull* pull, double begin) const {
    Timeline timeline;
    size_t group = 0;
    for (int64_t layer = 0; layer < layers(); ++layer) {
      if (pull != nullptr && group < groups() && layer == source_layer(group)) {
        const double wait_begin = steady_seconds();
        wait(*pull, group++);
        timeline.waited += steady_seconds() - wait_begin;
      }
      timeline.layer_begin.push_back(steady_seconds() - begin);
      std::this_thread::sleep_for(std::chrono::duration<double>(layer_seconds_));
    }
    timeline.end = steady_seconds() - begin;
    return timeline;
  }

  const ModelConfig config_;
  const KvPageShape shape_;
  const std::string directory_;
  const double layer_seconds_;
  const std::vector<PrefixKey> keys_;
  std::unique_ptr<KvTiers> tiers_;
  std::vector<uint8_t> memory_;
  std::vector<uint8_t*> pages_;
  KvTierMatch match_;
};

void draw(const std::string& name, const Rig& rig, const Timeline& timeline, Plot& plot) {
  const int color = static_cast<int>(plot.lines.size()) / 2;
  PlotLine layers{.label = name + ": layer begins", .points = {}, .color = color, .markers = false};
  for (size_t layer = 0; layer < timeline.layer_begin.size(); ++layer)
    layers.points.push_back({timeline.layer_begin[layer] * 1e3, static_cast<double>(layer)});
  PlotLine groups{.label = name + ": its KV rows are there", .points = {}, .color = color, .dashed = true};
  for (size_t group = 0; group < timeline.group_there.size(); ++group)
    groups.points.push_back({timeline.group_there[group] * 1e3, static_cast<double>(rig.source_layer(group))});
  plot.lines.push_back(std::move(layers));
  plot.lines.push_back(std::move(groups));
}

}  // namespace

void bench_overlap(const std::string& name, const StoreBenchSetting& setting, Plot& plot) {
  const std::vector<int64_t> counts = {128, 512, 2048};
  for (const int64_t count : counts) {
    Rig rig(name, setting, count);
    std::vector<double> pull, step, both, waited;
    Timeline last;
    for (int i = 0; i < std::min(setting.repeats, 5); ++i) {
      if (name != "host") drop_cached(rig.directory());
      pull.push_back(rig.pull_alone());
      step.push_back(rig.step_alone().end);
      if (name != "host") drop_cached(rig.directory());
      last = rig.both();
      both.push_back(last.end);
      waited.push_back(last.waited);
    }
    // What layers waited for: the difference of two steps would show how late a busy machine wakes a sleeper.
    const double alone = quantile(pull, 0.5), exposed = quantile(waited, 0.5);
    print_bench_line(stdout, "kv_overlap", 1 - exposed / alone, "of the pull", std::nullopt,
                     {{"store", name},
                      {"prefix_tokens", std::to_string(count * kPagePositions)},
                      {"bytes", std::to_string(rig.bytes())},
                      {"cached", name == "host" ? "yes" : "no"},
                      {"layers", std::to_string(rig.layers())},
                      {"layer_ms", fmt::format("{:g}", setting.layer_ms)},
                      {"pull_ms", fmt::format("{:.2f}", alone * 1e3)},
                      {"step_ms", fmt::format("{:.2f}", quantile(step, 0.5) * 1e3)},
                      {"both_ms", fmt::format("{:.2f}", quantile(both, 0.5) * 1e3)},
                      {"waited_ms", fmt::format("{:.2f}", quantile(waited, 0.5) * 1e3)},
                      {"first_group_ms", fmt::format("{:.2f}", last.group_there.front() * 1e3)},
                      {"threads", std::to_string(setting.threads)},
                      {"step_is", "sleep, a measured layer's time for each layer"}});
    std::fflush(stdout);
    if (count == counts.back()) draw(name, rig, last, plot);
  }
}

}  // namespace deepinfer::bench
