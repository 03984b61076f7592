#include "cache/kv_store_rig.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "cache/tiers/host_pool.h"
#include "cache/tiers/local_store.h"
#include "cache/tiers/shared_store.h"
#include "cache/tiers/tier_workers.h"
#include "checkpoint/model_config.h"
#include "engine/tier_pull.h"

namespace deepinfer::bench {

void fail(const std::string& what) {
  std::fprintf(stderr, "kv_store_bench: %s\n", what.c_str());
  std::exit(1);
}

void must(const Status& status) {
  if (!status.ok()) fail(status.message());
}

KvPageShape release_page(const StoreBenchSetting& setting) {
  const std::string path = setting.config.empty() ? DEEPINFER_SOURCE_DIR "/tests/data/released_config.json" : setting.config;
  return page_shape(PageLayout(must(ModelConfig::Load(path))));
}

std::vector<PrefixKey> make_keys(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<PrefixKey> keys(static_cast<size_t>(count));
  for (PrefixKey& key : keys) key = {random(), random()};
  return keys;
}

std::vector<uint8_t> make_page(const KvPageShape& shape) {
  std::vector<uint8_t> page(static_cast<size_t>(shape.page_bytes()));
  std::mt19937_64 random(1);
  for (uint8_t& byte : page) byte = static_cast<uint8_t>(random());
  return page;
}

void fill(KvStore& store, const KvPageShape& shape, std::span<const PrefixKey> keys, int64_t batch) {
  const std::vector<uint8_t> page = make_page(shape);
  std::vector<std::vector<uint8_t>> pages(static_cast<size_t>(batch), page);
  for (size_t begin = 0; begin < keys.size(); begin += pages.size()) {
    std::vector<KvStoreWrite> writes;
    for (size_t i = begin; i < std::min(begin + pages.size(), keys.size()); ++i) {
      std::vector<uint8_t>& own = pages[i - begin];
      std::memcpy(own.data(), &i, sizeof(i));
      writes.push_back({.key = keys[i], .parent = i == 0 ? PrefixKey{} : keys[i - 1], .page = own});
    }
    must(store.write(writes, wall_seconds(), kNoStop));
  }
}

namespace {
/// With a small write buffer, so that what is read comes from files.
LocalStoreOptions local_options(const std::string& directory) {
  LocalStoreOptions options{.directory = directory};
  options.memtable_bytes = int64_t{4} << 20;
  return options;
}

}  // namespace

std::shared_ptr<KvStore> open_store(const std::string& name, const KvPageShape& shape, const std::string& directory,
                                    const std::string& redis, int64_t bytes, bool bounded) {
  const KvFingerprint fingerprint = kv_fingerprint("kv_store_bench", shape);
  if (name == "host") return must(HostPool::Create(shape, {.capacity_bytes = bytes, .retention = {}}));
  std::filesystem::create_directories(directory);
  if (name == "local") {
    LocalStoreOptions local = local_options(directory);
    if (bounded) local.capacity_bytes = bytes;
    return must(LocalStore::Open(shape, fingerprint, local));
  }
  SharedStoreOptions options{.directory = directory};
  if (bounded) options.gc.capacity_bytes = bytes;
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

double disk_read_bandwidth(const std::string& directory, int64_t bytes) {
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

double file_write_bandwidth(const std::string& directory, int64_t bytes) {
  const std::string path = directory + "/plain";
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) fail("cannot write into " + directory);
  const std::vector<uint8_t> buffer(size_t{4} << 20, 7);
  const double begin = steady_seconds();
  int64_t done = 0;
  for (; done < bytes; done += static_cast<int64_t>(buffer.size())) {
    if (::write(file, buffer.data(), buffer.size()) != static_cast<ssize_t>(buffer.size())) fail("no room in " + directory);
  }
  const double seconds = steady_seconds() - begin;
  ::close(file);
  std::filesystem::remove(path);
  return static_cast<double>(done) / seconds;
}

double copy_bandwidth(int64_t threads) {
  constexpr size_t kBytes = size_t{64} << 20;  // of each thread: larger than what it has of any cache
  constexpr int kRounds = 9;
  const auto n = static_cast<size_t>(threads);
  std::vector<std::vector<uint8_t>> from(n, std::vector<uint8_t>(kBytes, 1)), to(n, std::vector<uint8_t>(kBytes, 2));
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = steady_seconds();
    {
      std::vector<std::jthread> copying;
      for (size_t t = 0; t < n; ++t) copying.emplace_back([&, t] { std::memcpy(to[t].data(), from[t].data(), kBytes); });
    }
    seconds.push_back(steady_seconds() - begin);
    for (size_t t = 0; t < n; ++t) from[t][static_cast<size_t>(round)] = to[t][kBytes / 2];  // or copies would be left out
  }
  return static_cast<double>(n * kBytes) / quantile(seconds, 0.5);
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

}  // namespace deepinfer::bench
