#include "serve/sse_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace deepinfer::bench {
namespace {

TEST(SseReader, GivesTheSameEventsHoweverTheBytesAreCut) {
  const std::string text =
      ": ping\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\nid: 4\n\n\n\ndata\ndata: {\"a\": \":\"}\n\n";
  const std::vector<std::string> wanted = {"one", "two\nlines", "{\"a\": \":\"}"};
  for (size_t cut = 1; cut <= text.size(); ++cut) {
    SseReader reader;
    std::vector<std::string> events;
    for (size_t at = 0; at < text.size(); at += cut)
      ASSERT_TRUE(reader.push(std::string_view(text).substr(at, cut), [&](std::string_view data) { events.emplace_back(data); }));
    EXPECT_EQ(events, wanted) << cut;
  }
}

TEST(SseReader, RefusesEventsWithoutEnd) {
  SseReader reader;
  const std::string piece(1 << 20, 'x');
  int64_t pieces = 0;
  while (reader.push(piece, [](std::string_view) { FAIL(); })) ASSERT_LT(++pieces, 20);
  EXPECT_EQ(pieces, 16);
}

}  // namespace
}  // namespace deepinfer::bench
