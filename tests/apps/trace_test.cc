#include "trace.h"

#include <gtest/gtest.h>

#include "testing/paths.h"

namespace deepinfer::bench {
namespace {

TEST(Trace, Fields) {
  const auto rows = parse_trace(
      "{\"arrival\": 0.5, \"input_len\": 10, \"output_len\": 3}\n"
      "\n"
      "{\"arrival\": 0, \"input_len\": 10, \"output_len\": 3, \"prefix_id\": 4}\r\n"
      "  {\"arrival\": 1, \"input_len\": 10, \"output_len\": 3, \"prefix_id\": 0, \"prefix_len\": 6, \"class\": \"agent\"}");
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[0].arrival, 0.5);
  EXPECT_EQ((*rows)[0].input_len, 10);
  EXPECT_EQ((*rows)[0].output_len, 3);
  EXPECT_FALSE((*rows)[0].prefix_id.has_value());
  EXPECT_EQ((*rows)[1].prefix_id, 4);
  EXPECT_EQ((*rows)[1].prefix_len, 10);  // the whole prompt
  EXPECT_EQ((*rows)[2].prefix_len, 6);
  EXPECT_EQ((*rows)[2].cache_class, "agent");
}

TEST(Trace, Mooncake) {
  const auto rows = parse_trace(
      "{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1, 2]}\n"
      "{\"timestamp\": 2500, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": []}\n");
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0].input_len, 6758);
  EXPECT_EQ((*rows)[0].block_ids, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ((*rows)[1].arrival, 2.5);
  for (const char* wrong :
       {R"({"timestamp":-1,"input_length":5,"output_length":5})", R"({"timestamp":0,"input_length":0,"output_length":5})",
        R"({"timestamp":0,"input_length":5})", R"({"timestamp":0,"input_length":5,"output_length":5,"hash_ids":[-1]})",
        R"({"timestamp":0,"input_length":5,"output_length":5,"hash_ids":7})"})
    EXPECT_FALSE(parse_trace(wrong).has_value()) << wrong;
}

TEST(Trace, Azure) {
  const std::string heading = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
  const auto rows = parse_trace(heading +
                                "2023-12-31 23:59:59.9000000,4808,10\r\n2024-01-01 00:00:01.1500000,3180,0\r\n"
                                "2023-12-31 23:59:59,7,8\n");
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_NEAR((*rows)[0].arrival, 0.9, 1e-6);
  EXPECT_NEAR((*rows)[1].arrival, 2.15, 1e-6);
  EXPECT_EQ((*rows)[2].arrival, 0);
  EXPECT_EQ((*rows)[0].input_len, 4808);
  EXPECT_EQ((*rows)[1].output_len, 1);
  for (const char* wrong : {"", "nonsense", "2023-13-01 00:00:00,1,1", "2023-02-30 00:00:00,1,1", "2023-02-03 24:00:00,1,1",
                            "2023-02-03 00:00:00,1", "2023-02-03 00:00:00,1,1,1", "2023-02-03 00:00:00,-1,1",
                            "2023-02-03 00:00:00,1,1e9", "2023-02-03,1,1", "2023-02-03 00:00:00,1,1\n2024-02-03 00:00:00,1,1"}) {
    const auto got = parse_trace(heading + wrong);
    EXPECT_FALSE(got.has_value()) << wrong;
  }
}

TEST(Trace, ErrorsNameLineAndField) {
  const auto with = [](const std::string& more) { return R"({"arrival":0,"input_len":5,"output_len":5)" + more + "}"; };
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"", {"no requests"}},
      {"\n \n", {"no requests"}},
      {with("") + "\nnonsense", {"line 2", "JSON"}},
      {with("") + "\n\n[1]", {"line 3", "JSON"}},
      {R"({"input_len":5,"output_len":5})", {"line 1", "arrival", "missing"}},
      {R"({"arrival":-1,"input_len":5,"output_len":5})", {"line 1", "arrival", "-1"}},
      {R"({"arrival":"0","input_len":5,"output_len":5})", {"line 1", "arrival", "\"0\""}},
      {R"({"arrival":1e300,"input_len":5,"output_len":5})", {"line 1", "arrival", "1e+300"}},
      {R"({"arrival":0,"output_len":5})", {"line 1", "input_len", "missing"}},
      {R"({"arrival":0,"input_len":0,"output_len":5})", {"line 1", "input_len", "0", "16777216"}},
      {R"({"arrival":0,"input_len":1.5,"output_len":5})", {"line 1", "input_len", "1.5"}},
      {R"({"arrival":0,"input_len":5,"output_len":18446744073709551615})", {"line 1", "output_len", "18446744073709551615"}},
      {with(R"(,"prefix_id":-1)"), {"line 1", "prefix_id", "-1"}},
      {with(R"(,"prefix_len":3)"), {"line 1", "prefix_len", "prefix_id"}},
      {with(R"(,"prefix_id":1,"prefix_len":6)"), {"line 1", "prefix_len", "6", "5"}},
      {with(R"(,"class":"robot")"), {"line 1", "class", "robot"}},
      {with(R"(,"class":7)"), {"line 1", "class", "7"}},
      {with(R"(,"colour":7)"), {"line 1", "colour", "unknown"}},
      {std::string(5000, '['), {"line 1", "5000", "4096"}},
      {std::string(4000, '['), {"line 1", "JSON"}},
      {with(",\"a\n\":1"), {"line 1"}},
  };
  for (const auto& [text, named] : cases) {
    const auto rows = parse_trace(text);
    ASSERT_FALSE(rows.has_value()) << text.substr(0, 80);
    const std::string& message = rows.error().message();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : named) EXPECT_NE(message.find(part), std::string::npos) << message << " should name " << part;
  }
}

TEST(Trace, TheExampleIsOne) {
  const auto rows = load_trace(testing::source_dir() + "/bench/traces/sessions.jsonl");
  ASSERT_TRUE(rows.has_value()) << rows.error().message();
  EXPECT_GT(rows->size(), 10u);
  const auto none = load_trace("/nonexistent.jsonl");
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message().find("/nonexistent.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::bench
