#include "grammar/grammar_cache.h"

#include <gtest/gtest.h>

#include <thread>

#include "grammar/support.h"

namespace deepinfer {
namespace {

using grammar::GrammarCache;
using grammar::RegexSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

TEST(GrammarCacheTest, SharesByContentAndDropsTheOldest) {
  GrammarCache cache(small_vocabulary(), 30000);
  const auto first = cache.get(RegexSpec{"a+"});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(*cache.get(RegexSpec{"a+"}), *first);
  EXPECT_EQ(cache.find(RegexSpec{"b+"}), nullptr);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(cache.get(RegexSpec{"a" + std::to_string(i)}).has_value());
  EXPECT_LT(cache.size(), 200u);
  EXPECT_EQ(cache.find(RegexSpec{"a+"}), nullptr);
  EXPECT_TRUE(accepts(*first, "aaa")) << "users keep what they hold";
  EXPECT_FALSE(cache.get(RegexSpec{"("}).has_value());
}

TEST(GrammarCacheTest, KeysTellSpecsApart) {
  using namespace grammar;  // NOLINT(google-build-using-namespace)
  EXPECT_NE(spec_key(ChoiceSpec{{"a", "b"}}), spec_key(ChoiceSpec{{"a1:b"}}));
  EXPECT_NE(spec_key(JsonSchemaSpec{"{}"}), spec_key(JsonSchemaSpec{"{}", false}));
  EXPECT_NE(spec_key(RegexSpec{"{}"}), spec_key(EbnfSpec{"{}"}));
  DsmlSpec free, answered;
  answered.answer = RegexSpec{"a"};
  EXPECT_NE(spec_key(free), spec_key(answered));
}

TEST(GrammarCacheTest, ManyThreads) {
  GrammarCache cache(small_vocabulary(), 1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) EXPECT_TRUE(cache.get(RegexSpec{"x" + std::to_string(i % 10)}).has_value());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cache.size(), 10u);
}

}  // namespace
}  // namespace deepinfer
