#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <thread>

#include "grammar/support.h"

namespace deepinfer {
namespace {

using grammar::JsonSchemaSpec;
using grammar::RegexSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

std::vector<uint32_t> mask_of(GrammarMatcher& matcher) {
  std::vector<uint32_t> mask(matcher.grammar().vocabulary().mask_words() + 3, 0xDEADBEEF);
  matcher.fill_mask(mask);
  return mask;
}

const std::vector<GrammarSpec>& specs() {
  static const std::vector<GrammarSpec> list = {
      RegexSpec{"[a-z]{0,20}(é|中文|\\d+)*"},
      RegexSpec{"(ab|[^中/])*/[\\s\\S]*"},
      RegexSpec{"[ -~é]*the[^\\x00-\\x1f]*"},
      RegexSpec{"[^.]*\\.[^-]*-[\\u0000-\\ud7ff]*"},
      JsonSchemaSpec{R"({"type":"object","patternProperties":{"^(/[^/]+)+$":{"type":"number"}}})"},
      JsonSchemaSpec{R"({"type":"object","properties":{"name":{"type":"string"},"n":{"type":"integer"}},"required":["name"]})"},
      JsonSchemaSpec{R"({"type":"array","items":{"type":"string","maxLength":7}})"},
      JsonSchemaSpec{R"({"type":"string","pattern":".+@.+"})"},
      JsonSchemaSpec{
          R"({"type":"object","properties":{"the":{"enum":["abc","ab"]}},"additionalProperties":{"type":"number"},"minProperties":2})"},
      grammar::JsonObjectSpec{},
      grammar::EbnfSpec{"root ::= \"a\" root \"b\" | [^ab]{1,3} root?"},
      grammar::DsmlSpec{.tools = {{"name", "{\"properties\":{\"a\":{\"type\":\"string\"}}}", true}}},
  };
  return list;
}

/// The mask against its definition: every token tried on a fork.
TEST(Matcher, MasksEqualTrialOfEveryToken) {
  Random random(5);
  for (const GrammarSpec& spec : specs()) {
    const auto g = compile(spec);
    for (int round = 0; round < 8; ++round) {
      GrammarMatcher matcher(g);
      for (int step = 0; step < 25 && !matcher.terminated(); ++step) {
        const auto mask = mask_of(matcher);
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < g->vocabulary().size(); ++id) {
          GrammarMatcher trial = matcher.fork();
          const bool in_mask = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
          ASSERT_EQ(trial.accept(id), in_mask) << "token " << id << " step " << step << " spec " << spec.index();
          if (in_mask) allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty());
        if (allowed.size() == 1) {
          EXPECT_EQ(matcher.forced_token(), allowed[0]);
        } else {
          EXPECT_EQ(matcher.forced_token(), std::nullopt);
        }
        ASSERT_TRUE(matcher.accept(allowed[static_cast<size_t>(random.below(static_cast<int64_t>(allowed.size())))]));
      }
    }
  }
}

TEST(Matcher, LargeVocabularyMasksEqualTrials) {
  const auto vocabulary = large_vocabulary();
  if (vocabulary == nullptr) GTEST_SKIP() << "the 128k vocabulary is absent: npm install in tests/e2e";
  Random random(6);
  for (const GrammarSpec& spec : specs()) {
    const auto g = compile(spec, vocabulary);
    GrammarMatcher matcher(g);
    for (int step = 0; step < 6 && !matcher.terminated(); ++step) {
      const auto mask = mask_of(matcher);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocabulary->size(); ++id) {
        const bool in_mask = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
        const bool accepted = matcher.accept(id);
        if (accepted) matcher.rollback(1);
        ASSERT_EQ(accepted, in_mask) << "token " << id << " step " << step << " spec " << spec.index();
        if (in_mask) allowed.push_back(id);
      }
      ASSERT_TRUE(matcher.accept(allowed[static_cast<size_t>(random.below(static_cast<int64_t>(allowed.size())))]));
    }
  }
}

TEST(Matcher, RollbackAndForksChangeNothing) {
  Random random(7);
  for (const GrammarSpec& spec : specs()) {
    const auto g = compile(spec);
    GrammarMatcher plain(g);
    GrammarMatcher busy(compile(spec));  // another machine, used in another order
    for (int step = 0; step < 40 && !plain.terminated(); ++step) {
      // Drafts: a few tokens ahead, then back.
      const int64_t before = busy.accepted_tokens();
      for (int draft = 0; draft < 4 && !busy.terminated(); ++draft) {
        const auto mask = mask_of(busy);
        for (int tries = 0; tries < 50; ++tries) {
          const auto id = static_cast<int32_t>(random.below(g->vocabulary().size()));
          if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
          ASSERT_TRUE(busy.accept(id));
          break;
        }
      }
      busy.rollback(busy.accepted_tokens() - before);
      const auto mask = mask_of(plain);
      ASSERT_EQ(mask, mask_of(busy)) << "step " << step << " spec " << spec.index();
      ASSERT_EQ(plain.can_stop(), busy.can_stop());
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < g->vocabulary().size(); ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      const int32_t token = allowed[static_cast<size_t>(random.below(static_cast<int64_t>(allowed.size())))];
      ASSERT_TRUE(plain.accept(token));
      ASSERT_TRUE(busy.accept(token));
    }
  }
}

TEST(Matcher, StopsAndTerminates) {
  const auto g = compile(RegexSpec{"ab?"});
  const int32_t stop = g->vocabulary().stop_ids()[0];
  GrammarMatcher matcher(g);
  EXPECT_FALSE(matcher.can_stop());
  EXPECT_FALSE(matcher.accept(stop));
  EXPECT_TRUE(matcher.accept('a'));
  EXPECT_TRUE(matcher.can_stop());
  EXPECT_TRUE(matcher.accept('b'));
  EXPECT_EQ(matcher.forced_token(), stop);
  EXPECT_TRUE(matcher.accept(stop));
  EXPECT_TRUE(matcher.terminated());
  EXPECT_FALSE(matcher.accept('a'));
  EXPECT_FALSE(matcher.accept(stop));
  const auto mask = mask_of(matcher);
  int bits = 0;
  for (const uint32_t word : mask) bits += std::popcount(word);
  EXPECT_EQ(bits, 1);
  matcher.rollback(2);
  EXPECT_FALSE(matcher.terminated());
  EXPECT_TRUE(matcher.accept('b'));
  matcher.rollback(100);
  EXPECT_EQ(matcher.accepted_tokens(), 0);
  EXPECT_FALSE(matcher.accept(-1));
  EXPECT_FALSE(matcher.accept(1 << 20));
}

TEST(Matcher, MovesToAFreshMachineWhenTheOldOneIsFull) {
  grammar::CompileLimits limits;
  limits.live_bytes = 20000;
  const auto made = compile_grammar(grammar::JsonObjectSpec{}, small_vocabulary(), limits);
  ASSERT_TRUE(made.has_value());
  GrammarMatcher small(*made);
  GrammarMatcher plain(compile(grammar::JsonObjectSpec{}));
  std::string text = "{\"a\":";
  for (int i = 0; i < 60; ++i) text += i % 2 == 0 ? "[" : "{\"k\":";
  for (const char byte : text) {
    ASSERT_EQ(mask_of(small), mask_of(plain));
    ASSERT_TRUE(small.accept(static_cast<unsigned char>(byte)));
    ASSERT_TRUE(plain.accept(static_cast<unsigned char>(byte)));
  }
  small.rollback(20);
  plain.rollback(20);
  EXPECT_EQ(mask_of(small), mask_of(plain));
}

TEST(Matcher, SharedBetweenThreads) {
  const auto g = compile(specs()[1]);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(100 + t % 2));
      for (int i = 0; i < 20; ++i) wrong += generate(g, random, 30).has_value() ? 0 : 1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Matcher, AVocabularyThatLacksAByte) {
  std::vector<std::string> tokens = {"a", "b", "ab", "c", "<end>"};
  const auto vocabulary = *TokenVocabulary::Make(tokens, {4}, {4});
  const auto refused = compile_grammar(RegexSpec{"ax"}, vocabulary);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("0x78"), std::string::npos) << refused.error().message();
  // The branch that can't be spelled is cut off, also inside a class.
  const auto g = compile(RegexSpec{"a(x|b)[b-z]"}, vocabulary);
  GrammarMatcher matcher(g);
  EXPECT_TRUE(matcher.accept(0));
  EXPECT_EQ(matcher.forced_token(), 1);
  EXPECT_TRUE(matcher.accept(1));
  const auto mask = mask_of(matcher);
  EXPECT_EQ(mask[0], 0b1010u);
}

}  // namespace
}  // namespace deepinfer
