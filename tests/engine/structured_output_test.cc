// Structured output through the public API: forms are compiled beside the engine, and errors come through the handle.

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "deepinfer/engine.h"
#include "engine/form_compiler.h"
#include "engine/request_stream.h"
#include "testing/paths.h"

namespace deepinfer::testing {
namespace {

std::unique_ptr<Engine> make_engine() {
  EngineOptions options;
  options.model = nano_dir();
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 128;
  options.kv_cache_memory = int64_t{64} << 20;
  auto engine = Engine::Create(options);
  if (!engine) throw std::runtime_error(engine.error().message());
  return *std::move(engine);
}

Request request_of(const Engine& engine, grammar::GrammarSpec form, uint64_t seed = 1) {
  Request request;
  request.prompt = *engine.encode_chat("Tell me a story.");
  request.max_tokens = 200;
  request.seed = seed;
  request.structured_output = StructuredOutput{.form = std::move(form)};
  return request;
}

struct Whole {
  std::string text;
  std::optional<FinishReason> finish;
  Status error;
};

Whole read_all(RequestHandle handle) {
  Whole whole;
  while (const auto output = handle.next()) {
    whole.text += output->text;
    whole.finish = output->finish;
    whole.error = output->error;
  }
  return whole;
}

grammar::JsonSchemaSpec person() {
  return {R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer",
    "minimum": 0, "maximum": 150}}, "required": ["name", "age"], "additionalProperties": false})"};
}

TEST(StructuredOutputApi, JsonOfASchema) {
  const auto engine = make_engine();
  std::vector<RequestHandle> handles;
  for (uint64_t seed = 0; seed < 8; ++seed) handles.push_back(*engine->submit(request_of(*engine, person(), seed)));
  for (RequestHandle& handle : handles) {
    const Whole answer = read_all(handle);
    EXPECT_EQ(answer.finish, FinishReason::kStop) << answer.text;
    EXPECT_TRUE(handle.prepared());
    const auto json = nlohmann::json::parse(answer.text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << answer.text;
    EXPECT_TRUE(json["name"].is_string() && json["age"].is_number_integer() && json.size() == 2) << answer.text;
  }
  EXPECT_GT(engine->stats().masks.count, 0);
}

TEST(StructuredOutputApi, ErrorsOfTheFormComeThroughTheHandle) {
  const auto engine = make_engine();
  struct Case {
    grammar::GrammarSpec form;
    StatusCode code;
    std::string part;
  };
  for (const Case& c : {Case{grammar::JsonSchemaSpec{R"({"type": "array", "items": {"type": "array", "uniqueItems": true}})"},
                             StatusCode::kUnimplemented, "uniqueItems"},
                        Case{grammar::JsonSchemaSpec{"{\"type\": "}, StatusCode::kInvalidArgument, "schema"},
                        Case{grammar::RegexSpec{"(a"}, StatusCode::kInvalidArgument, ""},
                        Case{grammar::EbnfSpec{"root ::= missing"}, StatusCode::kInvalidArgument, "missing"},
                        Case{grammar::ChoiceSpec{}, StatusCode::kInvalidArgument, "choice"}}) {
    auto handle = engine->submit(request_of(*engine, c.form));
    ASSERT_TRUE(handle.has_value()) << handle.error().message();
    const Whole answer = read_all(*handle);
    EXPECT_EQ(answer.finish, FinishReason::kError);
    EXPECT_EQ(answer.error.code(), c.code) << answer.error.message();
    EXPECT_NE(answer.error.message().find(c.part), std::string::npos) << answer.error.message();
    EXPECT_EQ(answer.text, "");
  }
  // The engine goes on.
  EXPECT_EQ(read_all(*engine->submit(request_of(*engine, grammar::RegexSpec{"ok"}))).text, "ok");
  EXPECT_EQ(engine->stats().preparing, 0);
}

TEST(StructuredOutputApi, WhatIsNotEnforcedIsTold) {
  const auto engine = make_engine();
  grammar::JsonSchemaSpec schema{R"({"type": "array", "items": {"type": "boolean"}, "maxItems": 3, "uniqueItems": true})"};
  schema.strict = false;
  for (int time = 0; time < 2; ++time) {  // compiled, and from the cache
    auto handle = *engine->submit(request_of(*engine, schema));
    EXPECT_EQ(read_all(handle).finish, FinishReason::kStop);
    ASSERT_EQ(handle.unenforced().size(), 1u);
    EXPECT_NE(handle.unenforced()[0].find("uniqueItems"), std::string::npos) << handle.unenforced()[0];
  }
}

TEST(StructuredOutputApi, DrainWaitsForFormsAndCancelDoesNot) {
  auto engine = make_engine();
  auto handle = *engine->submit(request_of(*engine, person()));
  engine->shutdown();
  EXPECT_EQ(read_all(handle).finish, FinishReason::kStop);
  engine = make_engine();
  handle = *engine->submit(request_of(*engine, person()));
  auto second = *engine->submit(request_of(*engine, grammar::RegexSpec{"[ab]{30}"}));
  engine->cancel(second.id());
  engine->shutdown(Engine::Shutdown::kCancel);
  const auto finish = read_all(handle).finish;
  EXPECT_TRUE(finish == FinishReason::kCancelled || finish == FinishReason::kStop);
  EXPECT_EQ(read_all(second).finish, FinishReason::kCancelled);
}

std::shared_ptr<ActiveRequest> active(RequestId id, grammar::GrammarSpec form) {
  auto out = std::make_shared<ActiveRequest>();
  out->id = id;
  out->request.structured_output = StructuredOutput{.form = std::move(form)};
  return out;
}

TEST(FormCompiler, QueueIsBoundedAndTheGoneAreSkipped) {
  auto tokenizer = Tokenizer::Load(nano_dir() + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.has_value());
  std::mutex mutex;
  std::condition_variable news;
  std::vector<RequestId> done;
  bool go = false;
  FormCompiler::Options options;
  options.threads = 1;
  options.max_queued = 3;
  options.max_queued_bytes = 100;
  FormCompiler compiler(*tokenizer, 1, (*tokenizer)->vocab_size(), options, [&](RequestId id, const FormResult& form) {
    EXPECT_TRUE(form.has_value());
    std::unique_lock lock(mutex);
    done.push_back(id);
    news.notify_all();
    news.wait(lock, [&] { return go; });
  });
  const auto first = active(1, grammar::RegexSpec{"a"});
  ASSERT_TRUE(compiler.submit(first).ok());
  {
    std::unique_lock lock(mutex);
    news.wait(lock, [&] { return done.size() == 1; });  // the thread is held
  }
  const auto second = active(2, grammar::RegexSpec{"b"});
  auto third = active(3, grammar::RegexSpec{"c"});
  ASSERT_TRUE(compiler.submit(second).ok());
  ASSERT_TRUE(compiler.submit(third).ok());
  EXPECT_EQ(compiler.submit(active(9, grammar::RegexSpec{std::string(99, 'd')})).code(), StatusCode::kUnavailable);
  const auto last = active(4, grammar::RegexSpec{"e"});
  ASSERT_TRUE(compiler.submit(last).ok());
  EXPECT_EQ(compiler.submit(active(10, grammar::RegexSpec{"f"})).code(), StatusCode::kUnavailable);
  third.reset();
  std::unique_lock lock(mutex);
  go = true;
  news.notify_all();
  news.wait(lock, [&] { return done.size() == 3; });
  EXPECT_EQ(done, (std::vector<RequestId>{1, 2, 4}));
  EXPECT_NE(compiler.find(*first->request.structured_output), nullptr);
  EXPECT_EQ(compiler.find({.form = grammar::RegexSpec{"c"}}), nullptr);
}

}  // namespace
}  // namespace deepinfer::testing
