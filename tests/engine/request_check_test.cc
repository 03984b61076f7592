#include "engine/request_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "sampling/sampler.h"

namespace deepinfer {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr int64_t kTiny = std::numeric_limits<int64_t>::min();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

RequestLimits limits() {
  RequestLimits l;
  l.vocab_size = 4096;
  l.eos_token_id = 1;
  l.max_model_len = 2000;
  l.max_num_seqs = 16;
  l.page_positions = 128;
  l.total_pages = 12;
  l.replay = ReplayMode::kBounded;
  return l;
}

Request good(size_t prompt = 10) {
  Request r;
  r.prompt.assign(prompt, 5);
  return r;
}

struct Case {
  StatusCode code;
  const char* message;  ///< its beginning
  std::function<void(Request&)> change;
};

constexpr auto kInvalid = StatusCode::kInvalidArgument;
constexpr auto kRange = StatusCode::kOutOfRange;

void expect_refused(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    Request request = good();
    c.change(request);
    const auto checked = check_request(std::move(request), limits());
    if (checked.has_value()) {
      ADD_FAILURE() << "accepted: " << c.message;
      continue;
    }
    const Status& status = checked.error();
    EXPECT_EQ(status.code(), c.code) << status.message();
    EXPECT_EQ(status.message().rfind(c.message, 0), 0u) << status.message() << "\nexpected: " << c.message;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
    EXPECT_LT(status.message().size(), 200u) << "one line that can be read";
  }
}

TEST(RequestCheck, Prompts) {
  expect_refused({
      {kInvalid, "prompt: empty", [](auto& r) { r.prompt.clear(); }},
      {kRange, "prompt[3] is 4096, must be from 0 to 4095", [](auto& r) { r.prompt[3] = 4096; }},
      {kRange, "prompt[9] is -1, must be from 0 to 4095", [](auto& r) { r.prompt[9] = -1; }},
      {kRange, "prompt[0] is -2147483648", [](auto& r) { r.prompt[0] = std::numeric_limits<int32_t>::min(); }},
      {kRange, "prompt[0] is 2147483647", [](auto& r) { r.prompt[0] = std::numeric_limits<int32_t>::max(); }},
      {kRange, "prompt has 2000 tokens, max_model_len is 2000 and must leave room for one more",
       [](auto& r) { r.prompt.assign(2000, 5); }},
      {kRange, "prompt has 3000000 tokens, max_model_len is 2000", [](auto& r) { r.prompt.assign(3'000'000, 5); }},
  });
}

TEST(RequestCheck, Lengths) {
  expect_refused({
      {kRange, "max_tokens is 0, must be from 1 to", [](auto& r) { r.max_tokens = 0; }},
      {kRange, "max_tokens is -1", [](auto& r) { r.max_tokens = -1; }},
      {kRange, "max_tokens is -9223372036854775808", [](auto& r) { r.max_tokens = kTiny; }},
      {kRange, "max_tokens is 9223372036854775807", [](auto& r) { r.max_tokens = kHuge; }},
      {kRange, "prompt has 10 tokens and max_tokens is 1991: together 2001, max_model_len is 2000",
       [](auto& r) { r.max_tokens = 1991; }},
      {kRange, "prompt has 10 tokens and max_tokens is 1099511627776: together 1099511627786",
       [](auto& r) { r.max_tokens = int64_t{1} << 40; }},
  });
}

TEST(RequestCheck, Choices) {
  expect_refused({
      {kRange, "n is 0, must be from 1 to 16", [](auto& r) { r.n = 0; }},
      {kRange, "n is -3", [](auto& r) { r.n = -3; }},
      {kRange, "n is 17, must be from 1 to 16", [](auto& r) { r.n = 17; }},
      {kRange, "n is 9223372036854775807", [](auto& r) { r.n = kHuge; }},
  });
  RequestLimits many = limits();
  many.max_num_seqs = 1000;
  many.total_pages = 1000;
  Request r = good();
  r.n = 129;
  EXPECT_EQ(check_request(r, many).error().message(), "n is 129, must be from 1 to 128");
  r.n = 128;
  EXPECT_TRUE(check_request(r, many).has_value());
}

TEST(RequestCheck, StopStrings) {
  expect_refused({
      {kRange, "stop has 65 strings, at most 64 are allowed", [](auto& r) { r.stop.assign(65, "a"); }},
      {kRange, "stop has 5000 strings", [](auto& r) { r.stop.assign(5000, "a"); }},
      {kInvalid, "stop[1] is empty",
       [](auto& r) {
         r.stop = {"a", ""};
       }},
      {kRange, "stop[0] has 1025 bytes, at most 1024 are allowed", [](auto& r) { r.stop = {std::string(1025, 'x')}; }},
      {kInvalid, "stop[0]: invalid UTF-8 at byte 2", [](auto& r) { r.stop = {"ab\xFF"}; }},
      {kInvalid, "stop[0]: invalid UTF-8 at byte 0", [](auto& r) { r.stop = {"\xED\xA0\x80"}; }},
      {kInvalid, "stop[0]: invalid UTF-8 at byte 1", [](auto& r) { r.stop = {"a\xE4\xB8"}; }},
      {kInvalid, "stop: needs text, but detokenize is off",
       [](auto& r) {
         r.stop = {"a"};
         r.detokenize = false;
       }},
  });
}

TEST(RequestCheck, SamplingParameters) {
  expect_refused({
      {kRange, "temperature is nan, must be from 0 to 100", [](auto& r) { r.sampling.temperature = kNan; }},
      {kRange, "temperature is inf", [](auto& r) { r.sampling.temperature = kInf; }},
      {kRange, "temperature is -1", [](auto& r) { r.sampling.temperature = -1; }},
      {kRange, "top_p is 0, must be above 0 and at most 1", [](auto& r) { r.sampling.top_p = 0; }},
      {kRange, "top_p is nan", [](auto& r) { r.sampling.top_p = kNan; }},
      {kRange, "min_p is 1.5", [](auto& r) { r.sampling.min_p = 1.5f; }},
      {kRange, "repetition_penalty is 0", [](auto& r) { r.sampling.repetition_penalty = 0; }},
      {kRange, "presence_penalty is -3", [](auto& r) { r.sampling.presence_penalty = -3; }},
      {kRange, "frequency_penalty is inf", [](auto& r) { r.sampling.frequency_penalty = kInf; }},
      {kRange, "min_tokens is -1", [](auto& r) { r.sampling.min_tokens = -1; }},
      {kRange, "stop_token_ids has 129 entries", [](auto& r) { r.sampling.stop_token_ids.assign(129, 2); }},
      {kRange, "stop_token_ids has token id 4096, must be from 0 to 4095", [](auto& r) { r.sampling.stop_token_ids = {4096}; }},
      {kRange, "logit_bias of token id 5 is nan",
       [](auto& r) {
         r.sampling.logit_bias = {{5, kNan}};
       }},
      {kRange, "logit_bias has 1025 entries",
       [](auto& r) {
         r.sampling.logit_bias.assign(1025, {0, 0.0f});
       }},
      {kRange, "allowed_token_ids has token id -7", [](auto& r) { r.sampling.allowed_token_ids = {-7}; }},
  });
}

TEST(RequestCheck, EosNeedsRoomAmongTheStopTokens) {
  // The sampler takes 128; without room for EOS it could not be made.
  const auto ids = [](int32_t first, int32_t count) {
    std::vector<int32_t> v;
    for (int32_t i = 0; i < count; ++i) v.push_back(first + i);
    return v;
  };
  expect_refused({
      {kRange, "stop_token_ids has 129 entries, EOS among them, at most 128 are allowed",
       [&](auto& r) { r.sampling.stop_token_ids = ids(2, 128); }},
  });
  Request r = good();
  for (const auto& stops : {ids(2, 127), ids(1, 128)}) {
    r.sampling.stop_token_ids = stops;
    const auto checked = check_request(r, limits());
    ASSERT_TRUE(checked.has_value());
    EXPECT_EQ((*checked)->request.sampling.stop_token_ids.size(), 128u);
    const Sampler sampler((*checked)->request.sampling, limits().vocab_size);
  }
  r.sampling.stop_token_ids = ids(2, 128);
  r.ignore_eos = true;
  EXPECT_TRUE(check_request(r, limits()).has_value());
}

TEST(RequestCheck, EverythingElse) {
  expect_refused({
      {kRange, "logprobs is -1, must be from 0 to 20", [](auto& r) { r.logprobs = -1; }},
      {kRange, "logprobs is 21", [](auto& r) { r.logprobs = 21; }},
      {kRange, "logprobs is 9223372036854775807", [](auto& r) { r.logprobs = kHuge; }},
      {kRange, "prompt_logprobs is -1, must be from 0 to 20", [](auto& r) { r.prompt_logprobs = -1; }},
      {kRange, "prompt_logprobs is 21", [](auto& r) { r.prompt_logprobs = 21; }},
      {kInvalid, "cache_class: cache class: \"forever\", must be chat, agent or pinned",
       [](auto& r) { r.cache_class = "forever"; }},
      {kInvalid, "cache_class: cache class: \"\"", [](auto& r) { r.cache_class = ""; }},
      {kInvalid, "cache_class: cache class: \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",",
       [](auto& r) { r.cache_class = std::string(100'000, 'x'); }},
      {kRange, "cache_salt has 257 bytes, at most 256 are allowed", [](auto& r) { r.cache_salt = std::string(257, 's'); }},
      {kRange, "priority is 1000001, must be from -1000000 to 1000000", [](auto& r) { r.priority = 1'000'001; }},
      {kRange, "priority is -1000001", [](auto& r) { r.priority = -1'000'001; }},
      {kRange, "priority is -9223372036854775808", [](auto& r) { r.priority = kTiny; }},
      {kRange, "deadline is nan s, must be more than 0 and at most", [](auto& r) { r.deadline = std::nan(""); }},
      {kRange, "deadline is 0 s", [](auto& r) { r.deadline = 0; }},
      {kRange, "deadline is -0.5 s", [](auto& r) { r.deadline = -0.5; }},
      {kRange, "deadline is inf s", [](auto& r) { r.deadline = std::numeric_limits<double>::infinity(); }},
      {kRange, "deadline is 2000000000 s", [](auto& r) { r.deadline = 2e9; }},
  });
}

TEST(RequestCheck, LimitsAreAllowed) {
  const std::vector<std::function<void(Request&)>> changes = {
      [](auto& r) { r.prompt = {0}; },
      [](auto& r) { r.prompt = {4095}; },
      [](auto& r) { r.max_tokens = 1; },
      [](auto& r) { r.n = 3; },
      [](auto& r) { r.stop.assign(64, std::string(1024, 'x')); },
      [](auto& r) {
        r.stop = {"😀", std::string("\0", 1)};
      },
      [](auto& r) { r.detokenize = false; },
      [](auto& r) { r.logprobs = 0; },
      [](auto& r) { r.logprobs = 20; },
      [](auto& r) { r.prompt_logprobs = 20; },
      [](auto& r) { r.cache_class = "agent"; },
      [](auto& r) { r.cache_class = "pinned"; },
      [](auto& r) { r.cache_salt = std::string(256, '\xFF'); },
      [](auto& r) { r.priority = -1'000'000; },
      [](auto& r) { r.priority = 1'000'000; },
      [](auto& r) { r.deadline = 1e9; },
      [](auto& r) { r.deadline = std::numeric_limits<double>::denorm_min(); },
      [](auto& r) { r.sampling.temperature = 0; },
      [](auto& r) { r.sampling.top_k = kTiny; },
      [](auto& r) { r.sampling.min_tokens = r.max_tokens.value_or(1); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Request r = good();
    changes[i](r);
    const auto checked = check_request(r, limits());
    EXPECT_TRUE(checked.has_value()) << i << ": " << (checked ? "" : checked.error().message());
  }
}

/// Pages that the longest choice needs, or that all choices need at once when they begin, whichever is more.
int64_t pages_needed(int64_t prompt, int64_t max_tokens, int64_t n, int64_t page) {
  const int64_t alone = (prompt + max_tokens - 1 + page - 1) / page;  // the last token does not run
  const int64_t shared = prompt / page, own = prompt % page != 0 ? 1 : 0;
  return std::max(alone, shared + n * own);
}

TEST(RequestCheck, PageBudget) {
  RequestLimits l = limits();
  l.total_pages = 4;  // of 128
  Request r = good(500);
  r.max_tokens = 13;
  EXPECT_TRUE(check_request(r, l).has_value()) << "512 positions";
  r.max_tokens = 14;
  auto checked = check_request(r, l);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().code(), kRange);
  EXPECT_EQ(checked.error().message(),
            "prompt has 500 tokens, max_tokens is 14, n is 1: 5 pages, the KV cache has 4 of 128 tokens");

  // Choices share whole pages of the prompt, and each has a last page of its own as soon as they fork.
  r = good(300);
  r.max_tokens = 1;
  r.n = 2;
  EXPECT_TRUE(check_request(r, l).has_value());
  r.n = 3;
  checked = check_request(r, l);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().code(), kRange);
  EXPECT_NE(checked.error().message().find("n is 3: 5 pages"), std::string::npos) << checked.error().message();
  // Without a last page that is half full there is nothing to copy.
  r = good(256);
  r.max_tokens = 257;
  r.n = 16;
  EXPECT_TRUE(check_request(r, l).has_value());
  r.max_tokens = 258;
  EXPECT_FALSE(check_request(r, l).has_value());

  for (int64_t prompt : {1, 127, 128, 129, 255, 256, 257, 384, 400, 511, 512, 513, 600}) {
    for (int64_t max_tokens : {1, 2, 100, 127, 128, 129, 200, 256, 385, 512}) {
      for (int64_t n : {1, 2, 3, 4, 5, 16}) {
        r = good(static_cast<size_t>(prompt));
        r.max_tokens = max_tokens;
        r.n = n;
        ASSERT_EQ(check_request(r, l).has_value(), pages_needed(prompt, max_tokens, n, 128) <= 4)
            << prompt << " " << max_tokens << " " << n;
      }
    }
  }
}

TEST(RequestCheck, MaxTokensDefaultsToWhatFits) {
  RequestLimits l = limits();  // 12 x 128 = 1536 positions, below max_model_len
  EXPECT_EQ((*check_request(good(10), l))->max_tokens, 1526);
  EXPECT_EQ((*check_request(good(1535), l))->max_tokens, 1);
  EXPECT_EQ((*check_request(good(1536), l))->max_tokens, 1) << "the one token need not run";
  const auto checked = check_request(good(1537), l);
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().code(), kRange);
  l.total_pages = 1000;
  EXPECT_EQ((*check_request(good(10), l))->max_tokens, 1990);
  EXPECT_EQ((*check_request(good(1999), l))->max_tokens, 1);
  Request r = good(10);
  r.max_tokens = 1990;
  EXPECT_EQ((*check_request(r, l))->max_tokens, 1990);
  EXPECT_EQ((*check_request(r, l))->request.max_tokens, 1990) << "the request stays the caller's";
}

TEST(RequestCheck, SeedsAreDrawn) {
  std::set<uint64_t> seeds;
  for (int i = 0; i < 100; ++i) seeds.insert((*check_request(good(), limits()))->request.sampling.seed);
  EXPECT_EQ(seeds.size(), 100u);
  Request r = good();
  r.sampling.seed = 99;
  EXPECT_NE((*check_request(r, limits()))->request.sampling.seed, 99u) << "only `seed` fixes it";
  for (const uint64_t seed : {uint64_t{0}, uint64_t{7}, std::numeric_limits<uint64_t>::max()}) {
    r.seed = seed;
    EXPECT_EQ((*check_request(r, limits()))->request.sampling.seed, seed);
  }
}

TEST(RequestCheck, EosIsAStopToken) {
  using Ids = std::vector<int32_t>;
  const auto stops = [](const Request& r) { return (*check_request(r, limits()))->request.sampling.stop_token_ids; };
  Request r = good();
  EXPECT_EQ(stops(r), Ids{1});
  r.sampling.stop_token_ids = {9, 4};
  EXPECT_EQ(stops(r), (Ids{9, 4, 1}));
  r.sampling.stop_token_ids = {9, 1};
  EXPECT_EQ(stops(r), (Ids{9, 1}));
  r.ignore_eos = true;
  EXPECT_EQ(stops(r), (Ids{9, 1})) << "asked for by name";
  r.sampling.stop_token_ids = {};
  EXPECT_EQ(stops(r), Ids{});
}

TEST(RequestCheck, WhatIsFilledIn) {
  Request r = good();
  r.sampling.choice_index = 5;
  r.cache_class = "pinned";
  r.cache_salt = "tenant";
  auto active = *check_request(r, limits());
  EXPECT_EQ(active->request.sampling.choice_index, 0u);
  EXPECT_EQ(active->cache_class, CacheClass::kPinned);
  EXPECT_EQ(active->request.cache_salt, "tenant");
  EXPECT_EQ(active->request.prompt, r.prompt);
  EXPECT_EQ(active->stream, nullptr);
  EXPECT_TRUE(active->sequences.empty());
  EXPECT_FALSE(active->deadline.has_value()) << "on the engine's clock, which this does not know";
}

TEST(RequestCheck, ReplayModes) {
  RequestLimits l = limits();
  for (const ReplayMode engine : {ReplayMode::kBounded, ReplayMode::kExact}) {
    l.replay = engine;
    Request r = good();
    EXPECT_EQ((*check_request(r, l))->mode, engine);
    for (const ReplayMode own : {ReplayMode::kBounded, ReplayMode::kExact}) {
      r.replay = own;
      r.prompt_logprobs.reset();
      EXPECT_EQ((*check_request(r, l))->mode, own);
      r.prompt_logprobs = 0;
      EXPECT_EQ((*check_request(r, l))->mode, ReplayMode::kExact) << "prompt log-probs come from exact rows";
    }
  }
}

TEST(RequestCheck, TheSameRequestCanBeSubmittedAgain) {
  Request r = good();
  r.seed = 3;
  r.stop = {"a"};
  r.sampling.stop_token_ids = {9};
  const auto first = *check_request(r, limits());
  const auto second = *check_request(first->request, limits());
  EXPECT_EQ(second->request.sampling.stop_token_ids, first->request.sampling.stop_token_ids);
  EXPECT_EQ(second->request.sampling.seed, first->request.sampling.seed);
  EXPECT_EQ(second->max_tokens, first->max_tokens);
}

StructuredOutput regex_form(std::string pattern) { return {.form = grammar::RegexSpec{std::move(pattern)}}; }

TEST(RequestCheck, StructuredOutput) {
  const auto with = [](std::function<void(StructuredOutput&)> change) {
    return [change = std::move(change)](Request& r) {
      r.structured_output = regex_form("a+");
      change(*r.structured_output);
    };
  };
  expect_refused({
      {kRange, "structured_output has 4194305 bytes, at most 4194304 are allowed",
       with([](StructuredOutput& o) { o = regex_form(std::string((4 << 20) + 1, 'a')); })},
      {kRange, "structured_output has ",
       with([](StructuredOutput& o) { o.form = grammar::ChoiceSpec{std::vector<std::string>(1'000'000)}; })},
      {kInvalid, "structured_output.prefix: invalid UTF-8 at byte 1", with([](StructuredOutput& o) { o.prefix = "a\xff"; })},
      {kRange, "structured_output.start_after is -1, must be from 0 to 4095",
       with([](StructuredOutput& o) { o.start_after = -1; })},
      {kRange, "structured_output.start_after is 4096, must be from 0 to 4095",
       with([](StructuredOutput& o) { o.start_after = 4096; })},
      {kInvalid, "structured_output.start_after is 1, which ends the answer",
       with([](StructuredOutput& o) { o.start_after = 1; })},
      {kInvalid, "structured_output.prefix: nothing of the form can be there before start_after", with([](StructuredOutput& o) {
         o.start_after = 7;
         o.prefix = "a";
       })},
  });
  Request request = good();
  request.ignore_eos = true;
  request.structured_output = regex_form("a+");
  const auto checked = check_request(std::move(request), limits());
  ASSERT_TRUE(checked.has_value());
  EXPECT_FALSE((*checked)->request.ignore_eos) << "EOS is the one token at the end of the form";
  EXPECT_EQ((*checked)->request.sampling.stop_token_ids, std::vector<int32_t>{1});
}

}  // namespace
}  // namespace deepinfer
