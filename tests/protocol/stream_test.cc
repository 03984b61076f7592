// Engine output to events and bodies: the conformance vectors, and what they do not have.

#include <gtest/gtest.h>

#include <algorithm>

#include "protocol/conversation_stream.h"
#include "protocol/custom_tool_input.h"
#include "protocol/engine_output.h"
#include "protocol/vector_checks.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer {
namespace {

using testing::output_of;

Json event_json(const ServerEvent& event) {
  return Json{{"event", event.name.empty() ? Json(nullptr) : Json(event.name)},
              {"data", event.data == "[DONE]" ? Json("[DONE]") : Json::parse(event.data)}};
}

/// Where a delta event keeps its text, and a key that neighbours share; nullptr if it is no delta that may be joined.
Json* delta_text(Json& event, std::string& target) {
  Json& data = event["data"];
  if (!data.is_object()) return nullptr;
  if (data.contains("choices")) {
    Json& choice = data["choices"][0];
    Json& delta = choice["delta"];
    if (!choice["finish_reason"].is_null() || delta.contains("role")) return nullptr;
    if (delta.contains("tool_calls")) {
      Json& call = delta["tool_calls"][0];
      if (call.contains("id")) return nullptr;
      target = "call" + call["index"].dump();
      return &call["function"]["arguments"];
    }
    for (const char* field : {"content", "reasoning_content"}) {
      if (delta.contains(field) && delta[field].is_string()) {
        target = field;
        return &delta[field];
      }
    }
    return nullptr;
  }
  if (data["type"] == "content_block_delta") {
    target = data["index"].dump() + data["delta"]["type"].dump();
    for (const char* field : {"text", "thinking", "partial_json"}) {
      if (data["delta"].contains(field)) return &data["delta"][field];
    }
    return nullptr;
  }
  if (data["type"].get<std::string>().ends_with(".delta")) {
    target = data["type"].dump() + data["item_id"].dump();
    return &data["delta"];
  }
  return nullptr;
}

/// spec §12.2: neighbouring deltas of one kind and target joined, empty ones dropped; sequence numbers checked and dropped.
Json joined(const Json& events) {
  Json out = Json::array();
  int64_t sequence = 0;
  std::string last;
  for (Json event : events) {
    if (event["data"].is_object() && event["data"].contains("sequence_number")) {
      EXPECT_EQ(event["data"]["sequence_number"], sequence++);
      event["data"].erase("sequence_number");
    }
    std::string target;
    Json* const text = delta_text(event, target);
    if (text != nullptr && text->get_ref<const std::string&>().empty()) continue;
    if (text != nullptr && target == last) {
      std::string same;
      *delta_text(out.back(), same) = delta_text(out.back(), same)->get<std::string>() + text->get<std::string>();
      continue;
    }
    last = target;
    out.push_back(std::move(event));
  }
  return out;
}

/// Numbers compare as numbers and the order of keys is free.
nlohmann::json plain(const Json& value) { return nlohmann::json::parse(value.dump()); }

struct Driven {
  Json events = Json::array();
  Json body;
};

ConvertedRequest request_of(const Json& test) {
  ConvertedRequest request;
  request.api = testing::api_of(test);
  request.model = test.at("model");
  request.conversation.thinking = test.at("thinking_mode");
  request.include_usage = test.value("include_usage", false);
  request.custom_tool_names = test.value("custom_tool_names", std::vector<std::string>());
  request.parsing = testing::parsing_options(test.at("options"));
  return request;
}

/// `cut`: 0 leaves the chunks as they are, otherwise text is fed in pieces of so many characters.
Driven drive(const Json& test, size_t cut = 0) {
  ResponseInfo info{
      .id = test.at("response_id"), .created = test.at("created"), .system_fingerprint = {}, .reasoning_usage = false};
  for (const Json& chunk : test.at("inference")) {
    if (chunk.contains("ready")) info.system_fingerprint = chunk["ready"]["system_fingerprint"].get<std::string>();
  }
  ConversationStream stream(request_of(test), info, nullptr);
  Driven out;
  const auto take = [&](const ServerEvents& events) {
    for (const ServerEvent& e : events) out.events.push_back(event_json(e));
  };
  const int64_t now = test.at("completed");
  bool finished = false;
  for (const Json& chunk : test.at("inference")) {
    if (stream.done()) break;
    if (chunk.contains("ready")) {
      take(stream.ready(chunk["ready"]["prompt_tokens"], chunk["ready"]["prompt_cache_hit_tokens"]));
    } else if (chunk.contains("text")) {
      const std::string text = chunk["text"];
      const std::vector<size_t> borders = testing::character_borders(text);
      const size_t step = cut == 0 ? std::max<size_t>(borders.size(), 1) : cut;
      for (size_t i = 0; i + 1 < borders.size(); i += step) {
        const size_t end = borders[std::min(i + step, borders.size() - 1)];
        take(stream.feed(
            0, {.text = text.substr(borders[i], end - borders[i]), .tokens = i == 0 ? chunk["tokens"].get<int64_t>() : 0}, now));
      }
    } else {
      take(stream.feed(0, {.finish = testing::model_finish(chunk["finish"])}, now));
      finished = true;
    }
  }
  if (!finished && !stream.done()) take(stream.feed(0, {.finish = ModelFinish::kEndOfStream}, now));
  EXPECT_TRUE(stream.done());
  EXPECT_TRUE(stream.feed(0, {.text = "more", .tokens = 1}, now).empty());
  out.body = Json::parse(stream.body());
  return out;
}

}  // namespace

void testing::check_stream(const Json& test) {
  const Json& expected = test.at("expect");
  const nlohmann::json want = plain(joined(expected.at("sse")));
  for (const size_t cut : {0, 1, 3}) {
    if (cut != 0 && test.at("options").value("parse_json_output", false)) continue;
    SCOPED_TRACE(cut);
    const Driven got = drive(test, cut);
    EXPECT_EQ(plain(joined(got.events)), want);
    EXPECT_EQ(plain(got.body), plain(expected.at("final")));
  }
}

namespace {

TEST(Stream, Vectors) { testing::for_each_case("stream", 45, testing::check_stream); }

/// What the events of a Chat stream add up to.
Json fold_chat(const Json& events) {
  Json body;
  for (const Json& event : events) {
    if (!event["data"].is_object()) continue;
    const Json& data = event["data"];
    const Json& choice = data["choices"][0];
    const Json& delta = choice["delta"];
    if (body.is_null()) {
      body = data;
      body["object"] = "chat.completion";
      body["choices"] =
          Json::array({Json{{"index", 0}, {"message", {{"role", "assistant"}, {"content", ""}}}, {"logprobs", nullptr}}});
      if (delta.contains("reasoning_content")) body["choices"][0]["message"]["reasoning_content"] = "";
    }
    Json& message = body["choices"][0]["message"];
    for (const char* field : {"content", "reasoning_content"}) {
      if (delta.contains(field) && delta[field].is_string())
        message[field] = message[field].get<std::string>() + delta[field].get<std::string>();
    }
    if (delta.contains("tool_calls")) {
      const Json& call = delta["tool_calls"][0];
      if (call.contains("id")) {
        Json whole = call;
        whole.erase("index");
        message["tool_calls"].push_back(whole);
      } else {
        Json& arguments = message["tool_calls"][call["index"].get<size_t>()]["function"]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
    body["choices"][0]["finish_reason"] = choice["finish_reason"];
    if (data.contains("usage")) body["usage"] = data["usage"];
  }
  return body;
}

Json fold_messages(const Json& events) {
  Json body;
  std::string input;
  for (const Json& event : events) {
    const Json& data = event["data"];
    const std::string type = data["type"];
    if (type == "message_start") body = data["message"];
    if (type == "content_block_start") {
      body["content"].push_back(data["content_block"]);
      input.clear();
    }
    if (type == "content_block_delta") {
      Json& block = body["content"][data["index"].get<size_t>()];
      for (const char* field : {"text", "thinking", "signature"}) {
        if (data["delta"].contains(field))
          block[field] = block[field].get<std::string>() + data["delta"][field].get<std::string>();
      }
      if (data["delta"].contains("partial_json")) input += data["delta"]["partial_json"].get<std::string>();
    }
    if (type == "content_block_stop" && Json::accept(input)) body["content"].back()["input"] = Json::parse(input);
    if (type == "content_block_stop") input.clear();
    if (type == "message_delta") {
      body.update(data["delta"]);
      body["usage"] = data["usage"];
    }
  }
  return body;
}

// CASES 7: the body is what the events add up to, for every vector.
TEST(Stream, BodyIsTheSumOfTheEvents) {
  testing::for_each_case("stream", 45, [](const Json& test) {
    const Driven got = drive(test);
    switch (testing::api_of(test)) {
      case Api::kChat:
        EXPECT_EQ(plain(fold_chat(got.events)), plain(got.body));
        break;
      case Api::kMessages:
        EXPECT_EQ(plain(fold_messages(got.events)), plain(got.body));
        break;
      default:
        EXPECT_EQ(plain(got.events.back()["data"]["response"]), plain(got.body));
    }
  });
}

/// Where cached tokens came from is said beside the usage of every API, if there are tiers to come from.
TEST(Stream, CacheUsageIsAnExtension) {
  const auto usage_of = [](const auto& parse, const char* text, const Output& output) {
    const auto request = parse(text);
    EXPECT_TRUE(request.has_value());
    const auto stream = make_response_stream(*request, {.id = "id", .created = 5, .system_fingerprint = {}}, nullptr);
    stream->push(output, 9);
    EXPECT_TRUE(stream->done());
    return Json::parse(stream->body())["usage"];
  };
  const auto chat = [](const char* text) { return parse_chat_request(text); };
  const auto messages = [](const char* text) { return parse_messages_request(text); };
  const auto responses = [](const char* text) { return parse_responses_request(text); };
  Output output = output_of(0, "a", {1}, FinishReason::kStop);
  output.usage.cached_tokens = 9;
  const char* const kChat = R"({"model":"m","messages":[{"role":"user","content":"q"}]})";
  EXPECT_FALSE(usage_of(chat, kChat, output).contains("deepinfer")) << "no tier was asked";
  output.usage.tiers = {.parts = {{"host", 2}, {"local", 4}},
                        .bytes = 77,
                        .match_seconds = 0.5,
                        .pull_seconds = 0.25,
                        .ttl_seconds = 60,
                        .miss = "expired"};
  const Json want =
      Json::parse(R"({"cache": {"tokens": {"device": 3, "host": 2, "local": 4}, "miss": "expired", "match_seconds": 0.5,
                                              "pull_seconds": 0.25, "pulled_bytes": 77, "ttl_seconds": 60.0}})");
  EXPECT_EQ(usage_of(chat, kChat, output)["deepinfer"], want);
  EXPECT_EQ(usage_of(messages, R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"q"}]})", output)["deepinfer"],
            want);
  EXPECT_EQ(usage_of(responses, R"({"model":"m","input":"q"})", output)["deepinfer"], want);
  output.usage.tiers = {.miss = "none"};
  EXPECT_EQ(usage_of(chat, kChat, output)["deepinfer"]["cache"]["tokens"], Json::parse(R"({"device": 9})"));
  EXPECT_TRUE(usage_of(chat, kChat, output)["deepinfer"]["cache"]["ttl_seconds"].is_null());
  EXPECT_TRUE(usage_of(chat, kChat, output)["deepinfer"]["cache"]["miss"].is_null());
}

TEST(Stream, CacheUsageOfSeveralPrompts) {
  const auto request = parse_completion_request(R"({"model":"m","prompt":["a","b"]})");
  ASSERT_TRUE(request.has_value());
  const auto stream = make_completion_stream(*request, {.id = "id", .created = 5, .system_fingerprint = {}}, nullptr);
  Output one = output_of(0, "x", {1}, FinishReason::kStop), two = one;
  one.usage.cached_tokens = two.usage.cached_tokens = 8;
  one.usage.tiers = {
      .parts = {{"host", 2}}, .bytes = 10, .match_seconds = 1, .pull_seconds = 3, .ttl_seconds = 60, .miss = "none"};
  two.usage.tiers = {.parts = {{"host", 1}, {"local", 4}},
                     .bytes = 5,
                     .match_seconds = 2,
                     .pull_seconds = 1,
                     .ttl_seconds = 40,
                     .miss = "not_stored"};
  stream->push(one, 9, 0);
  stream->push(two, 9, 1);
  EXPECT_EQ(Json::parse(stream->body())["usage"]["deepinfer"]["cache"],
            Json::parse(R"({"tokens": {"device": 9, "host": 3, "local": 4}, "miss": "not_stored", "match_seconds": 2.0,
                            "pull_seconds": 3.0, "pulled_bytes": 15, "ttl_seconds": 40.0})"));
}

/// A reader that is slow gets several tokens at once: where a stop string ends the answer, and what is counted, is the same.
TEST(Stream, StopStringsDoNotDependOnHowNewsAreMerged) {
  const std::vector<std::string> texts = {"a", "", "b S", "T", "O", "P and", " more", ""};
  const auto request = parse_chat_request(
      R"({"model":"m","thinking":{"type":"disabled"},"stop":["STO","never"],"messages":[{"role":"user","content":"q"}]})");
  ASSERT_TRUE(request.has_value());
  for (unsigned cuts = 0; cuts < 1U << (texts.size() - 1); ++cuts) {
    const auto stream = make_response_stream(*request, {.id = "id", .created = 5, .system_fingerprint = {}}, nullptr);
    Output news = output_of(0, "", {});
    for (size_t i = 0; i < texts.size(); ++i) {
      news.text += texts[i];
      news.tokens.push_back(static_cast<int32_t>(i));
      news.text_ends.push_back(static_cast<int64_t>(news.text.size()));
      if (i + 1 == texts.size()) news.finish = FinishReason::kLength;
      if ((cuts >> i & 1) == 0 && !news.finish.has_value()) continue;
      stream->push(news, 9);
      news = output_of(0, "", {});
    }
    ASSERT_TRUE(stream->done());
    const Json body = Json::parse(stream->body());
    EXPECT_EQ(body["choices"][0]["message"]["content"], "ab ") << cuts;
    EXPECT_EQ(body["choices"][0]["finish_reason"], "stop") << cuts;
    EXPECT_EQ(body["usage"]["completion_tokens"], 5) << cuts;
  }
}

TEST(Stream, SeveralChoices) {
  auto request = parse_chat_request(
      R"({"model":"m","n":2,"stream":true,"thinking":{"type":"disabled"},"stop":"X","messages":[{"role":"user","content":"q"}]})");
  ASSERT_TRUE(request.has_value());
  const auto stream = make_response_stream(*request, {.id = "id", .created = 5, .system_fingerprint = {}}, nullptr);
  ServerEvents events;
  const auto push = [&](const Output& o) {
    for (ServerEvent& e : stream->push(o, 9)) events.push_back(std::move(e));
  };
  push(output_of(1, "b", {1}));
  push(output_of(0, "aX", {1, 2}));
  EXPECT_TRUE(stream->finished(0));
  EXPECT_FALSE(stream->done());
  push(output_of(0, "ignored", {1, 2, 3}));
  push(output_of(1, "c", {1}, FinishReason::kLength));
  EXPECT_TRUE(stream->done());
  const Json body = Json::parse(stream->body());
  EXPECT_EQ(body["choices"][0]["message"]["content"], "a");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][1]["message"]["content"], "bc");
  EXPECT_EQ(body["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
  EXPECT_EQ(events.back().data, "[DONE]");
  int with_usage = 0;
  for (const ServerEvent& e : events) with_usage += e.data.find("\"usage\":{") != std::string::npos ? 1 : 0;
  EXPECT_EQ(with_usage, 1);
}

TEST(Stream, Failures) {
  const auto stream_for = [](Api api) {
    const char* body =
        api == Api::kResponses ? R"({"model":"m","input":"q"})" : R"({"model":"m","messages":[{"role":"user","content":"q"}]})";
    return make_response_stream(*parse_request(api, body), {.id = "id", .created = 5, .system_fingerprint = {}}, nullptr);
  };
  for (const Api api : {Api::kChat, Api::kMessages, Api::kResponses}) {
    const auto stream = stream_for(api);
    (void)stream->push(output_of(0, "t", {1}), 9);
    Output died = output_of(0, "", {}, FinishReason::kError);
    died.error = Status::Internal("device lost");
    const ServerEvents events = stream->push(died, 9);
    EXPECT_TRUE(stream->done());
    ASSERT_TRUE(stream->failed().has_value());
    EXPECT_EQ(stream->failed()->status, 500);
    EXPECT_TRUE(stream->push(output_of(0, "t", {1}), 9).empty());
    EXPECT_TRUE(stream->fail(ApiError::Http(500, "x")).empty());
    if (api == Api::kChat) {
      ASSERT_EQ(events.size(), 1u);
      EXPECT_EQ(Json::parse(events[0].data)["error"]["message"], "device lost");
    } else if (api == Api::kMessages) {
      ASSERT_EQ(events.size(), 1u);
      EXPECT_EQ(events[0].name, "error");
      EXPECT_EQ(Json::parse(events[0].data)["type"], "error");
    } else {
      ASSERT_EQ(events.size(), 2u);
      EXPECT_EQ(events[0].name, "error");
      EXPECT_EQ(events[1].name, "response.failed");
      EXPECT_EQ(Json::parse(events[1].data)["response"]["status"], "failed");
      EXPECT_EQ(Json::parse(events[1].data)["sequence_number"], Json::parse(events[0].data)["sequence_number"].get<int>() + 1);
    }
  }
  const auto late = stream_for(Api::kChat);
  (void)late->push(output_of(0, "", {}, FinishReason::kDeadline), 9);
  EXPECT_EQ(late->failed()->status, 504);
}

/// One Output per `step` tokens of `text`, as the engine gives them.
ServerEvents run(ResponseStream& stream, const std::shared_ptr<const Tokenizer>& tokenizer, const std::string& text,
                 size_t step) {
  const std::vector<int32_t> ids = tokenizer->encode_with_added_tokens(text);
  Detokenizer detokenizer(tokenizer);
  ServerEvents events;
  for (size_t i = 0; i < ids.size(); i += step) {
    Output o = output_of(0, "", {});
    for (size_t k = i; k < std::min(i + step, ids.size()); ++k) {
      o.tokens.push_back(ids[k]);
      o.text += detokenizer.push(ids[k]);
      o.logprobs.push_back({.chosen = {ids[k], -0.25f * static_cast<float>(k), 1}, .top = {{ids[k], -1.0f, 1}}});
    }
    for (ServerEvent& e : stream.push(o, 9)) events.push_back(std::move(e));
  }
  Output last = output_of(0, detokenizer.finish(), {1}, FinishReason::kStop);
  last.logprobs.push_back({.chosen = {1, 0.0f, 1}, .top = {}});
  for (ServerEvent& e : stream.push(last, 9)) events.push_back(std::move(e));
  return events;
}

// k tokens at once are one at a time: events, log-probs and the count of the reasoning.
TEST(Stream, TokensAtOnce) {
  const auto tokenizer = testing::nano_tokenizer();
  auto request = parse_chat_request(
      R"({"model":"m","logprobs":true,"top_logprobs":1,"messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f"}}]})");
  ASSERT_TRUE(request.has_value());
  const std::string text =
      "I think 🦀 so.</think>\n\nThe answer é\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
      "name=\"x\" "
      "string=\"true\">v 🦀</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  Json expected;
  for (const size_t step : {1, 2, 3, 5, 8, 100}) {
    const auto stream = make_response_stream(*request, {.id = "id", .created = 5, .system_fingerprint = {}}, tokenizer);
    const ServerEvents events = run(*stream, tokenizer, text, step);
    const Json body = Json::parse(stream->body());
    const Json& choice = body["choices"][0];
    EXPECT_EQ(choice["message"]["content"], "The answer é");
    EXPECT_EQ(choice["message"]["reasoning_content"], "I think 🦀 so.");
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"x": "v 🦀"})");
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    for (const auto& [field, whole] :
         {std::pair("content", "The answer é"), std::pair("reasoning_content", "I think 🦀 so.")}) {
      std::string bytes;
      for (const Json& entry : choice["logprobs"][field]) {
        for (const Json& b : entry["bytes"]) bytes += static_cast<char>(b.get<int>());
        EXPECT_EQ(entry["top_logprobs"].size(), 1u);
      }
      EXPECT_EQ(bytes, whole);
    }
    if (expected.is_null()) expected = body;
    EXPECT_EQ(body, expected) << step;
    EXPECT_GT(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    Json streamed = Json::array();
    for (const ServerEvent& e : events) {
      if (e.data == "[DONE]") continue;
      const Json logprobs = Json::parse(e.data)["choices"][0]["logprobs"];
      if (logprobs.is_object() && logprobs.contains("content")) {
        for (const Json& entry : logprobs["content"]) streamed.push_back(entry);
      }
    }
    EXPECT_EQ(streamed, choice["logprobs"]["content"]);
  }
}

// spec §11: JSON characters as they come; other forms unchanged.
TEST(CustomToolInput, Decoding) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"input": "a\n\"q\" \\ \/ \u00e9 \ud83e\udd80"})", "a\n\"q\" \\ / é 🦀"},
      {" {\n\"input\"\t:\f\"x\" , \"more\": 1}", "x"},
      {R"({"input": 5})", R"({"input": 5})"},
      {R"({"other": "x"})", R"({"other": "x"})"},
      {R"([1])", R"([1])"},
      {R"({"inp)", R"({"inp)"},
      {R"({"input": "cut\)", R"(cut\)"},
      {R"({"input": "cut\u12)", R"(cut\u12)"},
      {R"({"input": "a\ud800b"})", R"(a\ud800b)"},
      {R"({"input": "a\ud800\n"})", "a\\ud800\n"},
      {R"({"input": "a\ud800\ud83e\udd80"})", R"(a\ud800🦀)"},
      {R"({"input": "a\udc00\q\uzzzz"})", R"(a\udc00\q\uzzzz)"},
      {R"({"input": ""})", ""},
  };
  for (const auto& [arguments, text] : cases) {
    for (size_t cut = 0; cut <= arguments.size(); ++cut) {
      CustomToolInput input;
      std::string got = input.push(std::string_view(arguments).substr(0, cut));
      got += input.push(std::string_view(arguments).substr(cut));
      got += input.finish();
      EXPECT_EQ(got, text) << arguments << " cut at " << cut;
    }
    CustomToolInput input;
    std::string got;
    for (const char c : arguments) got += input.push(std::string_view(&c, 1));
    EXPECT_EQ(got + input.finish(), text) << arguments;
  }
}

}  // namespace
}  // namespace deepinfer
