#include "telemetry/chrome_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace deepinfer::telemetry {
namespace {

using Json = nlohmann::json;

class ChromeTraceTest : public ::testing::Test {
 protected:
  ChromeTraceTest()
      : path_((std::filesystem::temp_directory_path() / ("deepinfer-trace-" + std::to_string(::getpid()) + ".json")).string()) {}
  ~ChromeTraceTest() override { std::filesystem::remove(path_); }

  Json parsed() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  }
  std::unique_ptr<ChromeTrace> start(int64_t max_bytes = 1 << 30) {
    auto made = ChromeTrace::Create(recorder_, {.path = path_, .max_bytes = max_bytes});
    EXPECT_TRUE(made.has_value());
    return *std::move(made);
  }

  std::string path_;
  std::shared_ptr<TraceRecorder> recorder_ = std::make_shared<TraceRecorder>();
};

TEST_F(ChromeTraceTest, EventsAsPerfettoReadsThem) {
  const auto trace = start();
  const int64_t t = recorder_->start();
  recorder_->record({.name = "plan",
                     .category = Category::kEngine,
                     .step = 7,
                     .begin = t + 1'234'567,
                     .end = t + 1'235'567,
                     .args = {{{"rows", 3}}}});
  recorder_->phase(9, Phase::kQueue, t + 1000, t + 3000);
  ASSERT_TRUE(trace->close().ok());
  const Json events = parsed();
  ASSERT_TRUE(events.is_array());
  std::map<std::string, Json> by;
  for (const Json& e : events) by[e["ph"].get<std::string>() + e["name"].get<std::string>()] = e;
  EXPECT_EQ(by["Mprocess_name"]["args"]["name"], "deepinfer");
  const Json plan = by["Xplan"];
  EXPECT_DOUBLE_EQ(plan["ts"], 1234.567);
  EXPECT_DOUBLE_EQ(plan["dur"], 1.0);
  EXPECT_EQ(plan["args"]["rows"], 3);
  EXPECT_EQ(plan["args"]["step"], 7);
  EXPECT_DOUBLE_EQ(by["bqueue"]["ts"], 1.0);
  EXPECT_DOUBLE_EQ(by["equeue"]["ts"], 3.0);
  EXPECT_EQ(by["bqueue"]["id"], by["equeue"]["id"]);
  EXPECT_EQ(by["bqueue"]["cat"], by["equeue"]["cat"]);
}

// Whatever ends the process, what is there is complete.
TEST_F(ChromeTraceTest, CompleteAtEveryMoment) {
  const auto trace = start();
  EXPECT_TRUE(parsed().is_array());
  size_t seen = 0;
  for (int64_t i = 0; seen < 2000; ++i) {
    for (int k = 0; k < 50; ++k)
      recorder_->record({.name = "step", .category = Category::kDevice, .step = i, .begin = now_ns(), .end = now_ns()});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t before = trace->bytes();
    const Json events = parsed();
    if (before != trace->bytes()) continue;  // read while it was written
    if (!events.is_array()) {
      // What was read may be a write under way, whose bytes are counted when it is done.
      for (int wait = 0; wait < 10'000 && before == trace->bytes(); ++wait)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_NE(before, trace->bytes()) << "no write is under way, and the file is not complete: " << i;
      continue;
    }
    seen = events.size();
  }
}

TEST_F(ChromeTraceTest, EndsAtItsLimit) {
  constexpr int64_t kLimit = 1 << 16;
  const auto trace = start(kLimit);
  for (int64_t i = 0; i < 5000; ++i)
    recorder_->record({.name = "step", .category = Category::kDevice, .step = i, .begin = now_ns(), .end = now_ns()});
  ASSERT_TRUE(trace->close().ok());
  EXPECT_LE(std::filesystem::file_size(path_), static_cast<uintmax_t>(kLimit));
  EXPECT_GT(std::filesystem::file_size(path_), static_cast<uintmax_t>(kLimit / 2));
  const Json events = parsed();
  ASSERT_TRUE(events.is_array());
  EXPECT_EQ(events.back()["name"], "the file is full");
}

TEST_F(ChromeTraceTest, CountsWhatItDidNotGet) {
  TraceRecorder::Options options;
  options.memory = 1 << 16;
  recorder_ = std::make_shared<TraceRecorder>(options);
  const auto trace = start();
  for (int64_t i = 0; i < 100'000; ++i) recorder_->record({.name = "step", .category = Category::kDevice, .step = i});
  ASSERT_TRUE(trace->close().ok());
  int64_t steps = 0;
  for (const Json& e : parsed()) steps += e["name"] == "step" ? 1 : 0;
  EXPECT_GT(recorder_->dropped(), 0);
  EXPECT_EQ(steps + recorder_->dropped(), 100'000);
}

TEST(ChromeTrace, SaysWhatItCannotWrite) {
  const auto made = ChromeTrace::Create(std::make_shared<TraceRecorder>(), {.path = "/nowhere/at/all.json"});
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message().find("/nowhere/at/all.json"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::telemetry
