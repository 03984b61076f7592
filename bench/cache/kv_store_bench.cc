// What the stores below the device's pages cost: looking for a long prompt's pages, and pulling pages of the release's size.

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/json_line.h"
#include "cache/tiers/async_tiers.h"
#include "cache/tiers/host_pool.h"
#include "cache/tiers/local_store.h"
#include "cache/tiers/shared_store.h"
#include "cache/tiers/tier_workers.h"
#include "common/ceilings.h"

namespace {

using namespace deepinfer;

constexpr int64_t kPagePositions = 128;
const std::stop_token kNoStop;

void fail(const std::string& what) {
  std::fprintf(stderr, "kv_store_bench: %s\n", what.c_str());
  std::exit(1);
}
template <typename T>
T must(Result<T> r) {
  if (!r) fail(r.error().message());
  return std::move(*r);
}
void must(const Status& status) {
  if (!status.ok()) fail(status.message());
}

struct Setting {
  std::string directory, redis;
  int64_t tokens = 1 << 20, pull_pages = 512, threads = 4;
  int repeats = 15;
};

/// 890 bytes a token (spec §7.1): three sources of ratio 2, one of ratio 1.
KvPageShape release_page() {
  return {.group_bytes = {178 * kPagePositions, 178 * kPagePositions, 178 * kPagePositions, 356 * kPagePositions}};
}

std::vector<PrefixKey> make_keys(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<PrefixKey> keys(static_cast<size_t>(count));
  for (PrefixKey& key : keys) key = {random(), random()};
  return keys;
}

/// Writes pages whose first bytes are their number.
void fill(KvStore& store, const KvPageShape& shape, std::span<const PrefixKey> keys) {
  std::vector<uint8_t> page(static_cast<size_t>(shape.page_bytes()));
  std::mt19937_64 random(1);
  for (uint8_t& byte : page) byte = static_cast<uint8_t>(random());
  for (size_t i = 0; i < keys.size(); ++i) {
    std::memcpy(page.data(), &i, sizeof(i));
    const KvStoreWrite write{.key = keys[i], .parent = i == 0 ? PrefixKey{} : keys[i - 1], .page = page};
    must(store.write({&write, 1}, wall_seconds(), kNoStop));
  }
}

/// Processor time of this thread: on a busy machine a lookup waits longer than it works.
double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double median(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}
double median_of(int repeats, const std::function<double()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    const double s = run();
    if (i > 0) seconds.push_back(s);  // the first one warms up
  }
  return median(seconds);
}

/// With a small write buffer, so that what is read comes from files.
LocalStoreOptions local_options(const std::string& directory) {
  LocalStoreOptions options{.directory = directory};
  options.memtable_bytes = int64_t{4} << 20;
  return options;
}

/// The store by the name that the figures carry.
std::shared_ptr<KvStore> open_store(const std::string& name, const KvPageShape& shape, const std::string& directory,
                                    const std::string& redis, int64_t bytes) {
  const KvFingerprint fingerprint = kv_fingerprint("kv_store_bench", shape);
  if (name == "host") return must(HostPool::Create(shape, {.capacity_bytes = bytes, .retention = {}}));
  std::filesystem::create_directories(directory);
  if (name == "local") return must(LocalStore::Open(shape, fingerprint, local_options(directory)));
  SharedStoreOptions options{.directory = directory};
  options.gc_interval_seconds = 0;
  if (name == "redis") {
    options.directory_url = redis;
    options.directory_lookup_seconds = 1;
  }
  auto store = must(SharedStore::Open(shape, fingerprint, options));
  if (name == "redis" && !store->page_directory()->flush(10)) fail("no Redis: " + store->page_directory()->stats().last_error);
  return store;
}

void wait_for_directory(KvStore& store) {
  const auto* shared = dynamic_cast<SharedStore*>(&store);
  if (shared != nullptr && shared->page_directory() != nullptr) (void)shared->page_directory()->flush(60);
}

void bench_match(const std::string& name, const Setting& setting) {
  const KvPageShape shape{.group_bytes = {64}};  // a match sees no rows
  const int64_t pages = (setting.tokens + kPagePositions - 1) / kPagePositions;
  const auto store = open_store(name, shape, setting.directory + "/match-" + name, setting.redis, (pages + 16) * 128);
  const std::vector<PrefixKey> keys = make_keys(pages, 1);
  fill(*store, shape, keys);
  wait_for_directory(*store);
  const std::vector<PrefixKey> others = make_keys(pages, 2);
  std::vector<PrefixKey> half(keys.begin(), keys.begin() + pages / 2);
  half.insert(half.end(), others.begin() + pages / 2, others.end());
  const std::pair<const char*, const std::vector<PrefixKey>*> cases[] = {{"all", &keys}, {"half", &half}, {"none", &others}};
  for (const auto& [stored, asked_keys] : cases) {
    const std::vector<PrefixKey>* const asked = asked_keys;  // a lambda can't capture a binding in every compiler
    const int64_t expected = asked == &keys ? pages : asked == &half ? pages / 2 : 0;
    std::vector<double> worked;
    const double seconds = median_of(setting.repeats, [&] {
      const double work_begin = thread_seconds();
      const double begin = steady_seconds();
      const KvStoreMatch match = store->match(*asked, true, wall_seconds(), kNoStop);
      const double end = steady_seconds();
      worked.push_back(thread_seconds() - work_begin);
      if (match.pages != expected) fail(fmt::format("{}: {} pages matched, not {}", name, match.pages, expected));
      return end - begin;
    });
    print_bench_line(stdout, "kv_match", seconds * 1e3, "ms", std::nullopt,
                     {{"store", name},
                      {"tokens", std::to_string(setting.tokens)},
                      {"pages", std::to_string(pages)},
                      {"stored", stored},
                      {"own_cpu_ms", fmt::format("{:.3f}", median(worked) * 1e3)},
                      {"repeats", std::to_string(setting.repeats)}});
  }
}

/// Takes every file of the folder out of the system's page cache.
void drop_cached(const std::string& directory) {
  ::sync();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    (void)::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

/// Bytes a second that one thread reads of a large file that is in no cache.
double disk_bandwidth(const std::string& directory, int64_t bytes) {
  const std::string path = directory + "/plain";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return 0;
  std::vector<uint8_t> buffer(size_t{4} << 20, 7);
  for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(buffer.size())) {
    if (::write(file, buffer.data(), buffer.size()) != static_cast<ssize_t>(buffer.size())) fail("no room in " + directory);
  }
  ::fsync(file);
  (void)::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  const double begin = steady_seconds();
  int64_t got = 0;
  for (ssize_t more = 0; (more = ::pread(file, buffer.data(), buffer.size(), got)) > 0;) got += more;
  const double seconds = steady_seconds() - begin;
  ::close(file);
  std::filesystem::remove(path);
  return static_cast<double>(got) / seconds;
}

void bench_pull(const std::string& name, const Setting& setting, double memory, double disk) {
  const KvPageShape shape = release_page();
  const std::string directory = setting.directory + "/pull-" + name;
  const int64_t bytes = setting.pull_pages * shape.page_bytes();
  const auto store = open_store(name, shape, directory, setting.redis, bytes + (int64_t{4} << 20));
  const std::vector<PrefixKey> keys = make_keys(setting.pull_pages, 3);
  fill(*store, shape, keys);
  wait_for_directory(*store);
  AsyncTiersOptions options;
  options.read_threads = setting.threads;
  options.match_seconds = options.pull_seconds = 60;
  const auto tiers = must(make_async_tiers(shape, {store}, options));
  std::vector<uint8_t> memory_of_pages(static_cast<size_t>(bytes));
  std::vector<uint8_t*> pages;
  for (int64_t i = 0; i < setting.pull_pages; ++i) pages.push_back(memory_of_pages.data() + i * shape.page_bytes());
  double first_group = 0;
  const auto pull = [&] {
    std::promise<KvTierMatch> promise;
    tiers->match(keys, true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
    const KvTierMatch found = promise.get_future().get();
    const double begin = steady_seconds();
    const auto pulling = tiers->pull(found, keys, pages);
    if (!pulling->wait(0)) fail(name + ": a pull failed");
    first_group = steady_seconds() - begin;
    for (size_t group = 1; group < shape.group_bytes.size(); ++group) {
      if (!pulling->wait(static_cast<int64_t>(group))) fail(name + ": a pull failed");
    }
    const double seconds = steady_seconds() - begin;
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
                      {"first_group_ms", fmt::format("{:.2f}", first_group * 1e3)},
                      {"ms", fmt::format("{:.2f}", seconds * 1e3)}});
  };
  print("yes", median_of(setting.repeats, pull), memory, "memory read");
  if (name == "host") return;
  const double cold = median_of(std::min(setting.repeats, 5), [&] {
    drop_cached(directory);
    return pull();
  });
  print("no", cold, disk, "one thread's plain read of a file");
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  CLI::App app("Stores below the device's pages: lookups and pulls");
  app.add_option("--directory", setting.directory, "where the stores' files go; it is emptied")->required();
  app.add_option("--redis", setting.redis,
                 "a Redis server for the directory, such as unix:///run/redis.sock; without it no rows of it");
  app.add_option("--tokens", setting.tokens, "prompt that is looked for")->check(CLI::Range(int64_t{128}, int64_t{1} << 24));
  app.add_option("--pages", setting.pull_pages, "pages that are pulled")->check(CLI::Range(1, 1 << 16));
  app.add_option("--threads", setting.threads, "that read")->check(CLI::Range(1, 64));
  app.add_option("--repeats", setting.repeats)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);

  setting.directory += "/kv_store_bench";
  std::filesystem::remove_all(setting.directory);
  std::filesystem::create_directories(setting.directory);
  std::vector<std::string> stores = {"host", "local", "shared"};
  if (!setting.redis.empty()) stores.emplace_back("redis");
  for (const std::string& name : stores) bench_match(name, setting);
  ThreadPool pool(static_cast<int>(std::min<int64_t>(setting.threads, std::thread::hardware_concurrency())));
  const double memory = bench::Ceilings(&pool).read_bandwidth();
  const double disk = disk_bandwidth(setting.directory, int64_t{256} << 20);
  for (const std::string& name : stores) bench_pull(name, setting, memory, disk);
  std::filesystem::remove_all(setting.directory);
  return 0;
}
