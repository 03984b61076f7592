#include "engine/request_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

namespace deepinfer {
namespace {

using std::chrono::milliseconds;

Output piece(int64_t index, std::vector<int32_t> tokens, std::string text = "", std::optional<FinishReason> finish = {}) {
  Output o;
  o.request = 7;
  o.index = index;
  o.tokens = std::move(tokens);
  o.text = std::move(text);
  o.finish = finish;
  return o;
}

std::shared_ptr<RequestStream> make(int64_t choices = 1) {
  return std::make_shared<RequestStream>(7, choices, [](RequestId) {});
}

TEST(RequestStreamTest, NewsComeInOrder) {
  RequestHandle handle(nullptr);
  const auto stream = make();
  handle = RequestHandle(stream);
  EXPECT_EQ(handle.id(), 7u);
  EXPECT_FALSE(handle.poll().has_value());
  EXPECT_FALSE(handle.finished());
  stream->push(piece(0, {1}, "a"));
  auto o = handle.next();
  ASSERT_TRUE(o.has_value());
  EXPECT_EQ(o->tokens, std::vector<int32_t>{1});
  EXPECT_EQ(o->text, "a");
  EXPECT_FALSE(o->finish.has_value());
  EXPECT_FALSE(handle.poll().has_value());
  stream->push(piece(0, {2}, "b", FinishReason::kStop));
  EXPECT_FALSE(handle.finished()) << "not everything has been read";
  o = handle.poll();
  ASSERT_TRUE(o.has_value());
  EXPECT_EQ(o->tokens, std::vector<int32_t>{2});
  EXPECT_EQ(o->finish, FinishReason::kStop);
  EXPECT_TRUE(handle.finished());
  // Nothing after the end, and no waiting for it.
  EXPECT_FALSE(handle.next().has_value());
  EXPECT_FALSE(handle.poll().has_value());
  EXPECT_FALSE(handle.next_for(std::chrono::hours(1)).has_value());
}

TEST(RequestStreamTest, UnreadNewsAreMerged) {
  const auto stream = make();
  for (int i = 0; i < 1000; ++i) {
    Output o = piece(0, {i}, "x");
    o.logprobs.push_back({.chosen = {.token = i, .logprob = -1.0f, .rank = 1}, .top = {}});
    if (i < 3) o.prompt_logprobs.push_back({.chosen = {.token = 100 + i, .logprob = -2.0f, .rank = 1}, .top = {}});
    o.usage.completion_tokens = i + 1;
    stream->push(std::move(o));
  }
  Output last = piece(0, {1000}, "y", FinishReason::kError);
  last.stop_reason = std::string("stop");
  last.error = Status::Internal("broken");
  last.usage.completion_tokens = 1001;
  last.usage.seed = 5;
  stream->push(std::move(last));

  const auto o = stream->poll();
  ASSERT_TRUE(o.has_value());
  ASSERT_EQ(o->tokens.size(), 1001u);
  for (int i = 0; i <= 1000; ++i) ASSERT_EQ(o->tokens[static_cast<size_t>(i)], i);
  EXPECT_EQ(o->text, std::string(1000, 'x') + "y");
  ASSERT_EQ(o->text_ends.size(), 1001u);
  for (int64_t i = 0; i <= 1000; ++i) ASSERT_EQ(o->text_ends[static_cast<size_t>(i)], i + 1);
  EXPECT_EQ(o->logprobs.size(), 1000u);
  EXPECT_EQ(o->logprobs[999].chosen.token, 999);
  ASSERT_EQ(o->prompt_logprobs.size(), 3u);
  EXPECT_EQ(o->prompt_logprobs[2].chosen.token, 102);
  EXPECT_EQ(o->finish, FinishReason::kError);
  EXPECT_EQ(std::get<std::string>(o->stop_reason), "stop");
  EXPECT_EQ(o->error.message(), "broken");
  EXPECT_EQ(o->usage.completion_tokens, 1001);
  EXPECT_EQ(o->usage.seed, 5u);
  EXPECT_EQ(o->request, 7u);
  EXPECT_FALSE(stream->poll().has_value()) << "at most one pending output a choice";
  EXPECT_TRUE(stream->finished());
}

TEST(RequestStreamTest, SeveralChoices) {
  const auto stream = make(3);
  stream->push(piece(2, {20}));
  stream->push(piece(0, {1}));
  stream->push(piece(2, {21}));
  stream->push(piece(1, {10}, "", FinishReason::kLength));
  stream->push(piece(0, {2}));
  // The oldest news first; each choice once.
  EXPECT_EQ(stream->poll()->tokens, (std::vector<int32_t>{20, 21}));
  stream->push(piece(2, {22}));
  EXPECT_EQ(stream->poll()->tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(stream->poll()->index, 1);
  EXPECT_EQ(stream->poll()->tokens, (std::vector<int32_t>{22}));
  EXPECT_FALSE(stream->poll().has_value());
  EXPECT_FALSE(stream->finished());
  stream->push(piece(0, {}, "", FinishReason::kCancelled));
  stream->push(piece(2, {}, "", FinishReason::kCancelled));
  EXPECT_FALSE(stream->finished());
  EXPECT_EQ(stream->poll()->index, 0);
  EXPECT_EQ(stream->poll()->index, 2);
  EXPECT_TRUE(stream->finished());
}

TEST(RequestStreamTest, UsageNeverGoesBack) {
  const auto stream = make(2);
  int64_t tokens = 0;
  const auto push = [&](int64_t choice, std::optional<FinishReason> finish = {}) {
    Output output = piece(choice, {7}, "", finish);
    output.usage.completion_tokens = ++tokens;
    stream->push(std::move(output));
  };
  push(1);
  push(0, FinishReason::kLength);
  push(1, FinishReason::kLength);  // merged into what is read first
  EXPECT_EQ(stream->poll()->usage.completion_tokens, 3);
  EXPECT_EQ(stream->poll()->usage.completion_tokens, 3);
}

TEST(RequestStreamTest, WaitsNoLongerThanAsked) {
  const auto stream = make();
  RequestHandle handle(stream);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(handle.next_for(milliseconds(20)).has_value());
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(20));
  EXPECT_FALSE(handle.next_for(milliseconds(0)).has_value());
  EXPECT_FALSE(handle.next_for(milliseconds(-5)).has_value());
  EXPECT_FALSE(handle.next_for(std::chrono::nanoseconds::min()).has_value());
  stream->push(piece(0, {1}));
  EXPECT_TRUE(handle.next_for(milliseconds(0)).has_value());
}

TEST(RequestStreamTest, WaitsAsLongAsAnybodyCanAsk) {
  const auto stream = make();
  RequestHandle handle(stream);
  std::thread writer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    stream->push(piece(0, {1}));
  });
  EXPECT_TRUE(handle.next_for(std::chrono::nanoseconds::max()).has_value()) << "must not overflow into the past";
  writer.join();
}

TEST(RequestStreamTest, CancelIsPassedOn) {
  std::vector<RequestId> cancelled;
  const auto stream = std::make_shared<RequestStream>(42, 1, [&](RequestId id) { cancelled.push_back(id); });
  RequestHandle handle(stream), copy = handle;
  handle.cancel();
  copy.cancel();
  stream->push(piece(0, {}, "", FinishReason::kCancelled));
  handle.next();
  handle.cancel();  // harmless when it has ended
  EXPECT_EQ(cancelled, (std::vector<RequestId>{42, 42, 42}));
}

TEST(RequestStreamTest, TheCallbackIsCalledWheneverThereIsNews) {
  const auto stream = make(2);
  int calls = 0;
  stream->set_callback([&] { ++calls; });
  EXPECT_EQ(calls, 0) << "no news yet";
  stream->push(piece(0, {1}));
  stream->push(piece(0, {2}));
  EXPECT_EQ(calls, 2);
  // Called at once if there is news now.
  int others = 0;
  stream->set_callback([&] { ++others; });
  EXPECT_EQ(others, 1);
  EXPECT_EQ(calls, 2);
  stream->poll();
  stream->set_callback([&] { ++calls; });
  EXPECT_EQ(calls, 2) << "everything has been read";
  stream->set_callback({});
  stream->push(piece(0, {}, "", FinishReason::kStop));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(others, 1);
  stream->set_callback([&] { ++others; });
  EXPECT_EQ(others, 2) << "the last output waits";
}

TEST(RequestStreamTest, TheCallbackMayUseTheStream) {
  const auto stream = make();
  std::vector<int32_t> tokens;
  bool ended = false;
  stream->set_callback([&] {
    while (const auto o = stream->poll()) {
      tokens.insert(tokens.end(), o->tokens.begin(), o->tokens.end());
      if (o->finish.has_value()) ended = true;
    }
    if (ended) stream->set_callback({});  // replaces itself while it is called
    stream->cancel();
  });
  for (int i = 0; i < 10; ++i) stream->push(piece(0, {i}));
  stream->push(piece(0, {10}, "", FinishReason::kStop));
  EXPECT_EQ(tokens.size(), 11u);
  EXPECT_TRUE(stream->finished());
}

TEST(RequestStreamTest, ACallbackUnderWayOutlivesItsReplacement) {
  const auto stream = make();
  auto state = std::make_shared<std::atomic<int>>(0);
  std::atomic<bool> inside{false}, replaced{false};
  stream->set_callback([state, &inside, &replaced] {
    inside = true;
    while (!replaced) std::this_thread::yield();
    state->fetch_add(1);  // what it captured is still there
  });
  std::thread writer([&] { stream->push(piece(0, {1})); });
  while (!inside) std::this_thread::yield();
  stream->set_callback({});
  replaced = true;
  writer.join();
  EXPECT_EQ(state->load(), 1);
  EXPECT_EQ(state.use_count(), 1) << "and is gone when it has returned";
}

TEST(RequestStreamTest, HandlesKeepTheStream) {
  auto stream = make();
  RequestHandle handle(stream);
  const std::weak_ptr<RequestStream> watch = stream;
  stream->push(piece(0, {1}, "", FinishReason::kStop));
  stream.reset();
  RequestHandle copy = handle;
  handle = RequestHandle();
  EXPECT_TRUE(copy.next().has_value());
  EXPECT_TRUE(copy.finished());
  copy = RequestHandle();
  EXPECT_TRUE(watch.expired());
}

TEST(RequestStreamTest, ReadersWaitForTheWriter) {
  constexpr int kTokens = 3000;
  constexpr int64_t kChoices = 3;
  const auto stream = make(kChoices);
  std::thread writer([&] {
    for (int i = 0; i < kTokens; ++i) {
      for (int64_t c = 0; c < kChoices; ++c)
        stream->push(piece(c, {i}, "t", i + 1 == kTokens ? std::optional(FinishReason::kLength) : std::nullopt));
    }
  });
  std::map<int64_t, std::vector<int32_t>> tokens;
  int finishes = 0;
  RequestHandle handle(stream);
  while (const auto o = handle.next()) {
    auto& all = tokens[o->index];
    all.insert(all.end(), o->tokens.begin(), o->tokens.end());
    finishes += o->finish.has_value() ? 1 : 0;
  }
  writer.join();
  EXPECT_TRUE(handle.finished());
  EXPECT_EQ(finishes, kChoices);
  for (int64_t c = 0; c < kChoices; ++c) {
    ASSERT_EQ(tokens[c].size(), static_cast<size_t>(kTokens));
    for (int i = 0; i < kTokens; ++i) ASSERT_EQ(tokens[c][static_cast<size_t>(i)], i);
  }
}

TEST(RequestStreamTest, ManyReadersOneWriter) {
  constexpr int kTokens = 3000;
  std::atomic<int> cancels{0};
  const auto stream = std::make_shared<RequestStream>(7, 2, [&](RequestId) { ++cancels; });
  std::atomic<int> read{0}, calls{0}, finishes{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      RequestHandle handle(stream);
      while (!handle.finished()) {
        std::optional<Output> o;
        if (r == 0) o = handle.next();
        if (r == 1) o = handle.next_for(std::chrono::microseconds(50));
        if (r == 2) o = handle.poll();
        if (!o.has_value()) continue;
        read += static_cast<int>(o->tokens.size());
        finishes += o->finish.has_value() ? 1 : 0;
      }
    });
  }
  std::thread replacer([&] {
    do {  // once at least, however late the thread comes to run
      auto state = std::make_shared<int>(1);
      stream->set_callback([state, &calls] { calls += *state; });
      stream->cancel();
      stream->set_callback({});
    } while (!over);
  });
  std::thread writer([&] {
    for (int i = 0; i < kTokens; ++i) {
      for (int64_t c = 0; c < 2; ++c)
        stream->push(piece(c, {i}, "t", i + 1 == kTokens ? std::optional(FinishReason::kStop) : std::nullopt));
    }
  });
  writer.join();
  for (auto& reader : readers) reader.join();
  over = true;
  replacer.join();
  EXPECT_EQ(read.load(), 2 * kTokens) << "every token is read once";
  EXPECT_EQ(finishes.load(), 2);
  EXPECT_GT(cancels.load(), 0);
}

TEST(RequestStreamTest, AllWaitersWakeAtTheEnd) {
  const auto stream = make();
  std::vector<std::thread> readers;
  std::atomic<int> outputs{0};
  for (int r = 0; r < 4; ++r) {
    readers.emplace_back([&] {
      while (stream->wait(std::nullopt).has_value()) ++outputs;
    });
  }
  std::this_thread::sleep_for(milliseconds(5));
  stream->push(piece(0, {1}, "", FinishReason::kStop));
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(outputs.load(), 1);
}

}  // namespace
}  // namespace deepinfer
