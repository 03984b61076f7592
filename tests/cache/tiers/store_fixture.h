#pragma once

// Pages whose bytes follow from their number, and what the tests of stores do with them.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "cache/kv_store.h"

namespace deepinfer::store_testing {

inline const KvPageShape kShape{.group_bytes = {1600, 2400, 800}};

inline PrefixKey key(uint64_t n) { return {n * 0x9E3779B97F4A7C15u, ~n}; }

inline std::vector<uint8_t> page_of(uint64_t n, bool exact = true) {
  std::vector<uint8_t> page(static_cast<size_t>(kShape.page_bytes()));
  std::mt19937_64 random(n * 2 + static_cast<uint64_t>(exact));
  for (uint8_t& byte : page) byte = static_cast<uint8_t>(random());
  return page;
}

inline Status put(KvStore& store, uint64_t n, double now = 1000, bool exact = true, CacheClass cache_class = CacheClass::kChat) {
  const std::vector<uint8_t> page = page_of(n, exact);
  const KvStoreWrite write{.key = key(n), .parent = key(n - 1), .cache_class = cache_class, .exact = exact, .page = page};
  return store.write({&write, 1}, now, {});
}

/// kNone only if every group came and is right; bytes that are wrong fail the test.
inline KvStoreMiss get(KvStore& store, uint64_t n, double now = 1000, bool exact = true) {
  const std::vector<uint8_t> page = page_of(n, exact);
  KvStoreMiss miss = KvStoreMiss::kNone;
  for (size_t group = 0; group < kShape.group_bytes.size(); ++group) {
    std::vector<uint8_t> into(static_cast<size_t>(kShape.group_bytes[group]));
    KvStoreRead read{.key = key(n), .group = static_cast<int64_t>(group), .into = into, .exact_only = exact};
    store.read({&read, 1}, now, {});
    if (read.miss != KvStoreMiss::kNone) {
      miss = read.miss;
      continue;
    }
    const auto begin = page.begin() + kShape.group_offset(static_cast<int64_t>(group));
    EXPECT_TRUE(std::equal(into.begin(), into.end(), begin)) << "wrong bytes of page " << n;
  }
  return miss;
}

class Directory {
 public:
  explicit Directory(const std::filesystem::path& in = std::filesystem::temp_directory_path()) {
    std::string name = (in / "deepinfer-kv-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

  /// Where thousands of files are quickly made: memory, if the system has a file system there.
  static std::filesystem::path quick() {
    const std::filesystem::path memory = "/dev/shm";
    return ::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
  }

 private:
  std::string path_;
};

}  // namespace deepinfer::store_testing
