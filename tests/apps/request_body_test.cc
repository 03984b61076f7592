#include "serve/request_body.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

PlannedRequest planned(std::vector<int32_t> prompt) {
  PlannedRequest out;
  out.prompt = std::move(prompt);
  out.output_len = 9;
  out.seed = 0xFFFF'FFFF'0000'0007;
  return out;
}

TEST(RequestBody, Fields) {
  RequestFormat format;
  format.model = "m\"";
  format.extra["top_k"] = 3;
  const PlannedRequest one = planned({5, 6, 7});
  EXPECT_EQ(
      Json::parse(request_body(format, {&one, 1}, {})),
      Json::parse(R"({"model":"m\"","prompt":[5,6,7],"max_tokens":9,"temperature":0.0,"seed":7,"ignore_eos":true,"stream":true,
                            "stream_options":{"include_usage":true},"top_k":3})"));
  format.ignore_eos = format.include_usage = false;
  format.max_completion_tokens = format.chat = true;
  const Json chat = Json::parse(request_body(format, {&one, 1}, {}));
  for (const char* field : {"ignore_eos", "stream_options", "prompt", "max_tokens"}) EXPECT_FALSE(chat.contains(field)) << field;
  EXPECT_EQ(chat["max_completion_tokens"], 9);
  ASSERT_EQ(chat["messages"].size(), 1u);
  EXPECT_EQ(chat["messages"][0]["role"], "user");
}

TEST(RequestBody, ATurnSaysWhatWasSaidBefore) {
  RequestFormat format;
  format.words = true;
  const std::vector<PlannedRequest> turns = {planned({0, 1}), planned({2}), planned({3, 4})};
  const std::vector<std::string> answers = {" <first>\n", "\xff"};  // whatever a server says becomes JSON
  const std::string text = Json::parse(request_body(format, turns, answers))["prompt"];
  EXPECT_EQ(text,
            words_of(turns[0].prompt) + " <first>\n" + words_of(turns[1].prompt) + "\xef\xbf\xbd" + words_of(turns[2].prompt));
  format.chat = true;
  const Json messages = Json::parse(request_body(format, turns, answers))["messages"];
  ASSERT_EQ(messages.size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(messages[i]["role"], i % 2 == 0 ? "user" : "assistant");
  EXPECT_EQ(messages[1]["content"], " <first>\n");
  EXPECT_EQ(messages[4]["content"], words_of(turns[2].prompt));
}

TEST(RequestBody, WordsAreOneForEachToken) {
  std::vector<int32_t> ids(100);
  for (int32_t i = 0; i < 100; ++i) ids[static_cast<size_t>(i)] = i * 37;
  const std::string text = words_of(ids);
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 100);
  EXPECT_EQ(words_of(ids), text);
}

}  // namespace
}  // namespace deepinfer::bench
