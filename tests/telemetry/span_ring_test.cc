#include "telemetry/span_ring.h"

#include <gtest/gtest.h>

#include <thread>

namespace deepinfer::telemetry {
namespace {

Span numbered(int64_t number, int64_t writer = 0) {
  return {.name = "span",
          .category = Category::kDevice,
          .request = static_cast<uint64_t>(number),
          .step = number,
          .begin = 2 * number,
          .end = 3 * number,
          .args = {{{"number", number}, {"writer", writer}, {"both", number + writer}}}};
}

TEST(SpanRing, GivesBackWhatWasPushed) {
  SpanRing ring(64);
  for (int64_t i = 1; i <= 10; ++i) ring.push(numbered(i, 7));
  Span none;  // every field at its default
  none.name = "none";
  ring.push(none);
  std::vector<Span> spans;
  int64_t from = 0;
  EXPECT_EQ(ring.read(from, spans), 0);
  ASSERT_EQ(spans.size(), 11u);
  for (int64_t i = 1; i <= 10; ++i) {
    const Span& s = spans[static_cast<size_t>(i - 1)];
    EXPECT_STREQ(s.name, "span");
    EXPECT_EQ(s.category, Category::kDevice);
    EXPECT_EQ(s.request, static_cast<uint64_t>(i));
    EXPECT_EQ(s.step, i);
    EXPECT_EQ(s.begin, 2 * i);
    EXPECT_EQ(s.end, 3 * i);
    EXPECT_EQ(s.args[0].value, i);
    EXPECT_STREQ(s.args[1].name, "writer");
    EXPECT_EQ(s.args[2].value, i + 7);
    EXPECT_EQ(s.args[3].name, nullptr);
  }
  EXPECT_EQ(spans[10].step, -1);
  EXPECT_EQ(spans[10].request, 0u);
  spans.clear();
  EXPECT_EQ(ring.read(from, spans), 0);
  EXPECT_TRUE(spans.empty());
}

TEST(SpanRing, KeepsTheLatestAndCountsTheRest) {
  SpanRing ring(100);  // rounded down
  ASSERT_EQ(ring.capacity(), 64);
  for (int64_t i = 0; i < 1000; ++i) ring.push(numbered(i));
  std::vector<Span> spans;
  int64_t from = 0;
  EXPECT_EQ(ring.read(from, spans), 1000 - 64);
  ASSERT_EQ(spans.size(), 64u);
  EXPECT_EQ(spans.front().step, 1000 - 64);
  EXPECT_EQ(spans.back().step, 999);
  EXPECT_EQ(ring.pushed(), 1000);
  for (int64_t i = 1000; i < 1010; ++i) ring.push(numbered(i));
  spans.clear();
  EXPECT_EQ(ring.read(from, spans), 0);
  EXPECT_EQ(spans.size(), 10u);
}

// Each span agrees with itself, and what a reader does not get it is told of.
TEST(SpanRing, ManyWritersAndAReader) {
  constexpr int64_t kWriters = 4, kEach = 50'000;
  SpanRing ring(256);
  std::atomic<bool> done{false};
  int64_t got = 0, lost = 0, torn = 0;
  std::vector<int64_t> latest(kWriters, -1);
  std::thread reader([&] {
    int64_t from = 0;
    std::vector<Span> spans;
    for (bool last = false; !last;) {
      last = done;
      spans.clear();
      lost += ring.read(from, spans, last);
      for (const Span& s : spans) {
        const int64_t number = s.args[0].value, writer = s.args[1].value;
        const bool whole = s.step == number && s.begin == 2 * number && s.end == 3 * number &&
                           s.args[2].value == number + writer && s.request == static_cast<uint64_t>(number) &&
                           std::string_view(s.name) == "span";
        torn += whole ? 0 : 1;
        if (!whole || writer < 0 || writer >= kWriters) continue;
        // A writer's own spans come in its order.
        torn += latest[static_cast<size_t>(writer)] < number ? 0 : 1;
        latest[static_cast<size_t>(writer)] = number;
      }
      got += static_cast<int64_t>(spans.size());
    }
  });
  std::vector<std::thread> writers;
  for (int64_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int64_t i = 0; i < kEach; ++i) ring.push(numbered(i, w));
    });
  }
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_GT(got, 0);
  EXPECT_EQ(got + lost, kWriters * kEach);
}

}  // namespace
}  // namespace deepinfer::telemetry
