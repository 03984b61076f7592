#include "model/sequence_state.h"

#include <gtest/gtest.h>

#include "testing/pages.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::CountingPages;

ModelConfig load(const std::string& name) {
  auto config = ModelConfig::Load(testing::source_dir() + name);
  EXPECT_TRUE(config.has_value()) << config.error().message();
  return *config;
}
ModelConfig micro() { return load("/tests/data/micro_config.json"); }

TEST(PageLayout, ReleasedModelTakes890BytesAToken) {
  const PageLayout layout(load("/tests/data/released_config.json"));
  EXPECT_EQ(layout.page_bytes, 128 * 890);
  EXPECT_EQ(layout.main_row_bytes, 288);
  EXPECT_EQ(layout.index_row_bytes, 68);
  ASSERT_EQ(layout.sources.size(), 4u);
  const std::vector<int64_t> layers = {2, 8, 14, 20};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.sources[i].layer, layers[i]);
    EXPECT_EQ(layout.sources[i].ratio, i < 3 ? 2 : 1);
    EXPECT_EQ(layout.sources[i].rows_per_page, i < 3 ? 64 : 128);
  }
}

// Rows of all sources tile the page: no gap, no overlap.
TEST(PageLayout, RowsTileThePage) {
  for (const char* name : {"/tests/data/released_config.json", "/tests/data/micro_config.json", "/models/nano/config.json"}) {
    const PageLayout layout(load(name));
    int64_t at = 0;
    for (const PageLayout::Source& s : layout.sources) {
      EXPECT_EQ(s.main_offset, at);
      at += s.rows_per_page * layout.main_row_bytes;
      EXPECT_EQ(s.index_offset, at);
      at += s.rows_per_page * layout.index_row_bytes;
    }
    EXPECT_EQ(layout.page_bytes, at) << name;
  }
}

class State : public ::testing::Test {
 protected:
  static constexpr int64_t kSlack = 16;
  // As a step does.
  void grow(SequenceState& s, int64_t count) {
    ASSERT_TRUE(s.reserve(s.length() + count).ok());
    for (int64_t i = 0; i < count; ++i) s.history().push_back(static_cast<int32_t>(s.length() + i));
    s.advance(count);
  }

  ModelConfig config_ = micro();
  PageLayout layout_{config_};
  CountingPages pages_{layout_.page_bytes};
};

TEST_F(State, ReserveTakesPagesAtTheirBoundaries) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  EXPECT_EQ(s.length(), 0);
  EXPECT_EQ(s.window_capacity(), config_.sliding_window + kSlack);
  EXPECT_EQ(pages_.live(), 0);
  ASSERT_TRUE(s.reserve(1).ok());
  EXPECT_EQ(pages_.live(), 1);
  ASSERT_TRUE(s.reserve(128).ok());
  EXPECT_EQ(pages_.live(), 1);
  ASSERT_TRUE(s.reserve(129).ok());
  EXPECT_EQ(pages_.live(), 2);
  ASSERT_TRUE(s.reserve(5).ok());  // keeps what there is
  EXPECT_EQ(pages_.live(), 2);
  EXPECT_EQ(s.length(), 0);
}

TEST_F(State, FailedReserveChangesNothing) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  grow(s, 100);
  pages_.set_budget(3);
  const uint8_t* first = s.main_rows(0).pages[0];
  const Status status = s.reserve(128 * 4 + 1);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("5 pages"), std::string::npos) << status.message();
  EXPECT_EQ(pages_.live(), 1);
  EXPECT_EQ(s.length(), 100);
  EXPECT_EQ(s.main_rows(0).pages[0], first);
  EXPECT_TRUE(s.reserve(128 * 3).ok());
  EXPECT_EQ(pages_.live(), 3);
}

TEST_F(State, TruncateFreesPages) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  grow(s, 130);
  EXPECT_EQ(pages_.live(), 2);
  ASSERT_TRUE(s.truncate(129).ok());
  EXPECT_EQ(pages_.live(), 2);
  ASSERT_TRUE(s.truncate(128).ok());
  EXPECT_EQ(pages_.live(), 1);
  EXPECT_EQ(s.length(), 128);
  EXPECT_EQ(s.history().size(), 128u);
  EXPECT_EQ(s.history().back(), 127);
  ASSERT_TRUE(s.truncate(0).ok());
  EXPECT_EQ(pages_.live(), 0);
}

TEST_F(State, PagesReturnWithTheState) {
  {
    SequenceState s(config_, layout_, &pages_, kSlack);
    grow(s, 300);
    EXPECT_EQ(pages_.live(), 3);
  }
  EXPECT_EQ(pages_.live(), 0);
}

TEST_F(State, TruncateStaysWithinTheSlack) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  grow(s, 100);
  EXPECT_EQ(s.truncate(101).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(s.truncate(-1).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(s.truncate(83).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(s.length(), 100);
  EXPECT_EQ(s.history().size(), 100u);
  EXPECT_TRUE(s.truncate(100).ok());  // nothing
  EXPECT_TRUE(s.truncate(90).ok());
  EXPECT_TRUE(s.truncate(84).ok());
  // The slack counts from the highest point: the ring lost what that overwrote.
  EXPECT_EQ(s.truncate(83).code(), StatusCode::kFailedPrecondition);
  grow(s, 5);
  EXPECT_EQ(s.truncate(83).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(s.truncate(84).ok());
  grow(s, 20);  // 104
  EXPECT_EQ(s.truncate(87).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(s.truncate(88).ok());
  // An empty sequence starts afresh.
  EXPECT_TRUE(s.truncate(0).ok());
  grow(s, 3);
  EXPECT_TRUE(s.truncate(1).ok());
}

TEST_F(State, WithoutSlackOnlyTheStartIsLeft) {
  SequenceState s(config_, layout_, &pages_, 0);
  grow(s, 10);
  EXPECT_EQ(s.truncate(9).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(s.truncate(10).ok());
  EXPECT_TRUE(s.truncate(0).ok());
}

// Places that one state hands out don't overlap, and a position's places are where its slot says.
TEST_F(State, PlacesAreDistinct) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  grow(s, 256);
  std::set<const uint8_t*> seen;
  for (int64_t source = 0; source < 2; ++source) {
    const PagedRows main = s.main_rows(source);
    const PagedRows index = s.index_rows(source);
    for (int64_t j = 0; j < 256 / layout_.sources[static_cast<size_t>(source)].ratio; ++j) {
      EXPECT_TRUE(seen.insert(main.row(j)).second);
      EXPECT_TRUE(seen.insert(index.row(j)).second);
    }
  }
  EXPECT_EQ(seen.size(), 2u * (128 + 256));
  EXPECT_EQ(s.window_ring(1) - s.window_ring(0), s.window_capacity() * config_.window_row_bytes());
  std::set<const float*> tails;
  for (int64_t p = 200; p < 200 + s.tail_capacity(); ++p) {
    for (int64_t source = 0; source < 2; ++source) {
      EXPECT_TRUE(tails.insert(s.tail_kv(source, p)).second);
      EXPECT_EQ(s.tail_gate(source, p) - s.tail_kv(source, p), config_.head_dim);
    }
  }
  EXPECT_EQ(s.tail_kv(0, 200), s.tail_kv(0, 200 + s.tail_capacity()));
  EXPECT_GE(s.tail_capacity(), kSlack + 1);
}

// A state that borrows pages takes what it is given, keeps it until it is told otherwise, and frees nothing.
TEST_F(State, BorrowedPages) {
  SequenceState s(config_, layout_, nullptr, kSlack);
  EXPECT_TRUE(s.borrows_pages());
  std::vector<uint8_t*> mine;
  for (int i = 0; i < 3; ++i) mine.push_back(pages_.allocate());
  const Status status = s.reserve(1);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("1 positions need 1 pages, 0 have been appended"), std::string::npos) << status.message();
  s.append_pages(std::span(mine).first(2));
  EXPECT_EQ(s.page_count(), 2);
  ASSERT_TRUE(s.reserve(256).ok());
  EXPECT_EQ(s.reserve(257).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(s.page_count(), 2);
  s.append_pages(std::span(mine).last(1));
  grow(s, 130);
  EXPECT_EQ(s.main_rows(0).pages[2], mine[2]);
  s.release_reserved(3);
  ASSERT_TRUE(s.truncate(120).ok());
  EXPECT_EQ(s.page_count(), 3);
  s.drop_pages(2);
  EXPECT_EQ(s.page_count(), 1);
  EXPECT_EQ(s.reserve(129).code(), StatusCode::kResourceExhausted);
  EXPECT_DEATH(s.drop_pages(1), "dropped at length 120");
  s.reset();
  EXPECT_EQ(s.page_count(), 0);
  EXPECT_EQ(pages_.live(), 3);
  SequenceState owner(config_, layout_, &pages_, kSlack);
  EXPECT_DEATH(owner.append_pages(mine), "pages of its own");
}

TEST_F(State, ResetIsLikeNewAndKeepsItsMemory) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  grow(s, 300);
  ASSERT_TRUE(s.set_decoder_start(310).ok());
  const uint8_t* ring = s.window_ring(0);
  const int32_t* history = s.history().data();
  s.reset();
  EXPECT_EQ(pages_.live(), 0);
  EXPECT_EQ(s.length(), 0);
  EXPECT_EQ(s.decoder_start(), 0);
  EXPECT_TRUE(s.history().empty());
  grow(s, 300);
  EXPECT_EQ(s.window_ring(0), ring);
  EXPECT_EQ(s.history().data(), history);
  EXPECT_EQ(s.decoder_window_start(), 0);
}

TEST_F(State, AdoptedPrefix) {
  std::vector<int32_t> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto history = [&](int64_t n) { return std::span<const int32_t>(ids).first(static_cast<size_t>(n)); };
  SequenceState s(config_, layout_, nullptr, kSlack);
  EXPECT_EQ(s.adopt(10, 2, history(2)).code(), StatusCode::kFailedPrecondition) << "no pages";
  std::vector<uint8_t*> mine = {pages_.allocate(), pages_.allocate()};
  s.append_pages(mine);
  EXPECT_EQ(s.adopt(257, 2, history(2)).code(), StatusCode::kFailedPrecondition) << "too few pages";
  EXPECT_EQ(s.adopt(10, 11, history(11)).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(s.adopt(10, -1, history(0)).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(s.adopt(-1, 0, history(0)).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(s.adopt(11, 11, history(11)).code(), StatusCode::kInvalidArgument) << "an open pair";
  EXPECT_EQ(s.adopt(10, 5, history(4)).code(), StatusCode::kInvalidArgument) << "history";
  EXPECT_EQ(s.length() + s.write_floor() + s.encoder_window_start(), 0);
  ASSERT_TRUE(s.adopt(131, 100, history(100)).ok());
  EXPECT_EQ(s.length(), 100);
  EXPECT_EQ(s.write_floor(), 131);
  EXPECT_EQ(s.encoder_window_start(), 100);
  EXPECT_EQ(s.decoder_window_start(), 100);
  EXPECT_EQ(s.history().back(), 99);
  EXPECT_EQ(s.adopt(131, 100, history(100)).code(), StatusCode::kFailedPrecondition) << "not empty";
  grow(s, 40);
  EXPECT_EQ(s.truncate(130).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(s.truncate(0).code(), StatusCode::kFailedPrecondition) << "the pages may be shared";
  EXPECT_TRUE(s.truncate(131).ok());
}

TEST_F(State, DecoderStart) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  ASSERT_TRUE(s.set_decoder_start(-5).ok());
  EXPECT_EQ(s.decoder_start(), 0);
  ASSERT_TRUE(s.set_decoder_start(20).ok());
  EXPECT_EQ(s.decoder_window_start(), 20);
  grow(s, 15);
  EXPECT_EQ(s.set_decoder_start(14).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(s.set_decoder_start(18).ok());
  grow(s, 10);
  EXPECT_EQ(s.decoder_window_start(), 18);
  EXPECT_TRUE(s.set_decoder_start(18).ok()) << "no change";
  ASSERT_TRUE(s.set_decoder_start(25).ok());  // the length: windows go on
  EXPECT_EQ(s.decoder_window_start(), 18);
  ASSERT_TRUE(s.set_decoder_start(30).ok());
  grow(s, 10);
  EXPECT_EQ(s.decoder_window_start(), 30);
  ASSERT_TRUE(s.truncate(28).ok());
  EXPECT_EQ(s.decoder_window_start(), 30);
  EXPECT_EQ(s.encoder_window_start(), 0);
}

TEST_F(State, ForksAreCopiesWithoutPages) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  grow(s, 140);
  SequenceState owner(config_, layout_, &pages_, kSlack);
  EXPECT_EQ(owner.copy_from(s).code(), StatusCode::kFailedPrecondition);
  SequenceState other_slack(config_, layout_, nullptr, kSlack + 1);
  EXPECT_EQ(other_slack.copy_from(s).code(), StatusCode::kInvalidArgument);
  SequenceState fork(config_, layout_, nullptr, kSlack);
  EXPECT_EQ(fork.copy_from(fork).code(), StatusCode::kInvalidArgument);
  s.window_ring(3)[5] = 77;
  ASSERT_TRUE(fork.copy_from(s).ok());
  EXPECT_EQ(fork.length(), 140);
  EXPECT_EQ(fork.history(), s.history());
  EXPECT_EQ(fork.window_ring(3)[5], 77);
  EXPECT_EQ(fork.page_count(), 0);
  EXPECT_EQ(fork.write_floor(), 128);
  EXPECT_EQ(fork.reserve(141).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(fork.copy_from(s).code(), StatusCode::kFailedPrecondition) << "not empty";
}

TEST_F(State, ResidentBytesGrowByPages) {
  SequenceState s(config_, layout_, &pages_, kSlack);
  const int64_t before = s.resident_bytes();
  ASSERT_TRUE(s.reserve(1).ok());
  EXPECT_GE(s.resident_bytes() - before, layout_.page_bytes);
  EXPECT_LT(s.resident_bytes() - before, layout_.page_bytes + 4096);
}

}  // namespace
}  // namespace deepinfer
