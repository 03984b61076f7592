#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"

namespace deepinfer::testing {

inline PrefixHasher test_hasher() {
  std::array<uint8_t, 32> secret{};
  std::iota(secret.begin(), secret.end(), uint8_t{1});
  return PrefixHasher(secret);
}

inline std::unique_ptr<KvCache> make_cache(int64_t pages, const KvCacheOptions& options = {}) {
  constexpr int64_t kPageBytes = 64;
  auto pool = PagePool::Create(kPageBytes, kPageBytes * pages);
  EXPECT_TRUE(pool.has_value());
  auto cache = KvCache::Create(*std::move(pool), options);
  EXPECT_TRUE(cache.has_value());
  return *std::move(cache);
}

/// `count` keys of a prompt that is named by `salt`, in pages of two tokens.
inline std::vector<PrefixKey> keys_of(std::string_view salt, int64_t count) {
  const PrefixHasher hasher = test_hasher();
  std::vector<int32_t> tokens(static_cast<size_t>(2 * count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return page_keys(hasher, hasher.root(salt, "model"), tokens, 2);
}

inline std::span<const PrefixKey> first(const std::vector<PrefixKey>& keys, size_t count) { return std::span(keys).first(count); }

/// What a sequence does that finds nothing: computes the pages of `keys` and publishes them. The table holds them still.
inline PageTable computed(KvCache& cache, std::span<const PrefixKey> keys, CacheClass cache_class, double now,
                          bool exact = true) {
  PageTable table = cache.new_table(cache_class);
  EXPECT_TRUE(table.grow(static_cast<int64_t>(keys.size()), now));
  table.publish(keys, exact, now);
  return table;
}

/// The same, and the sequence is over.
inline void remember(KvCache& cache, std::span<const PrefixKey> keys, CacheClass cache_class, double now, bool exact = true) {
  computed(cache, keys, cache_class, now, exact).release(now);
}

inline int64_t cached(const KvCache& cache, std::span<const PrefixKey> keys) { return cache.match(keys, false).pages; }

}  // namespace deepinfer::testing
