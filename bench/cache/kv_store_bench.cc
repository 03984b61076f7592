// What the stores below the device's pages cost: looking for a long prompt's pages, and pulling pages of the release's size.

#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "base/json_line.h"
#include "cache/kv_overlap.h"
#include "cache/kv_store_rig.h"
#include "cache/kv_write_back.h"
#include "cache/tiers/async_tiers.h"
#include "cache/tiers/tier_workers.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::bench;

/// Processor time of this thread, or of the process: on a busy machine one waits longer than one works.
double worked_seconds(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::vector<double> repeated(int repeats, const std::function<double()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    const double s = run();
    if (i > 0) seconds.push_back(s);  // the first one warms up
  }
  return seconds;
}
double median_of(int repeats, const std::function<double()>& run) { return quantile(repeated(repeats, run), 0.5); }

void bench_match(const std::string& name, const StoreBenchSetting& setting) {
  const KvPageShape shape{.group_bytes = {64}};  // a match sees no rows
  const int64_t pages = setting.tokens / kPagePositions;
  const auto store = open_store(name, shape, setting.directory + "/match-" + name, setting.redis, (pages + 16) * 128);
  const std::vector<PrefixKey> keys = make_keys(pages, 1);
  fill(*store, shape, keys, setting.write_batch);
  wait_for_directory(*store);
  const std::vector<PrefixKey> others = make_keys(pages, 2);
  std::vector<PrefixKey> half(keys.begin(), keys.begin() + pages / 2);
  half.insert(half.end(), others.begin() + pages / 2, others.end());
  const std::pair<const char*, const std::vector<PrefixKey>*> cases[] = {{"all", &keys}, {"half", &half}, {"none", &others}};
  for (const auto& [stored, asked_keys] : cases) {
    const std::vector<PrefixKey>* const asked = asked_keys;  // a lambda can't capture a binding in every compiler
    const int64_t expected = asked == &keys ? pages : asked == &half ? pages / 2 : 0;
    std::vector<double> worked;
    const std::vector<double> seconds = repeated(setting.match_repeats, [&] {
      const double work_begin = worked_seconds(CLOCK_THREAD_CPUTIME_ID);
      const double begin = steady_seconds();
      const KvStoreMatch match = store->match(*asked, true, wall_seconds(), kNoStop);
      const double end = steady_seconds();
      worked.push_back(worked_seconds(CLOCK_THREAD_CPUTIME_ID) - work_begin);
      if (match.pages != expected) fail(fmt::format("{}: {} pages matched, not {}", name, match.pages, expected));
      return end - begin;
    });
    print_bench_line(stdout, "kv_match", quantile(seconds, 0.5) * 1e3, "ms", std::nullopt,
                     {{"store", name},
                      {"tokens", std::to_string(setting.tokens)},
                      {"pages", std::to_string(pages)},
                      {"stored", stored},
                      {"p99_ms", fmt::format("{:.3f}", quantile(seconds, 0.99) * 1e3)},
                      {"own_cpu_ms", fmt::format("{:.3f}", quantile(worked, 0.5) * 1e3)},
                      {"repeats", std::to_string(setting.match_repeats)}});
  }
}

void bench_pull(const std::string& name, const StoreBenchSetting& setting, double memory, double disk) {
  const KvPageShape shape = release_page(setting);
  const std::string directory = setting.directory + "/pull-" + name;
  const int64_t bytes = setting.pull_pages * shape.page_bytes();
  const auto store = open_store(name, shape, directory, setting.redis, bytes + (int64_t{4} << 20));
  const std::vector<PrefixKey> keys = make_keys(setting.pull_pages, 3);
  fill(*store, shape, keys, setting.write_batch);
  wait_for_directory(*store);
  AsyncTiersOptions options;
  options.read_threads = setting.threads;
  options.match_seconds = options.pull_seconds = 60;
  const auto tiers = must(make_async_tiers(shape, {store}, options));
  std::vector<uint8_t> memory_of_pages(static_cast<size_t>(bytes));
  std::vector<uint8_t*> pages;
  for (int64_t i = 0; i < setting.pull_pages; ++i) pages.push_back(memory_of_pages.data() + i * shape.page_bytes());
  std::vector<double> first_group, worked;
  const auto pull = [&] {
    std::promise<KvTierMatch> promise;
    tiers->match(keys, true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
    const KvTierMatch found = promise.get_future().get();
    const double work_begin = worked_seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double begin = steady_seconds();
    const auto pulling = tiers->pull(found, keys, pages, {});
    if (!pulling->wait(0)) fail(name + ": a pull failed");
    first_group.push_back(steady_seconds() - begin);
    for (size_t group = 1; group < shape.group_bytes.size(); ++group) {
      if (!pulling->wait(static_cast<int64_t>(group))) fail(name + ": a pull failed");
    }
    const double seconds = steady_seconds() - begin;
    worked.push_back(worked_seconds(CLOCK_PROCESS_CPUTIME_ID) - work_begin);
    for (size_t i = 0; i < pages.size(); ++i) {
      if (std::memcmp(pages[i], &i, sizeof(i)) != 0) fail(name + ": wrong bytes");
    }
    return seconds;
  };
  const auto print = [&](const char* cached, double seconds, double ceiling, const char* ceiling_is) {
    print_bench_line(stdout, "kv_pull", static_cast<double>(bytes) / seconds * 1e-9, "GB/s", ceiling * 1e-9,
                     {{"store", name},
                      {"pages", std::to_string(setting.pull_pages)},
                      {"page_bytes", std::to_string(shape.page_bytes())},
                      {"groups", std::to_string(shape.group_bytes.size())},
                      {"threads", std::to_string(setting.threads)},
                      {"cached", cached},
                      {"ceiling_is", ceiling_is},
                      {"written_together", std::to_string(setting.write_batch)},
                      {"first_group_ms", fmt::format("{:.2f}", quantile(first_group, 0.5) * 1e3)},
                      {"cpu_ms", fmt::format("{:.2f}", quantile(worked, 0.5) * 1e3)},
                      {"ms", fmt::format("{:.2f}", seconds * 1e3)}});
    first_group.clear();
    worked.clear();
  };
  print("yes", median_of(setting.repeats, pull), memory, "copy from memory to memory by as many threads");
  if (name == "host") return;
  const double cold = median_of(std::min(setting.repeats, 5), [&] {
    drop_cached(directory);
    return pull();
  });
  print("no", cold, disk, "one thread's plain read of a file");
}

}  // namespace

int main(int argc, char** argv) {
  StoreBenchSetting setting;
  std::string only, svg;
  std::vector<std::string> only_stores;
  CLI::App app("Stores below the device's pages: lookups, pulls, write-back and churn");
  app.add_option("--directory", setting.directory, "where the stores' files go; it is emptied")->required();
  app.add_option("--redis", setting.redis,
                 "a Redis server for the directory, such as unix:///run/redis.sock; without it no rows of it");
  app.add_option("--tokens", setting.tokens, "prompt that is looked for")->check(CLI::Range(int64_t{128}, int64_t{1} << 24));
  app.add_option("--pages", setting.pull_pages, "pages that are pulled")->check(CLI::Range(1, 1 << 16));
  app.add_option("--churn", setting.churn_pages, "pages that come and go")->check(CLI::Range(100, 1 << 20));
  app.add_option("--threads", setting.threads, "that read")->check(CLI::Range(1, 64));
  app.add_option("--repeats", setting.repeats)->check(CLI::Range(1, 1000));
  app.add_option("--match-repeats", setting.match_repeats, "look-ups of each kind")->check(CLI::Range(1, 100'000));
  app.add_option("--write-batch", setting.write_batch, "pages that are written together, before pulls")
      ->check(CLI::Range(1, 1024));
  app.add_option("--stores", only_stores, "of host, local, shared and redis")->delimiter(',');
  app.add_option("--layer-ms", setting.layer_ms,
                 "that a layer of a step takes, for the overlap; by default a Hopper GPU's with 2,048 "
                 "rows behind 32 Ki (bench/results/cuda_slice_h200_before.jsonl, mean of 16 layers)")
      ->check(CLI::Range(0.01, 1e4));
  app.add_option("--svg", svg, "a plot of the overlap");
  app.add_option("--config", setting.config, "config.json that says how large a page is (default: the released one)");
  app.add_option("--only", only)->check(CLI::IsMember({"match", "pull", "write", "churn", "overlap"}));
  CLI11_PARSE(app, argc, argv);

  setting.directory += "/kv_store_bench";
  std::filesystem::remove_all(setting.directory);
  std::filesystem::create_directories(setting.directory);
  std::vector<std::string> stores = {"host", "local", "shared"};
  if (!setting.redis.empty()) stores.emplace_back("redis");
  if (!only_stores.empty())
    std::erase_if(
        stores, [&](const std::string& s) { return std::find(only_stores.begin(), only_stores.end(), s) == only_stores.end(); });
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("match")) {
    for (const std::string& name : stores) bench_match(name, setting);
  }
  if (wanted("pull")) {
    const double memory = copy_bandwidth(setting.threads);
    const double disk = disk_read_bandwidth(setting.directory, int64_t{256} << 20);
    for (const std::string& name : stores) bench_pull(name, setting, memory, disk);
  }
  if (wanted("write")) {
    for (const std::string& name : stores) bench_write_back(name, setting);
  }
  if (wanted("overlap")) {
    Plot plot{.title = "A pull beside the step that needs it, pages of true size",
              .description = "When each layer begins and when the rows of each KV source are there, by store.",
              .x_label = "ms",
              .y_label = "layer",
              .lines = {}};
    for (const std::string& name : stores) bench_overlap(name, setting, plot);
    if (!svg.empty()) std::ofstream(svg) << render_svg({plot}, "kv-overlap-true-size");
  }
  if (wanted("churn")) {
    for (const std::string& name : stores) bench_churn(name, setting);
  }
  std::filesystem::remove_all(setting.directory);
  return 0;
}
