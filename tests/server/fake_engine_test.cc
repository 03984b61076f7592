#include "server/fake_engine.h"

#include <gtest/gtest.h>

#include "server/test_server.h"

namespace deepinfer {
namespace {

using server::FakeEngineOptions;

std::unique_ptr<Engine> make(const FakeEngineOptions& fake, int64_t max_num_seqs = 256) {
  EngineOptions options;
  options.model = "fake";
  options.max_num_seqs = max_num_seqs;
  return server::make_fake_engine(testing::nano_tokenizer(), options, fake);
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
};

Answer read(RequestHandle handle) {
  Answer a;
  while (const auto output = handle.next()) {
    a.text += output->text;
    a.tokens.insert(a.tokens.end(), output->tokens.begin(), output->tokens.end());
    if (output->finish.has_value()) a.finish = output->finish;
  }
  return a;
}

TEST(FakeEngine, SaysWhatItIsTold) {
  const auto engine = make({.rate = 0, .tokens = 4, .text = "one two "});
  Request request;
  request.prompt = *engine->encode_chat("hello");
  const Answer plain = read(*engine->submit(request));
  EXPECT_EQ(plain.tokens.size(), 4U);
  EXPECT_EQ(plain.finish, FinishReason::kStop);
  request.max_tokens = 2;
  EXPECT_EQ(read(*engine->submit(request)).finish, FinishReason::kLength);
  request.max_tokens.reset();
  request.prompt = *engine->encode_chat("say [[reply]]exactly <this> ünïcode 🎉[[/reply]]");
  EXPECT_EQ(read(*engine->submit(request)).text, "exactly <this> ünïcode 🎉");
  request.skip_special_tokens = false;
  request.prompt = *engine->encode_chat("hello", true);
  EXPECT_NE(read(*engine->submit(request)).text.find("</think>"), std::string::npos);
}

TEST(FakeEngine, RateCancelAndShutdown) {
  const auto engine = make({.rate = 100, .tokens = 20}, 2);
  Request request;
  request.prompt = *engine->encode_chat("hello");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(read(*engine->submit(request)).tokens.size(), 20U);
  EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0.19);
  request.max_tokens = 1'000'000;
  request.ignore_eos = true;
  RequestHandle running = *engine->submit(request);
  running.next();
  running.cancel();
  EXPECT_EQ(read(running).finish, FinishReason::kCancelled);
  RequestHandle open = *engine->submit(request);
  engine->shutdown(Engine::Shutdown::kCancel);
  EXPECT_EQ(read(open).finish, FinishReason::kCancelled);
  EXPECT_FALSE(engine->submit(request));
}

}  // namespace
}  // namespace deepinfer
