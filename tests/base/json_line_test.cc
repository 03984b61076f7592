#include "base/json_line.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/build_info.h"

namespace deepinfer {
namespace {

using nlohmann::json;

TEST(JsonLine, HasEveryField) {
  const json line = json::parse(bench_line("linear_fp8", 12.5, "GB/s", 50.0, {{"threads", "2"}, {"rows", "1"}}));
  EXPECT_EQ(line.size(), 7u);
  EXPECT_EQ(line["name"], "linear_fp8");
  EXPECT_EQ(line["value"], 12.5);
  EXPECT_EQ(line["unit"], "GB/s");
  EXPECT_EQ(line["ceiling"], 50.0);
  EXPECT_EQ(line["fraction"], 0.25);
  EXPECT_EQ(line["conditions"], (json{{"threads", "2"}, {"rows", "1"}}));
  EXPECT_EQ(line["commit"], std::string(build_commit()));
}

TEST(JsonLine, WhatHasNoNumberIsNull) {
  const json bare = json::parse(bench_line("x", 3.0, "tokens/s"));
  EXPECT_EQ(bare["value"], 3.0);
  EXPECT_TRUE(bare["ceiling"].is_null());
  EXPECT_TRUE(bare["fraction"].is_null());
  EXPECT_TRUE(bare["conditions"].is_object());
  EXPECT_TRUE(bare["conditions"].empty());

  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(json::parse(bench_line("x", inf, "s", 1.0))["value"].is_null());
  EXPECT_TRUE(json::parse(bench_line("x", inf - inf, "s", 1.0))["fraction"].is_null());
  EXPECT_TRUE(json::parse(bench_line("x", 1.0, "s", inf))["ceiling"].is_null());
  EXPECT_TRUE(json::parse(bench_line("x", 1.0, "s", 0.0))["fraction"].is_null());
  EXPECT_EQ(json::parse(bench_line("x", 1e300, "s"))["value"], 1e300);
  EXPECT_EQ(json::parse(bench_line("x", 0.1 + 0.2, "s"))["value"], 0.1 + 0.2);
}

TEST(JsonLine, EscapesAndStaysOneLine) {
  const std::string awkward("a\"b\\c\nd\te\x01\x7f\0f\xc3\xa9\xf0\x9f\xa6\x8a", 19);
  const std::string line = bench_line(awkward, 1.0, "s", std::nullopt, {{awkward, awkward}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const json parsed = json::parse(line);
  EXPECT_EQ(parsed["name"], awkward);
  EXPECT_EQ(parsed["conditions"][awkward], awkward);
}

TEST(JsonLine, BytesThatAreNotUtf8AreReplaced) {
  // A lone continuation byte, an overlong '/', a surrogate, a value above U+10FFFF, a cut sequence.
  for (const char* bad : {"\x80", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    const std::string text = std::string("<") + bad + ">";
    const std::string back = json::parse(json_quote(text)).get<std::string>();
    EXPECT_EQ(back.front(), '<');
    EXPECT_EQ(back.back(), '>');
    EXPECT_NE(back.find("\xef\xbf\xbd"), std::string::npos);
  }
}

TEST(JsonLine, PrintsExactlyOneLine) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  print_bench_line(file, "x", 1.0, "s");
  const long size = std::ftell(file);
  std::rewind(file);
  std::string text(static_cast<size_t>(size), '\0');
  ASSERT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  EXPECT_EQ(text, bench_line("x", 1.0, "s") + "\n");
}

}  // namespace
}  // namespace deepinfer
