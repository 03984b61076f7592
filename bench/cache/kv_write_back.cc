#include "cache/kv_write_back.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/json_line.h"
#include "cache/tiers/async_tiers.h"
#include "cache/tiers/shared_store.h"
#include "cache/tiers/store_admin.h"
#include "cache/tiers/tier_workers.h"

namespace deepinfer::bench {

void bench_write_back(const std::string& name, const StoreBenchSetting& setting) {
  const KvPageShape shape = release_page(setting);
  const std::string directory = setting.directory + "/write-" + name;
  const int64_t bytes = setting.pull_pages * shape.page_bytes();
  const auto store = open_store(name, shape, directory, setting.redis, 2 * bytes + (int64_t{4} << 20));
  AsyncTiersOptions options;
  options.write_queue_bytes = 2 * bytes;
  options.write_bytes_per_second = 1e12;  // the store's rate, not ours
  const auto tiers = must(make_async_tiers(shape, {store}, options));
  const double copy = copy_bandwidth(1);
  const double disk = name == "host" ? 0 : file_write_bandwidth(setting.directory, int64_t{256} << 20);
  std::vector<uint8_t> page = make_page(shape);
  const std::vector<PrefixKey> keys = make_keys(setting.pull_pages, 5);
  const double begin = steady_seconds();
  for (size_t i = 0; i < keys.size(); ++i) {
    std::memcpy(page.data(), &i, sizeof(i));
    tiers->write_back({.key = keys[i], .parent = i == 0 ? PrefixKey{} : keys[i - 1], .page = page});
  }
  const double given = steady_seconds();
  tiers->flush();
  const double seconds = steady_seconds() - begin;
  const KvTierStats stats = tiers->stats().tiers.front();
  if (stats.pages_written != setting.pull_pages) fail(fmt::format("{}: {} pages were written", name, stats.pages_written));
  const double ceiling = name == "host" ? copy : disk;
  print_bench_line(
      stdout, "kv_write_back", static_cast<double>(bytes) / seconds * 1e-9, "GB/s", ceiling * 1e-9,
      {{"store", name},
       {"pages", std::to_string(setting.pull_pages)},
       {"page_bytes", std::to_string(shape.page_bytes())},
       {"us_per_page_for_the_caller", fmt::format("{:.1f}", (given - begin) / static_cast<double>(keys.size()) * 1e6)},
       {"ceiling_is",
        name == "host" ? "copy from memory to memory, one thread" : "one thread's plain write of a file, without fsync"}});
}

namespace {

/// Reads all of a page; whether it is there. What is there and wrong ends the program.
bool read_page(KvStore& store, const KvPageShape& shape, const PrefixKey& key, size_t number, std::vector<uint8_t>& page) {
  for (size_t group = 0; group < shape.group_bytes.size(); ++group) {
    const auto index = static_cast<int64_t>(group);
    KvStoreRead read{.key = key,
                     .group = index,
                     .into = std::span(page).subspan(static_cast<size_t>(shape.group_offset(index)),
                                                     static_cast<size_t>(shape.group_bytes[group]))};
    store.read({&read, 1}, wall_seconds(), kNoStop);
    if (read.miss == KvStoreMiss::kCorrupt) fail("a page is damaged");
    if (read.miss != KvStoreMiss::kNone) return false;
  }
  if (std::memcmp(page.data(), &number, sizeof(number)) != 0) fail("another page's bytes");
  return true;
}

/// Pages that verify finds right; any other ends the program.
int64_t verified(const std::string& name, const std::string& directory) {
  if (name == "host") return 0;
  const auto admin = must(open_store_admin({.directory = directory, .read_only = true}));
  const StoreVerification found = must(admin->verify(false, kNoStop));
  const int64_t right = found.by_reason[static_cast<size_t>(KvStoreMiss::kNone)].pages;
  if (right != found.checked.pages) fail(fmt::format("{}: {} of {} pages are right", name, right, found.checked.pages));
  return right;
}

}  // namespace

void bench_churn(const std::string& name, const StoreBenchSetting& setting) {
  const KvPageShape shape = release_page(setting);
  const std::string directory = setting.directory + "/churn-" + name;
  // Room for a tenth of the pages.
  const int64_t room = setting.churn_pages / 10;
  auto store = open_store(name, shape, directory, setting.redis, room * (shape.page_bytes() + 1024), /*bounded=*/true);
  auto* shared = dynamic_cast<SharedStore*>(store.get());
  const std::vector<PrefixKey> keys = make_keys(setting.churn_pages, 7);
  std::vector<uint8_t> page = make_page(shape), into(page.size());
  std::mt19937_64 random(9);
  int64_t reads = 0, hits = 0;
  const double begin = steady_seconds();
  for (size_t i = 0; i < keys.size(); ++i) {
    std::memcpy(page.data(), &i, sizeof(i));
    const KvStoreWrite write{.key = keys[i], .parent = i == 0 ? PrefixKey{} : keys[i - 1], .page = page};
    must(store->write({&write, 1}, wall_seconds(), kNoStop));
    // Memory and the database make room by themselves; in a shared directory somebody collects now and then.
    if (shared != nullptr && (i + 1) % static_cast<size_t>(room) == 0)
      (void)must(shared->collect_garbage(wall_seconds(), kNoStop));
    if (i % 3 != 0) continue;
    // One that has just come, or any there ever was.
    const size_t back = random() % (random() % 2 == 0 ? std::min<size_t>(i + 1, static_cast<size_t>(room) / 2) : i + 1);
    ++reads;
    hits += read_page(*store, shape, keys[i - back], i - back, into);
  }
  const double seconds = steady_seconds() - begin;
  store.reset();
  print_bench_line(stdout, "kv_churn", static_cast<double>(setting.churn_pages) / seconds, "pages/s", std::nullopt,
                   {{"store", name},
                    {"pages", std::to_string(setting.churn_pages)},
                    {"page_bytes", std::to_string(shape.page_bytes())},
                    {"room_for_pages", std::to_string(room)},
                    {"reads", std::to_string(reads)},
                    {"hits", std::to_string(hits)},
                    {"wrong", "0"},
                    {"verified", std::to_string(verified(name, directory))}});
}

}  // namespace deepinfer::bench
