// Every route, streaming and not, over a real socket.

#include <gtest/gtest.h>

#include "server/test_server.h"

namespace deepinfer {
namespace {

using testing::call;
using testing::chat_body;
using testing::HttpReply;
using testing::parse_sse;
using testing::TestServer;
using testing::TestServerOptions;
using Json = nlohmann::json;

TestServer& shared() {
  static TestServer server(TestServerOptions{.fake = {.rate = 0, .tokens = 12, .text = "one two three "}});
  return server;
}

std::string chat_text(const std::string& sse) {
  std::string text;
  for (const auto& event : parse_sse(sse)) {
    if (event.data == "[DONE]") continue;
    const Json chunk = Json::parse(event.data);
    const Json& delta = chunk["choices"][0]["delta"];
    if (delta.contains("content") && delta["content"].is_string()) text += delta["content"].get<std::string>();
  }
  return text;
}

TEST(Endpoints, ChatCompletion) {
  const HttpReply reply = call(shared().port(), "POST", "/v1/chat/completions", chat_body("hello"));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("content-type"), "application/json");
  const Json json = reply.json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "fake");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_TRUE(json["choices"][0]["message"]["content"].get<std::string>().starts_with("one two three")) << reply.body;
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_GT(json["usage"]["prompt_tokens"], 0);
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
  EXPECT_EQ(call(shared().port(), "POST", "/chat/completions", chat_body("hello")).status, 200);
}

TEST(Endpoints, ChatCompletionStream) {
  const HttpReply whole = call(shared().port(), "POST", "/v1/chat/completions", chat_body("hello"));
  const HttpReply reply = call(shared().port(), "POST", "/v1/chat/completions", chat_body("hello", {{"stream", true}}));
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.header("content-type"), "text/event-stream");
  EXPECT_EQ(reply.header("cache-control"), "no-cache");
  EXPECT_EQ(parse_sse(reply.body).back().data, "[DONE]");
  EXPECT_EQ(chat_text(reply.body), whole.json()["choices"][0]["message"]["content"]);
}

TEST(Endpoints, ChatWithToolsThinkingAndChoices) {
  const std::string call_text =
      "[[reply]]I look.</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"weather\">\n<｜DSML｜ parameter name=\"city\" "
      "string=\"true\">Rome</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>[[/reply]]";
  const Json tools = {{{"type", "function"}, {"function", {{"name", "weather"}, {"parameters", {{"type", "object"}}}}}}};
  const Json json = call(shared().port(), "POST", "/v1/chat/completions",
                         chat_body(call_text, {{"tools", tools}, {"thinking", {{"type", "enabled"}}}}))
                        .json();
  const Json& message = json["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "I look.") << json;
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "weather") << json;
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Rome\"}") << json;
  EXPECT_EQ(json["choices"][0]["finish_reason"], "tool_calls");
  const Json three = call(shared().port(), "POST", "/v1/chat/completions", chat_body("hello", {{"n", 3}})).json();
  ASSERT_EQ(three["choices"].size(), 3U) << three;
  EXPECT_EQ(three["choices"][2]["index"], 2);
}

TEST(Endpoints, Completions) {
  const Json body = {{"model", "fake"}, {"prompt", "Once"}, {"max_tokens", 3}};
  const Json json = call(shared().port(), "POST", "/v1/completions", body.dump()).json();
  EXPECT_EQ(json["object"], "text_completion") << json;
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length") << json;
  const Json several = {{"model", "fake"}, {"prompt", {"a", "b"}}, {"max_tokens", 2}, {"n", 2}, {"echo", true}, {"logprobs", 1}};
  const HttpReply reply = call(shared().port(), "POST", "/v1/completions", several.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["choices"].size(), 4U) << reply.body;
  Json stream = several;
  stream["stream"] = true;
  const HttpReply streamed = call(shared().port(), "POST", "/v1/completions", stream.dump());
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(parse_sse(streamed.body).back().data, "[DONE]");
}

TEST(Endpoints, PromptLogprobsAndTruncation) {
  const Json more = {{"model", "fake"}, {"max_tokens", 2}, {"prompt_logprobs", 1}, {"truncate_prompt_tokens", 4}};
  Json body = more;
  body["prompt"] = {"Once upon a time there was", "b"};
  body["echo"] = true;
  const Json completion = call(shared().port(), "POST", "/v1/completions", body.dump()).json();
  ASSERT_EQ(completion["choices"].size(), 2U) << completion;
  EXPECT_EQ(completion["choices"][0]["prompt_logprobs"].size(), 4U) << completion;
  EXPECT_FALSE(completion["choices"][0]["text"].get<std::string>().starts_with("Once")) << "what is not read is not echoed";
  body = more;
  body["messages"] = {{{"role", "user"}, {"content", "Once upon a time"}}};
  const Json chat = call(shared().port(), "POST", "/v1/chat/completions", body.dump()).json();
  EXPECT_EQ(chat["usage"]["prompt_tokens"], 4) << chat;
  ASSERT_EQ(chat["prompt_logprobs"].size(), 4U) << chat;
  EXPECT_EQ(chat["prompt_logprobs"][0], nullptr);
  EXPECT_EQ(chat["prompt_logprobs"][1].begin().value()["rank"], 1) << chat;
}

TEST(Endpoints, MessagesAndCount) {
  const Json body = {{"model", "claude-sonnet"}, {"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", "hello"}}}}};
  const HttpReply reply = call(shared().port(), "POST", "/v1/messages", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["type"], "message");
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  EXPECT_EQ(json["content"][0]["type"], "text") << json;
  EXPECT_EQ(reply.header("request-id"), reply.header("x-request-id"));
  const Json count = call(shared().port(), "POST", "/v1/messages/count_tokens", body.dump()).json();
  EXPECT_EQ(count["input_tokens"], json["usage"]["input_tokens"]);

  Json stream = body;
  stream["stream"] = true;
  const auto events = parse_sse(call(shared().port(), "POST", "/v1/messages", stream.dump()).body);
  ASSERT_GT(events.size(), 4U);
  EXPECT_EQ(events.front().name, "message_start");
  EXPECT_EQ(events.back().name, "message_stop");
  for (const auto& event : events) EXPECT_EQ(Json::parse(event.data)["type"], event.name);
}

TEST(Endpoints, Responses) {
  const Json body = {{"model", "fake"}, {"input", "hello"}, {"reasoning", {{"effort", "none"}}}};
  const HttpReply reply = call(shared().port(), "POST", "/v1/responses", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["status"], "completed");
  const std::string id = json["id"];
  EXPECT_TRUE(id.starts_with("resp_"));
  // The store is told right after the reply is written.
  HttpReply stored;
  EXPECT_TRUE(testing::eventually([&] {
    stored = call(shared().port(), "GET", "/v1/responses/" + id);
    return stored.status == 200 && stored.json()["status"] == "completed";
  }));
  EXPECT_EQ(stored.json(), json);
  EXPECT_EQ(call(shared().port(), "POST", "/v1/responses/" + id + "/cancel").json()["status"], "completed");
  EXPECT_EQ(call(shared().port(), "GET", "/v1/responses/resp_none").status, 404);
  EXPECT_EQ(call(shared().port(), "POST", "/v1/responses/resp_none/cancel").status, 404);
  const Json count = call(shared().port(), "POST", "/v1/responses/input_tokens", body.dump()).json();
  EXPECT_EQ(count["object"], "response.input_tokens");
  EXPECT_EQ(count["input_tokens"], json["usage"]["input_tokens"]);

  Json stream = body;
  stream["stream"] = true;
  const auto events = parse_sse(call(shared().port(), "POST", "/v1/responses", stream.dump()).body);
  ASSERT_GT(events.size(), 4U);
  EXPECT_EQ(events.front().name, "response.created");
  EXPECT_EQ(events.back().name, "response.completed");
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(Json::parse(events[i].data)["sequence_number"], i);
}

TEST(Endpoints, ResponseCancelledWhileRunning) {
  TestServer server(TestServerOptions{.fake = {.rate = 20, .tokens = 100000}});
  testing::RawClient client(server.port());
  const Json body = {{"model", "fake"}, {"input", "hello"}, {"stream", true}, {"reasoning", {{"effort", "none"}}}};
  client.send(testing::request_text("POST", "/v1/responses", body.dump()));
  std::string text;
  ASSERT_TRUE(testing::eventually([&] { return (text += client.read_some()).find("response.created") != std::string::npos; }));
  const size_t at = text.find("resp_");
  const std::string id = text.substr(at, text.find('"', at) - at);
  EXPECT_EQ(call(server.port(), "GET", "/v1/responses/" + id).json()["status"], "in_progress");
  EXPECT_EQ(call(server.port(), "POST", "/v1/responses/" + id + "/cancel").json()["status"], "cancelled");
  EXPECT_TRUE(testing::eventually([&] { return server.quiet(); }));
  EXPECT_EQ(call(server.port(), "GET", "/v1/responses/" + id).json()["status"], "cancelled");
}

TEST(Endpoints, Models) {
  const Json list = call(shared().port(), "GET", "/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "fake");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_GT(list["data"][0]["max_model_len"], 0);
  const Json anthropic = call(shared().port(), "GET", "/v1/models", "", {{"anthropic-version", "2023-06-01"}}).json();
  EXPECT_EQ(anthropic["data"][0]["type"], "model");
  EXPECT_EQ(anthropic["has_more"], false);
  EXPECT_EQ(call(shared().port(), "GET", "/v1/models/fake").json()["id"], "fake");
  EXPECT_EQ(call(shared().port(), "GET", "/v1/models/other").status, 404);
  EXPECT_EQ(call(shared().port(), "GET", "/v1/models/other", "", {{"anthropic-version", "2023-06-01"}}).json()["type"], "error");
}

TEST(Endpoints, ServedNames) {
  TestServerOptions options;
  options.server.served_model_names = {"deepseek-flash", "org/alias"};
  TestServer server(options);
  EXPECT_EQ(call(server.port(), "GET", "/v1/models").json()["data"].size(), 2U);
  EXPECT_EQ(call(server.port(), "GET", "/v1/models/org%2Falias").json()["id"], "org/alias");
  const HttpReply other = call(server.port(), "POST", "/v1/chat/completions", chat_body("hello"));
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.json()["error"]["code"], "model_not_found");
  EXPECT_EQ(call(server.port(), "POST", "/v1/chat/completions", chat_body("hello", {{"model", "org/alias"}})).json()["model"],
            "org/alias");
}

TEST(Endpoints, TokenizeRoundTrip) {
  const std::string text = "Hello <｜User｜> 中文 🎉\n";
  const Json body = {{"model", "fake"}, {"prompt", text}, {"add_special_tokens", false}, {"return_token_strs", true}};
  const HttpReply reply = call(shared().port(), "POST", "/tokenize", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = reply.json();
  EXPECT_EQ(json["count"], json["tokens"].size());
  EXPECT_EQ(json["token_strs"].size(), json["tokens"].size());
  const Json back = {{"tokens", json["tokens"]}};
  EXPECT_EQ(call(shared().port(), "POST", "/detokenize", back.dump()).json()["prompt"], text);
  // A chat counts as its prompt does, model or no model.
  const Json chat = call(shared().port(), "POST", "/tokenize", R"({"messages":[{"role":"user","content":"hello"}]})").json();
  EXPECT_EQ(chat["count"],
            call(shared().port(), "POST", "/v1/chat/completions", chat_body("hello")).json()["usage"]["prompt_tokens"]);
  const Json prompt =
      call(shared().port(), "POST", "/apply-template", R"({"messages":[{"role":"user","content":"hello"}]})").json();
  EXPECT_NE(prompt["prompt"].get<std::string>().find("<｜User｜>hello<｜Assistant｜>"), std::string::npos) << prompt;
  for (const char* bad : {R"({"tokens":[-1]})", R"({"tokens":[99999999]})", R"({"tokens":[1.5]})",
                          R"({"tokens":[18446744073709551615]})", R"({"tokens":"x"})", "{}", "[]", "{"})
    EXPECT_EQ(call(shared().port(), "POST", "/detokenize", bad).status, 400) << bad;
  for (const char* bad : {"{}", R"({"prompt":5})", "null"})
    EXPECT_EQ(call(shared().port(), "POST", "/tokenize", bad).status, 400) << bad;
}

TEST(Endpoints, Probes) {
  EXPECT_EQ(call(shared().port(), "GET", "/health").status, 200);
  EXPECT_EQ(call(shared().port(), "GET", "/ready").status, 200);
  const HttpReply head = call(shared().port(), "HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(call(shared().port(), "GET", "/version").json().contains("version"));
  EXPECT_TRUE(call(shared().port(), "GET", "/load").json().contains("server_load"));
}

TEST(Endpoints, ErrorsHaveTheShapeOfTheirApi) {
  const int port = shared().port();
  for (const char* path :
       {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize"}) {
    for (const char* bad : {"", "{", "[]", "nul", "\xff\xfe", R"({"model":"\ud800"})", R"({"model":1})"}) {
      const HttpReply reply = call(port, "POST", path, bad);
      EXPECT_EQ(reply.status, 400) << path << " " << bad << " " << reply.body;
      const Json json = reply.json();
      EXPECT_TRUE(json["error"]["message"].is_string()) << reply.body;
      EXPECT_EQ(json["error"]["type"], "invalid_request_error") << reply.body;
      EXPECT_EQ(json.contains("type"), std::string(path).starts_with("/v1/messages")) << path << reply.body;
    }
  }
  std::string deep(100'000, '[');
  EXPECT_EQ(call(port, "POST", "/v1/chat/completions", deep).status, 400);
  EXPECT_EQ(call(port, "GET", "/nothing").status, 404);
  EXPECT_EQ(call(port, "GET", "/v1/messages/nothing").json()["type"], "error");
  const HttpReply method = call(port, "GET", "/v1/chat/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.header("allow"), "POST");
  EXPECT_EQ(call(port, "POST", "/v1/chat/completions", chat_body("x"), {{"Content-Type", "text/plain"}}).status, 415);
  EXPECT_EQ(call(port, "POST", "/v1/chat/completions", chat_body("x"), {{"Content-Encoding", "gzip"}}).status, 415);
  EXPECT_EQ(call(port, "POST", "/v1/chat/completions", chat_body("x", {{"model", "gpt-4"}})).status, 404);
  EXPECT_EQ(call(port, "POST", "/v1/chat/completions", chat_body("x", {{"max_tokens", int64_t{1} << 40}})).status, 400);
  EXPECT_EQ(call(port, "POST", "/v1/chat/completions", chat_body("x", {{"n", 1000000}})).status, 400);
}

}  // namespace
}  // namespace deepinfer
