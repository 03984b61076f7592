#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cache/kv_store.h"
#include "model/sequence_state.h"

namespace deepinfer::bench {

[[noreturn]] void fail(const std::string& what);
template <typename T>
T must(Result<T> r) {
  if (!r) fail(r.error().message());
  return std::move(*r);
}
void must(const Status& status);

struct StoreBenchSetting {
  std::string directory, redis;
  std::string config;  ///< empty: the released one
  int64_t tokens = 1'000'000, pull_pages = 512, churn_pages = 10'000, threads = 4;
  int64_t write_batch = 32;  ///< pages that are written together, as write-back does while more wait
  double layer_ms = 12.8;
  int repeats = 15, match_repeats = 300;
};

inline const std::stop_token kNoStop;

/// Of the released model, by its config.
KvPageShape release_page(const StoreBenchSetting& setting);
std::vector<PrefixKey> make_keys(int64_t count, uint64_t seed);
/// Rows of nobody, of which each page begins with its number.
std::vector<uint8_t> make_page(const KvPageShape& shape);
/// Writes pages whose first bytes are their number, so many with each call.
void fill(KvStore& store, const KvPageShape& shape, std::span<const PrefixKey> keys, int64_t batch);

/// The store by the name that the figures carry: host, local, shared, or redis: shared with a directory. `bytes`: what memory may
/// hold, and, if `bounded`, the others too.
std::shared_ptr<KvStore> open_store(const std::string& name, const KvPageShape& shape, const std::string& directory,
                                    const std::string& redis, int64_t bytes, bool bounded = false);
/// Until Redis knows what the store holds.
void wait_for_directory(KvStore& store);

/// Takes every file of the folder out of the system's page cache.
void drop_cached(const std::string& directory);
/// Bytes a second that one thread reads of a large file that is in no cache.
double disk_read_bandwidth(const std::string& directory, int64_t bytes);
/// Bytes a second that one thread writes into a large file, without waiting for the disk: as the stores do.
double file_write_bandwidth(const std::string& directory, int64_t bytes);
/// Bytes a second that so many threads copy between buffers larger than any cache.
double copy_bandwidth(int64_t threads);

double quantile(std::vector<double> values, double q);

}  // namespace deepinfer::bench
