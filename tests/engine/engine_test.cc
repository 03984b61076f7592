// The public API: threads, queues, shutdown.

#include "deepinfer/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "testing/paths.h"

namespace deepinfer::testing {
namespace {

std::unique_ptr<Engine> make_engine(const std::function<void(EngineOptions&)>& change = {}) {
  EngineOptions options;
  options.model = nano_dir();
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 128;
  options.kv_cache_memory = int64_t{64} << 20;
  if (change) change(options);
  auto engine = Engine::Create(options);
  if (!engine) throw std::runtime_error(engine.error().message());
  return *std::move(engine);
}

Request request_of(Engine& engine, const std::string& text, int64_t max_tokens, uint64_t seed = 1) {
  Request request;
  request.prompt = *engine.encode_chat(text);
  request.max_tokens = max_tokens;
  request.seed = seed;
  request.ignore_eos = true;
  return request;
}

struct Whole {
  std::string text;
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
  Usage usage;
};

Whole read_all(RequestHandle handle) {
  Whole whole;
  while (const auto output = handle.next()) {
    whole.text += output->text;
    whole.tokens.insert(whole.tokens.end(), output->tokens.begin(), output->tokens.end());
    whole.finish = output->finish;
    whole.usage = output->usage;
  }
  EXPECT_TRUE(handle.finished());
  EXPECT_FALSE(handle.next().has_value());
  return whole;
}

TEST(Engine, ManyThreadsSubmitAndRead) {
  const auto engine = make_engine();
  const Whole want = read_all(*engine->submit(request_of(*engine, "Tell me a story.", 40)));
  EXPECT_EQ(want.text, engine->decode(want.tokens));
  EXPECT_EQ(want.usage.completion_tokens, 40);
  std::atomic<int> equal = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4; ++i) {
        auto other =
            engine->submit(request_of(*engine, "Count from 1 to " + std::to_string(t), 10 + i, static_cast<uint64_t>(t)));
        const Whole got = read_all(*engine->submit(request_of(*engine, "Tell me a story.", 40)));
        if (got.text == want.text && got.tokens == want.tokens) ++equal;
        if (i % 2 == 0) other->cancel();
        while (other->next_for(std::chrono::seconds(20)).has_value()) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 32);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.submitted, 65);
  EXPECT_EQ(stats.running, 0);
}

// Whoever has read an output, and then asks for counters, finds it counted: the callback is the first that can know of it.
TEST(Engine, WhatCanBeReadIsCounted) {
  const auto engine = make_engine();
  Request request = request_of(*engine, "Tell me a story.", 20);
  request.n = 3;
  RequestHandle handle = *engine->submit(request);
  std::atomic<int64_t> read = 0, ends = 0, behind = 0;
  handle.set_callback([&] {
    while (const auto output = handle.poll()) {
      read += static_cast<int64_t>(output->tokens.size());
      ends += output->finish.has_value() ? 1 : 0;
      const EngineStats stats = engine->stats();
      const int64_t finished = stats.finished[static_cast<size_t>(FinishReason::kLength)];
      if (stats.generation_tokens < read || finished < ends) ++behind;
      if (ends == 3 && stats.running > 0) ++behind;
    }
  });
  while (!handle.finished()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  handle.set_callback({});
  engine->shutdown();
  EXPECT_EQ(read, 60);
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(behind, 0);

  const auto other = make_engine();
  handle = *other->submit(request_of(*other, "Tell me a story.", 1000));
  ASSERT_TRUE(handle.next().has_value());
  handle.cancel();
  while (handle.next().has_value()) {
  }
  EXPECT_EQ(other->stats().finished[static_cast<size_t>(FinishReason::kCancelled)], 1);
}

TEST(Engine, CallbackOnNews) {
  const auto engine = make_engine();
  RequestHandle handle = *engine->submit(request_of(*engine, "Hello.", 20));
  std::atomic<int> calls = 0;
  handle.set_callback([&] { ++calls; });
  size_t tokens = 0;
  while (const auto output = handle.next()) tokens += output->tokens.size();
  EXPECT_EQ(tokens, 20u);
  EXPECT_GT(calls, 0);
  handle.set_callback({});
}

// A reader that never reads costs one pending output.
TEST(Engine, NobodyReads) {
  const auto engine = make_engine();
  std::vector<RequestHandle> handles;
  for (int i = 0; i < 40; ++i) handles.push_back(*engine->submit(request_of(*engine, "Hello.", 50)));
  for (int i = 0; i < 20; ++i) *engine->submit(request_of(*engine, "Hello.", 50));  // handle dropped at once
  engine->shutdown();
  for (RequestHandle& handle : handles) {
    const auto output = handle.poll();
    ASSERT_TRUE(output.has_value());
    EXPECT_EQ(output->tokens.size(), 50u);
    EXPECT_FALSE(handle.poll().has_value());
  }
}

TEST(Engine, BoundedQueue) {
  const auto engine = make_engine([](EngineOptions& o) {
    o.max_queued_requests = 100;
    o.max_num_seqs = 1;
  });
  std::vector<RequestHandle> handles;
  int64_t refused = 0;
  const Request request = request_of(*engine, "Hello.", 1000);
  for (int i = 0; i < 100'000; ++i) {
    auto handle = engine->submit(request);
    if (handle) {
      handles.push_back(*std::move(handle));
    } else {
      ++refused;
      ASSERT_EQ(handle.error().code(), StatusCode::kUnavailable);
      ASSERT_NE(handle.error().message().find("max_queued_requests is 100"), std::string::npos);
    }
  }
  EXPECT_LE(handles.size(), 400u);
  EXPECT_GE(handles.size(), 100u);
  EXPECT_EQ(engine->stats().refused, refused);
  engine->shutdown(Engine::Shutdown::kCancel);
  for (RequestHandle& handle : handles) EXPECT_NE(read_all(handle).finish, std::nullopt);
}

TEST(Engine, ShutdownDrainsOrCancelsAndRefuses) {
  for (const auto how : {Engine::Shutdown::kDrain, Engine::Shutdown::kCancel}) {
    const auto engine = make_engine();
    std::vector<RequestHandle> handles;
    for (int i = 0; i < 30; ++i) handles.push_back(*engine->submit(request_of(*engine, "Hello.", 200)));
    engine->shutdown(how);
    for (RequestHandle& handle : handles) {
      const Whole whole = read_all(handle);
      if (how == Engine::Shutdown::kDrain) {
        EXPECT_EQ(whole.finish, FinishReason::kLength);
      } else {
        EXPECT_TRUE(whole.finish.has_value());
      }
    }
    const auto refused = engine->submit(request_of(*engine, "Hello.", 5));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), StatusCode::kFailedPrecondition);
    engine->shutdown();
  }
}

TEST(Engine, HandlesOutliveTheEngine) {
  RequestHandle handle;
  {
    const auto engine = make_engine();
    handle = *engine->submit(request_of(*engine, "Hello.", 2000));
  }
  handle.cancel();
  EXPECT_EQ(read_all(handle).finish, FinishReason::kCancelled);
}

TEST(Engine, StopStringsAndChoices) {
  const auto engine = make_engine();
  Request request = request_of(*engine, "Tell me a story about a fox and a lamp.", 60);
  request.sampling.temperature = 0;
  const std::string text = read_all(*engine->submit(request)).text;
  ASSERT_GT(text.size(), 60u);
  request.stop = {text.substr(40, 6)};
  const Whole stopped = read_all(*engine->submit(request));
  EXPECT_EQ(stopped.text, text.substr(0, text.find(request.stop[0])));
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  request.stop.clear();
  request.sampling.temperature = 1;
  request.n = 4;
  std::map<int64_t, std::string> choices;
  RequestHandle handle = *engine->submit(request);
  while (const auto output = handle.next()) choices[output->index] += output->text;
  EXPECT_EQ(choices.size(), 4u);
  EXPECT_NE(choices[0], choices[1]);
}

/// The pages of what has ended come free with the engine's next steps.
EngineStats stats_when_idle(Engine& engine, const std::function<bool(const EngineStats&)>& condition) {
  EngineStats stats = engine.stats();
  for (int i = 0; i < 12'000 && !condition(stats); ++i, stats = engine.stats())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return stats;
}

TEST(Engine, ResetForgetsWhatNobodyUses) {
  const auto engine = make_engine();
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The fox carried the lamp through the quiet wood. ";
  Request request = request_of(*engine, text, 4);
  ASSERT_GT(request.prompt.size(), 256u);
  request.cache_class = "pinned";
  const Whole cold = read_all(*engine->submit(request));
  EXPECT_GT(read_all(*engine->submit(request)).usage.cached_tokens, 0);
  const auto unused = [](const EngineStats& s) { return s.pages_free + s.pages_cached == s.pages_total; };
  EXPECT_GT(stats_when_idle(*engine, unused).pages_cached, 0);
  engine->reset_prefix_cache();
  const Whole again = read_all(*engine->submit(request));
  EXPECT_EQ(again.usage.cached_tokens, 0);
  EXPECT_EQ(again.usage.cache_miss, CacheMiss::kNotCached);
  EXPECT_EQ(again.tokens, cold.tokens);

  // Requests that run keep their pages, and go on as if nothing had happened.
  Request long_one = request_of(*engine, text, 300);
  long_one.replay = ReplayMode::kExact;
  const Whole undisturbed = read_all(*engine->submit(long_one));
  RequestHandle running = *engine->submit(long_one);
  Whole disturbed;
  while (const auto output = running.next()) {
    disturbed.tokens.insert(disturbed.tokens.end(), output->tokens.begin(), output->tokens.end());
    engine->reset_prefix_cache();
  }
  EXPECT_EQ(disturbed.tokens, undisturbed.tokens);
  stats_when_idle(*engine, unused);
  engine->reset_prefix_cache();
  const EngineStats stats = stats_when_idle(*engine, [](const EngineStats& s) { return s.pages_free == s.pages_total; });
  EXPECT_EQ(stats.pages_cached, 0);
  EXPECT_EQ(stats.pages_free, stats.pages_total);
  EXPECT_EQ(stats.snapshots, 0);
}

TEST(Engine, RequestsLargerThanTheCacheAreNoFullQueue) {
  const auto engine = make_engine([](EngineOptions& o) { o.kv_cache_memory = int64_t{1} << 20; });
  const int64_t positions = engine->stats().pages_total * engine->model().page_tokens;
  ASSERT_LT(positions, engine->model().max_model_len) << "the cache holds less than one request may have";
  const auto refused = engine->submit(request_of(*engine, "Hello.", positions));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), StatusCode::kOutOfRange);
  EXPECT_NE(refused.error().message().find("the KV cache has"), std::string::npos) << refused.error().message();
  EXPECT_EQ(engine->stats().refused, 0);
}

TEST(Engine, CreateNamesWhatDoesNotFit) {
  const auto error = [](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options;
    options.model = nano_dir();
    change(options);
    const auto engine = Engine::Create(options);
    return engine ? std::string("no error") : engine.error().message();
  };
  EXPECT_NE(error([](auto& o) { o.model = "/nowhere"; }).find("/nowhere"), std::string::npos);
  EXPECT_NE(error([](auto& o) { o.max_model_len = 10'000; }).find("max_position_embeddings is 8192"), std::string::npos);
  EXPECT_NE(error([](auto& o) { o.kv_cache_memory = 100; }).find("100"), std::string::npos);
  EXPECT_NE(error([](auto& o) { o.decoder_keep_tokens = 3; }).find("sliding window, 32"), std::string::npos);
  EXPECT_NE(error([](auto& o) { o.max_num_batched_tokens = 100; }).find("max_num_seqs"), std::string::npos);
  EXPECT_NE(error([](auto& o) { o.num_speculative_tokens = 60; }).find("draft block"), std::string::npos);
}

// The whole way, in the default (bounded) mode: how many drafts are verified, or whether any are, changes nothing but the
// counters.
TEST(Engine, SpeculationChangesNothing) {
  std::vector<Whole> want;
  for (const auto& [mode, drafts] : std::initializer_list<std::pair<SpeculationMode, int64_t>>{{SpeculationMode::kOff, -1},
                                                                                               {SpeculationMode::kFixed, -1},
                                                                                               {SpeculationMode::kFixed, 2},
                                                                                               {SpeculationMode::kVariable, -1},
                                                                                               {SpeculationMode::kFixed, 0}}) {
    const auto engine = make_engine([mode = mode, drafts = drafts](EngineOptions& o) {
      o.speculation = mode;
      o.num_speculative_tokens = drafts;
    });
    EXPECT_EQ(engine->options().decoder_keep_tokens, 44) << "what is drafted has no say in what is run";
    std::vector<RequestHandle> handles;
    for (uint64_t i = 0; i < 8; ++i) {
      Request r = request_of(*engine, "Tell me a story about a fox and a lamp. " + std::string(40 * i, 'a'), 50, i);
      r.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      handles.push_back(*engine->submit(std::move(r)));
    }
    std::vector<Whole> got;
    for (RequestHandle& h : handles) got.push_back(read_all(h));
    const EngineStats stats = engine->stats();
    if (mode == SpeculationMode::kOff) {
      want = got;
      EXPECT_EQ(stats.drafts, 0);
      continue;
    }
    EXPECT_EQ(stats.drafts > 0, drafts != 0);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
      EXPECT_EQ(got[i].text, want[i].text) << i;
      EXPECT_LE(got[i].usage.accepted_tokens, got[i].usage.drafted_tokens);
    }
  }
}

}  // namespace
}  // namespace deepinfer::testing
