#include "flag_values.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepinfer::cli {
namespace {

TEST(FlagValues, Sizes) {
  const std::pair<const char*, int64_t> good[] = {{"0", 0},
                                                  {"512", 512},
                                                  {"512MiB", int64_t{512} << 20},
                                                  {"4GiB", int64_t{4} << 30},
                                                  {"4 gib", int64_t{4} << 30},
                                                  {"4G", int64_t{4} << 30},
                                                  {"100k", 102400},
                                                  {"1.5GB", 1500000000},
                                                  {"1TiB", int64_t{1} << 40},
                                                  {"2mb", 2000000},
                                                  {"7B", 7},
                                                  {"0.5KiB", 512},
                                                  {"9007199254740993", 9007199254740993}};
  for (const auto& [text, bytes] : good) {
    const auto size = parse_size(text, 0, INT64_MAX);
    ASSERT_TRUE(size.has_value()) << text << ": " << size.error().message();
    EXPECT_EQ(*size, bytes) << text;
  }
  for (const char* bad : {"", "GiB", "-1", "1e3", "4 GiB s", "4GiBs", "1.2.3", ".", "nan", "inf", "0x10", " 4", "4\n"}) {
    const auto size = parse_size(bad, 0, INT64_MAX);
    ASSERT_FALSE(size.has_value()) << bad;
    EXPECT_EQ(size.error().code(), StatusCode::kInvalidArgument) << bad;
  }
  for (const char* large : {"2KiB", "99999999999999999999", "99999999999TiB", "1000000.0TB"}) {
    const auto size = parse_size(large, 0, 1024);
    ASSERT_FALSE(size.has_value()) << large;
    EXPECT_NE(size.error().message().find("1024"), std::string::npos) << size.error().message();
    EXPECT_NE(size.error().message().find(large), std::string::npos) << size.error().message();
  }
  EXPECT_FALSE(parse_size("0", 1, 1024));
}

TEST(FlagValues, WholeNumbers) {
  EXPECT_EQ(*parse_whole("010", 0, 100), 10);  // decimal, whatever it starts with
  EXPECT_EQ(*parse_whole("-5", -10, 10), -5);
  for (const char* bad : {"", "-", "+1", "1.0", "1e3", "x", "1x", " 1", "0x1", "--1"}) {
    const auto value = parse_whole(bad, 0, 100);
    ASSERT_FALSE(value.has_value()) << bad;
    EXPECT_EQ(value.error().code(), StatusCode::kInvalidArgument) << bad;
  }
  for (const char* outside : {"101", "-1", "99999999999999999999", "-99999999999999999999"}) {
    const auto value = parse_whole(outside, 0, 100);
    ASSERT_FALSE(value.has_value()) << outside;
    EXPECT_EQ(value.error().message(), fmt::format("is {}, must be from 0 to 100", outside));
  }
}

TEST(FlagValues, RealNumbers) {
  EXPECT_EQ(*parse_real("0.25", 0, 1), 0.25);
  EXPECT_EQ(*parse_real("1e-3", 0, 1), 1e-3);
  EXPECT_TRUE(std::isinf(*parse_real("inf", 0, HUGE_VAL)));
  for (const char* bad : {"", "x", "1,5", "0.5x", " 1", "nan", "-nan", "inf", "1e999", "-0.1", "1.1"}) {
    const auto value = parse_real(bad, 0, 1);
    ASSERT_FALSE(value.has_value()) << bad;
    EXPECT_NE(value.error().message().find("from 0 to 1"), std::string::npos) << value.error().message();
  }
}

TEST(FlagValues, Durations) {
  const std::pair<const char*, double> good[] = {{"0", 0},       {"90", 90},     {"90s", 90},    {"10m", 600},
                                                 {"1.5h", 5400}, {"3d", 259200}, {"2w", 1209600}};
  for (const auto& [text, seconds] : good) EXPECT_EQ(*parse_duration(text, 0, 1e7), seconds) << text;
  for (const char* bad : {"", "s", "-1", "1e3", "inf", "nan", "1 h", "h1", "1hh", "1H", "."}) {
    const auto seconds = parse_duration(bad, 0, 1e7);
    ASSERT_FALSE(seconds.has_value()) << bad;
    EXPECT_NE(seconds.error().message().find("must be a time"), std::string::npos) << seconds.error().message();
  }
  EXPECT_EQ(parse_duration("2h", 0, 3600).error().message(), "is 2h, must be from 0 to 3600 seconds");
}

TEST(FlagValues, Lists) {
  EXPECT_EQ(*split_list("a"), (std::vector<std::string>{"a"}));
  EXPECT_EQ(*split_list("1,4,16"), (std::vector<std::string>{"1", "4", "16"}));
  for (const char* bad : {"", ",", "1,", ",1", "1,,2"}) EXPECT_FALSE(split_list(bad)) << bad;
  std::string many = "0";
  for (int i = 1; i < 100; ++i) many += fmt::format(",{}", i);
  EXPECT_FALSE(split_list(many));
}

std::string error_of(std::vector<std::string> arguments) {
  CLI::App app;
  std::optional<int> threads;
  std::vector<int64_t> lengths;
  std::optional<std::string> mode;
  double x = 0.5;
  add_whole(app, "-t,--threads", threads, 1, 1024, "");
  add_whole_list(app, "--lengths", lengths, 1, 100, "");
  add_choice(app, "--mode", mode, {"a", "b"}, "");
  add_real(app, "-x", x, 0, 1, "");
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return fmt::format("{} {} {} {}", threads.value_or(0), lengths.size(), mode.value_or("-"), x);
}

TEST(FlagValues, Flags) {
  EXPECT_EQ(error_of({}), "0 0 - 0.5");
  EXPECT_EQ(error_of({"-t", "7", "--lengths", "1,2,3", "--mode", "b", "-x", "1"}), "7 3 b 1");
  EXPECT_EQ(error_of({"-t", "0"}), "--threads: is 0, must be from 1 to 1024");
  EXPECT_EQ(error_of({"--threads", "-1"}), "--threads: is -1, must be from 1 to 1024");
  EXPECT_EQ(error_of({"--threads=4294967297"}), "--threads: is 4294967297, must be from 1 to 1024");
  EXPECT_EQ(error_of({"--lengths", "1,200"}), "--lengths: is 200, must be from 1 to 100");
  EXPECT_EQ(error_of({"--lengths", "5,5"}), "--lengths: has 5 twice");
  EXPECT_EQ(error_of({"--mode", "c"}), "--mode: is \"c\", must be one of a, b");
  EXPECT_EQ(error_of({"-x", "nan"}), "-x: is nan, must be from 0 to 1");
}

}  // namespace
}  // namespace deepinfer::cli
