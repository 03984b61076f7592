// What the kernel asks for ahead (fetch.cu): every piece of 16 bytes of what was named, once, in order, and nothing beside it.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <vector>

#include "ops/cuda/fetch.h"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

std::vector<std::pair<const uint8_t*, int64_t>>* asked = nullptr;

std::vector<std::pair<const uint8_t*, int64_t>> fetch(std::span<const WeightBytes> weights, const FetchPace& pace) {
  std::vector<std::pair<const uint8_t*, int64_t>> out;
  asked = &out;
  on_fetch = [](const uint8_t* from, int64_t bytes) { asked->emplace_back(from, bytes); };
  LaunchStream stream(nullptr, false);
  fetch_weights(fetch_list(weights, pace), stream);
  on_fetch = nullptr;
  return out;
}

TEST(EmulatedFetch, AsksForAllOfItOnce) {
  alignas(16) static const uint8_t memory[200'000] = {};
  const WeightBytes weights[] = {{memory, 16},          {memory + 17, 3 * FetchList::kPiece},
                                 {nullptr, 0},          {memory + 30'000, 31},
                                 {memory + 40'001, 20}, {memory + 65'536, 100'000}};
  for (const int blocks : {1, 3, 7, 64}) {
    for (const int64_t rate : {int64_t{0}, int64_t{2'000'000}}) {
      SCOPED_TRACE(blocks);
      std::map<const uint8_t*, int64_t> sorted;
      for (const auto& [from, bytes] : fetch(weights, {1 << 20, rate, blocks, 100})) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(from) % 16, 0U);
        EXPECT_TRUE(bytes > 0 && bytes <= FetchList::kPiece && bytes % 16 == 0) << bytes;
        EXPECT_TRUE(sorted.emplace(from, bytes).second);
      }
      std::vector<std::pair<int64_t, int64_t>> whole;  // where pieces that meet begin and end
      for (const auto& [from, bytes] : sorted) {
        const int64_t begin = from - memory;
        if (!whole.empty() && whole.back().second == begin) {
          whole.back().second += bytes;
        } else {
          EXPECT_TRUE(whole.empty() || whole.back().second < begin) << "a piece twice";
          whole.emplace_back(begin, begin + bytes);
        }
      }
      const std::vector<std::pair<int64_t, int64_t>> want = {
          {0, 16}, {32, 17 + 3 * FetchList::kPiece / 16 * 16 - 1}, {30'000, 30'016}, {65'536, 165'536}};
      EXPECT_EQ(whole, want);
    }
  }
}

TEST(EmulatedFetch, AsksForNoMoreThanItMay) {
  alignas(16) static const uint8_t memory[100'000] = {};
  const WeightBytes weights[] = {{memory, 10'000}, {memory + 20'000, 50'000}};
  int64_t bytes = 0;
  for (const auto& [from, count] : fetch(weights, {30'000, 0, 5, 0})) bytes += count;
  EXPECT_EQ(bytes, 30'000);
  EXPECT_TRUE(fetch(weights, {0, 0, 5, 0}).empty());
  EXPECT_TRUE(fetch({}, {30'000, 0, 5, 0}).empty());
}

TEST(EmulatedFetch, TheEnvironmentSetsPaces) {
  setenv("DEEPINFER_CUDA_FETCH", "queries=3:400:5:600,output=0,experts=7", 1);
  const FetchPaces paces = fetch_paces();
  unsetenv("DEEPINFER_CUDA_FETCH");
  const FetchPaces plain = fetch_paces();
  const FetchPace& queries = paces[ComingOperators::kQueries];
  EXPECT_EQ(queries.bytes, 3 << 20);
  EXPECT_EQ(queries.bytes_per_us, 400'000);
  EXPECT_EQ(queries.blocks, 5);
  EXPECT_EQ(queries.begin_ns, 600);
  EXPECT_EQ(paces[ComingOperators::kAttentionOutput].bytes, 0);
  const FetchPace& experts = paces[ComingOperators::kExperts];
  EXPECT_EQ(experts.bytes, 7 << 20);
  EXPECT_EQ(experts.bytes_per_us, plain[ComingOperators::kExperts].bytes_per_us);
}

}  // namespace
}  // namespace deepinfer::cuda
