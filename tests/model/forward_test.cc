// Model::forward: what it refuses, image spans, input embeddings.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "golden/recorder.h"
#include "testing/pages.h"
#include "testing/random_model.h"

namespace deepinfer {
namespace {

using testing::CountingPages;
using testing::RandomModel;
using testing::Recorder;

std::vector<int32_t> some_tokens(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * 37 + 11) % 380));
  return ids;
}

class Forward : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    random_ = testing::make_random_model(GetParam());
    config_ = &random_.model->config();
  }
  Model& model() { return *random_.model; }

  struct Span {
    std::vector<uint8_t> image;
    std::vector<int32_t> embedding_rows;
    std::vector<bf16> embeddings;
  };
  std::vector<float> run(SequenceState& state, const std::vector<int32_t>& ids, const Span& span = {},
                         StepObserver* observer = nullptr) {
    const StepSequence sequence{&state, static_cast<int64_t>(ids.size())};
    std::vector<int32_t> rows;
    for (size_t i = 0; i < ids.size(); ++i) rows.push_back(static_cast<int32_t>(i));
    StepBatch batch;
    batch.tokens = ids;
    batch.sequences = {&sequence, 1};
    batch.logit_rows = rows;
    batch.image_mask = span.image;
    batch.embedding_rows = span.embedding_rows;
    batch.embeddings = span.embeddings;
    const auto out = model().forward(batch, observer);
    EXPECT_TRUE(out.has_value()) << out.error().message();
    return out ? std::vector<float>(out->logits.begin(), out->logits.end()) : std::vector<float>();
  }

  RandomModel random_;
  const ModelConfig* config_ = nullptr;
};

// Each bad step is refused, and both sequences of it go on as if it had never been tried.
TEST_P(Forward, RefusesBadSteps) {
  CountingPages pages(model().page_layout().page_bytes);
  auto a = model().new_sequence(&pages);
  auto b = model().new_sequence(&pages);
  const std::vector<int32_t> start = some_tokens(9);
  run(*a, start);
  run(*b, some_tokens(4));

  const std::vector<int32_t> ids = {5, 6, 7};
  struct Bad {
    const char* what;
    StatusCode code;
    const char* message;  ///< a part of it
    std::function<void(StepBatch& batch, std::vector<StepSequence>& sequences)> change;
  };
  static const std::vector<int32_t> none, negative = {5, -1, 7}, beyond = {5, 384, 7}, row_3 = {0, 3}, row_minus = {-1},
                                          row_0 = {0}, four = {1, 2, 3, 4};
  static const std::vector<uint8_t> short_mask = {0, 1}, long_mask = {0, 1, 0, 0};
  static const std::vector<bf16> one_short(63), two(128), one(64);
  const int64_t room = config_->max_position_embeddings;
  std::vector<int32_t> many(static_cast<size_t>(room), 3);
  const std::vector<Bad> table = {
      {"no tokens", StatusCode::kInvalidArgument, "no tokens", [](StepBatch& s, auto&) { s.tokens = none; }},
      {"no sequences", StatusCode::kInvalidArgument, "3 tokens for 0", [](StepBatch& s, auto&) { s.sequences = {}; }},
      {"a sequence without tokens", StatusCode::kInvalidArgument, "sequence 1 has 0",
       [](StepBatch&, auto& q) { q[0].count = 3, q[1].count = 0; }},
      {"a negative count", StatusCode::kInvalidArgument, "sequence 1 has -1",
       [](StepBatch&, auto& q) { q[0].count = 4, q[1].count = -1; }},
      {"more tokens than counted", StatusCode::kInvalidArgument, "4 tokens for 3", [](StepBatch& s, auto&) { s.tokens = four; }},
      {"fewer tokens than counted", StatusCode::kInvalidArgument, "3 tokens for 4", [](StepBatch&, auto& q) { q[1].count = 2; }},
      {"a negative token", StatusCode::kOutOfRange, "token 1 is -1", [](StepBatch& s, auto&) { s.tokens = negative; }},
      {"a token beyond the vocabulary", StatusCode::kOutOfRange, "token 1 is 384",
       [](StepBatch& s, auto&) { s.tokens = beyond; }},
      {"beyond the last position", StatusCode::kOutOfRange, "max_position_embeddings",
       [&](StepBatch& s, auto& q) { s.tokens = many, q[0].count = room - 9 + 1, q[1].count = 8; }},
      {"a count that overflows nothing", StatusCode::kOutOfRange, "max_position_embeddings",
       [](StepBatch&, auto& q) { q[0].count = int64_t{1} << 60; }},
      {"a short image mask", StatusCode::kInvalidArgument, "image mask", [](StepBatch& s, auto&) { s.image_mask = short_mask; }},
      {"a long image mask", StatusCode::kInvalidArgument, "image mask", [](StepBatch& s, auto&) { s.image_mask = long_mask; }},
      {"embeddings without rows", StatusCode::kInvalidArgument, "embedding values",
       [](StepBatch& s, auto&) { s.embeddings = one; }},
      {"rows without embeddings", StatusCode::kInvalidArgument, "embedding values",
       [](StepBatch& s, auto&) { s.embedding_rows = row_0; }},
      {"a short embedding", StatusCode::kInvalidArgument, "embedding values",
       [](StepBatch& s, auto&) { s.embedding_rows = row_0, s.embeddings = one_short; }},
      {"an embedding row beyond", StatusCode::kOutOfRange, "row 3 of 3",
       [](StepBatch& s, auto&) { s.embedding_rows = row_3, s.embeddings = two; }},
      {"a negative embedding row", StatusCode::kOutOfRange, "row -1",
       [](StepBatch& s, auto&) { s.embedding_rows = row_minus, s.embeddings = one; }},
      {"a logit row beyond", StatusCode::kOutOfRange, "row 3 of 3", [](StepBatch& s, auto&) { s.logit_rows = row_3; }},
      {"a negative logit row", StatusCode::kOutOfRange, "row -1", [](StepBatch& s, auto&) { s.logit_rows = row_minus; }},
  };
  for (const Bad& bad : table) {
    SCOPED_TRACE(bad.what);
    std::vector<StepSequence> sequences = {{a.get(), 2}, {b.get(), 1}};
    StepBatch batch;
    batch.tokens = ids;
    batch.sequences = sequences;
    bad.change(batch, sequences);
    const auto out = model().forward(batch);
    ASSERT_FALSE(out.has_value());
    EXPECT_EQ(out.error().code(), bad.code) << out.error().message();
    EXPECT_NE(out.error().message().find(bad.message), std::string::npos) << out.error().message();
    EXPECT_EQ(a->length(), 9);
    EXPECT_EQ(b->length(), 4);
    EXPECT_EQ(a->history().size(), 9u);
    EXPECT_EQ(b->history().size(), 4u);
    EXPECT_EQ(pages.live(), 2);
  }
  auto fresh = model().new_sequence();
  run(*fresh, start);
  EXPECT_EQ(run(*a, ids), run(*fresh, ids));
}

// No page for the second sequence: neither has changed, and both go on when there is one.
TEST_P(Forward, OutOfPages) {
  CountingPages pages(model().page_layout().page_bytes);
  auto a = model().new_sequence(&pages);
  auto b = model().new_sequence(&pages);
  run(*a, some_tokens(127));
  run(*b, some_tokens(128));
  pages.set_budget(3);
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  const std::vector<StepSequence> sequences = {{a.get(), 2}, {b.get(), 2}};
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = sequences;
  const auto out = model().forward(batch);
  ASSERT_FALSE(out.has_value());
  EXPECT_EQ(out.error().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(a->length(), 127);
  EXPECT_EQ(b->length(), 128);
  EXPECT_EQ(a->history().size(), 127u);
  EXPECT_EQ(pages.live(), 2) << "pages of the sequence that could have been served";
  pages.set_budget(4);
  ASSERT_TRUE(model().forward(batch).has_value());
  EXPECT_EQ(a->length(), 129);
  auto fresh = model().new_sequence();
  std::vector<int32_t> all = some_tokens(127);
  all.insert(all.end(), {1, 2, 9});
  const auto want = run(*fresh, all);
  const auto got = run(*a, {9});
  EXPECT_TRUE(std::equal(got.begin(), got.end(), want.end() - static_cast<int64_t>(got.size())));
}

// Logits of a row that skips the decoder: refused, and nothing has changed.
TEST_P(Forward, LogitsNeedTheDecoder) {
  auto a = model().new_sequence();
  auto b = model().new_sequence();
  ASSERT_TRUE(b->set_decoder_start(3).ok());
  const std::vector<int32_t> ids = some_tokens(7);
  const std::vector<StepSequence> sequences = {{a.get(), 2}, {b.get(), 5}};
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = sequences;
  for (int32_t r = 0; r < 7; ++r) {
    const std::vector<int32_t> rows = {r};
    batch.logit_rows = rows;
    const auto out = model().forward(batch);
    const bool skipped = r >= 2 && r < 5;
    ASSERT_EQ(out.has_value(), !skipped) << r;
    if (skipped) {
      EXPECT_EQ(out.error().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(out.error().message().find("below decoder_start 3"), std::string::npos) << out.error().message();
      EXPECT_EQ(a->length(), 0);
      continue;
    }
    a->reset();
    b->reset();
    ASSERT_TRUE(b->set_decoder_start(3).ok());
  }
}

// What a step says it ran, and zeros where the draft module gets nothing.
TEST_P(Forward, CountsItsWork) {
  auto a = model().new_sequence();
  auto b = model().new_sequence();
  auto c = model().new_sequence();
  ASSERT_TRUE(b->set_decoder_start(7).ok());
  ASSERT_TRUE(c->set_decoder_start(50).ok());
  const std::vector<int32_t> ids = some_tokens(30);
  const std::vector<StepSequence> sequences = {{c.get(), 4}, {b.get(), 16}, {a.get(), 10}};
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = sequences;
  const std::vector<int32_t> rows = {11, 29};
  batch.logit_rows = rows;
  const auto out = model().forward(batch);
  ASSERT_TRUE(out.has_value()) << out.error().message();
  EXPECT_EQ(config_->first_decoder_layer(), 3);
  EXPECT_EQ(out->encoder_row_layers, 30 * 3);
  EXPECT_EQ(out->decoder_row_layers, (9 + 10) * 4);
  const std::vector<bf16> taps = model().main_hidden();
  ASSERT_EQ(static_cast<int64_t>(taps.size()), 30 * 3 * config_->hidden_size);
  for (int64_t r = 0; r < 30; ++r) {
    const auto row =
        std::span(taps).subspan(static_cast<size_t>(r * 3 * config_->hidden_size), static_cast<size_t>(3 * config_->hidden_size));
    const bool zero = std::all_of(row.begin(), row.end(), [](bf16 v) { return v.bits == 0; });
    EXPECT_EQ(zero, r < 11) << r;
  }
  // A step of which nothing is kept ends with the last global rows.
  batch.tokens = std::span(ids).first(4);
  batch.sequences = std::span(sequences).first(1);
  batch.logit_rows = {};
  const auto none = model().forward(batch);
  ASSERT_TRUE(none.has_value()) << none.error().message();
  EXPECT_EQ(none->encoder_row_layers, 4 * 3);
  EXPECT_EQ(none->decoder_row_layers, 0);
  EXPECT_TRUE(none->logits.empty());
  EXPECT_EQ(c->length(), 8);
}

TEST_P(Forward, RefusesBadPrefixes) {
  auto a = model().new_sequence();
  run(*a, some_tokens(20));
  auto b = model().new_borrowing_sequence();
  std::vector<uint8_t*> pages = {a->main_rows(0).pages[0]};
  b->append_pages(pages);
  std::vector<int32_t> ids = some_tokens(20);
  const std::vector<uint8_t> mask(19, 0);
  EXPECT_EQ(model().adopt_prefix(*b, ids, mask, 3).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(model().adopt_prefix(*b, ids, {}, -1).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(model().adopt_prefix(*b, ids, {}, 21).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(model().adopt_prefix(*b, std::vector<int32_t>(1000, 3), {}, 0).code(), StatusCode::kOutOfRange);
  ids[4] = static_cast<int32_t>(config_->vocab_size);
  EXPECT_EQ(model().adopt_prefix(*b, ids, {}, 3).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(b->length(), 0);
  ids[4] = 3;
  std::vector<uint8_t> image(20, 0);
  image[1] = 1;
  ASSERT_TRUE(model().adopt_prefix(*b, ids, image, 3).ok());
  EXPECT_EQ(b->history(), (std::vector<int32_t>{ids[0], EngramHash::kDead, ids[2]}));
}

TEST_P(Forward, LogitRowsAreThoseAskedFor) {
  auto a = model().new_sequence();
  const std::vector<int32_t> ids = some_tokens(11);
  const auto all = run(*a, ids);
  const auto vocab = config_->vocab_size;
  auto b = model().new_sequence();
  const StepSequence sequence{b.get(), 11};
  const std::vector<int32_t> rows = {0, 4, 10};
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = {&sequence, 1};
  batch.logit_rows = rows;
  const auto out = model().forward(batch);
  ASSERT_TRUE(out.has_value());
  ASSERT_EQ(static_cast<int64_t>(out->logits.size()), 3 * vocab);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::equal(out->logits.begin() + static_cast<int64_t>(i) * vocab,
                           out->logits.begin() + static_cast<int64_t>(i + 1) * vocab, all.begin() + rows[i] * vocab));
  }
  EXPECT_EQ(static_cast<int64_t>(model().main_hidden().size()), 11 * 3 * config_->hidden_size);
  auto c = model().new_sequence();
  const StepSequence again{c.get(), 11};
  batch.sequences = {&again, 1};
  batch.logit_rows = {};
  const auto none = model().forward(batch);
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->logits.empty());
}

// Input embeddings replace the table's: those of other tokens give those tokens' logits, where nothing else depends on the id.
TEST_P(Forward, EmbeddingsReplaceTheTable) {
  RandomModel plain = testing::make_random_model(GetParam(), 2, [](nlohmann::json& t) {
    t["engram_layer_ids"] = nlohmann::json::array();
    t["engram_num_embeddings"] = nlohmann::json::array();
  });
  std::swap(random_, plain);
  config_ = &model().config();
  std::vector<int32_t> ids = some_tokens(20);
  auto a = model().new_sequence();
  const auto want = run(*a, ids);
  const auto* table = random_.checkpoint->find("embed.weight")->as<bf16>();
  Span span;
  for (int32_t r : {3, 4, 17}) {
    span.embedding_rows.push_back(r);
    const bf16* row = table + ids[static_cast<size_t>(r)] * config_->hidden_size;
    span.embeddings.insert(span.embeddings.end(), row, row + config_->hidden_size);
    ids[static_cast<size_t>(r)] = 380;
  }
  auto b = model().new_sequence();
  EXPECT_EQ(run(*b, ids, span), want);
  auto c = model().new_sequence();
  EXPECT_NE(run(*c, ids), want);
}

class Images : public Forward {
 protected:
  static constexpr int64_t kRows = 24;
  static constexpr int64_t kFirst = 6;
  static constexpr int64_t kLast = 13;  // the span is [6, 13)
  void SetUp() override {
    Forward::SetUp();
    ids_ = some_tokens(kRows);
    span_.image.assign(kRows, 0);
    for (int64_t r = kFirst; r < kLast; ++r) {
      ids_[static_cast<size_t>(r)] = 380;
      span_.image[static_cast<size_t>(r)] = 1;
      span_.embedding_rows.push_back(static_cast<int32_t>(r));
      for (int64_t i = 0; i < config_->hidden_size; ++i)
        span_.embeddings.push_back(to_bf16(static_cast<float>((r * 31 + i * 7) % 17 - 8) / 4));
    }
  }
  std::vector<int32_t> ids_;
  Span span_;
};

// Rows of a span enter blocks 0 and 2 through no Engram; text rows do.
TEST_P(Images, TakeNoEngram) {
  Recorder record;
  auto state = model().new_sequence();
  run(*state, ids_, span_, &record);
  const int64_t n = config_->hc_mult;
  const int64_t width = n * config_->hidden_size;
  // Layer 0 starts from the embeddings, layer 2 from the stream of layer 1.
  const auto* table = random_.checkpoint->find("embed.weight")->as<bf16>();
  for (int64_t layer : config_->engram_layer_ids) {
    const auto& after = record.floats.at({"engram_out", layer});
    std::vector<float> before;
    if (layer > 0) {
      before = record.floats.at({"stream", layer - 1});
    } else {
      for (int64_t r = 0; r < kRows; ++r) {
        const bool image = span_.image[static_cast<size_t>(r)] != 0;
        const bf16* row = image ? span_.embeddings.data() + (r - kFirst) * config_->hidden_size
                                : table + ids_[static_cast<size_t>(r)] * config_->hidden_size;
        for (int64_t s = 0; s < n; ++s) {
          for (int64_t i = 0; i < config_->hidden_size; ++i) before.push_back(to_float(row[i]));
        }
      }
    }
    for (int64_t r = 0; r < kRows; ++r) {
      const bool same = std::equal(after.begin() + r * width, after.begin() + (r + 1) * width, before.begin() + r * width);
      EXPECT_EQ(same, span_.image[static_cast<size_t>(r)] != 0) << "layer " << layer << " row " << r;
    }
  }
}

// Rows of a span choose experts with bias_vl, the others with bias (spec §4). The test's bias_vl leaves one choice.
TEST_P(Images, ChooseExpertsWithTheirOwnBias) {
  const auto path = random_.folder->path + "/model-00001-of-00001.safetensors";
  {
    std::vector<std::pair<int64_t, int64_t>> places;  // offset, bytes
    auto file = MappedFile::Open(path);
    ASSERT_TRUE(file.has_value()) << file.error().message();
    const auto header = parse_safetensors(file->bytes(), path);
    ASSERT_TRUE(header.has_value());
    for (const SafetensorsEntry& e : header->entries) {
      if (e.name.starts_with("layers.") && e.name.ends_with("ffn.gate.bias_vl")) places.emplace_back(e.offset, e.bytes);
    }
    ASSERT_EQ(places.size(), 7u);
    std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
    const std::vector<float> bias_vl = {0.0f, 50.0f, 0.0f, 100.0f};
    for (auto [offset, bytes] : places) {
      ASSERT_EQ(bytes, 16);
      out.seekp(offset);
      out.write(reinterpret_cast<const char*>(bias_vl.data()), bytes);
    }
  }
  auto reopened = Checkpoint::Open(random_.folder->path);
  ASSERT_TRUE(reopened.has_value()) << reopened.error().message();
  random_.checkpoint = *reopened;
  RandomModel patched = testing::share_checkpoint(random_, GetParam());
  Recorder record;
  auto state = patched.model->new_sequence();
  const StepSequence sequence{state.get(), kRows};
  StepBatch batch;
  batch.tokens = ids_;
  batch.sequences = {&sequence, 1};
  batch.image_mask = span_.image;
  batch.embedding_rows = span_.embedding_rows;
  batch.embeddings = span_.embeddings;
  ASSERT_TRUE(patched.model->forward(batch, &record).has_value());
  int64_t text_otherwise = 0;
  for (int64_t layer = 0; layer < config_->num_hidden_layers; ++layer) {
    const auto& experts = record.ints.at({"experts", layer});
    const auto& weights = record.floats.at({"expert_weights", layer});
    for (int64_t r = 0; r < kRows; ++r) {
      const bool forced = experts[static_cast<size_t>(2 * r)] == 3 && experts[static_cast<size_t>(2 * r + 1)] == 1;
      if (span_.image[static_cast<size_t>(r)] != 0) {
        EXPECT_TRUE(forced) << "layer " << layer << " row " << r;
      } else {
        text_otherwise += forced ? 0 : 1;
      }
      EXPECT_NEAR(weights[static_cast<size_t>(2 * r)] + weights[static_cast<size_t>(2 * r + 1)], 1.5f,
                  1e-5f);  // the bias is not in it
    }
  }
  EXPECT_GT(text_otherwise, config_->num_hidden_layers * (kRows - 7) / 2);
}

// Text behind a span looks back to the span and no further (spec §5.3).
TEST_P(Images, BlockTheLookBack) {
  Recorder record;
  auto state = model().new_sequence();
  run(*state, ids_, span_, &record);
  EXPECT_EQ(state->history()[kFirst], EngramHash::kDead);
  EXPECT_EQ(state->history()[kLast], ids_[kLast]);
  const EngramHash hash(*config_, static_cast<int32_t>(config_->engram_pad_token_id));
  const int64_t columns = hash.columns();
  for (int64_t slot = 0; slot < 2; ++slot) {
    const auto& got = record.ints.at({"engram_rows", config_->engram_layer_ids[static_cast<size_t>(slot)]});
    for (int64_t r = 0; r < kRows; ++r) {
      // The tokens behind the span alone; a row of the span sees padding only.
      const int64_t from = r < kFirst ? 0 : r < kLast ? r : kLast;
      std::vector<int32_t> history;
      for (int64_t i = from; i <= r; ++i)
        history.push_back(span_.image[static_cast<size_t>(i)] != 0 ? EngramHash::kDead : ids_[static_cast<size_t>(i)]);
      std::vector<int64_t> want(static_cast<size_t>(columns));
      hash.rows(slot, history, want.data());
      EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + r * columns)) << "slot " << slot << " row " << r;
    }
  }
}

// Cut anywhere, the span and what follows it come out the same, in rollback too.
TEST_P(Images, SurviveChunksAndRollback) {
  auto whole = model().new_sequence();
  const auto want = run(*whole, ids_, span_);
  const auto vocab = config_->vocab_size;
  const auto part = [&](SequenceState& state, int64_t begin, int64_t end) {
    Span cut;
    cut.image.assign(span_.image.begin() + begin, span_.image.begin() + end);
    for (size_t i = 0; i < span_.embedding_rows.size(); ++i) {
      const int64_t r = span_.embedding_rows[i];
      if (r < begin || r >= end) continue;
      cut.embedding_rows.push_back(static_cast<int32_t>(r - begin));
      const bf16* row = span_.embeddings.data() + static_cast<int64_t>(i) * config_->hidden_size;
      cut.embeddings.insert(cut.embeddings.end(), row, row + config_->hidden_size);
    }
    const auto got = run(state, {ids_.begin() + begin, ids_.begin() + end}, cut);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + begin * vocab)) << begin << ".." << end;
  };
  for (int64_t size : {1, 3, 5, 7}) {
    auto state = model().new_sequence();
    for (int64_t begin = 0; begin < kRows; begin += size) part(*state, begin, std::min(kRows, begin + size));
    ASSERT_TRUE(state->truncate(kLast - 2).ok());  // into the span
    part(*state, kLast - 2, kLast + 1);
    part(*state, kLast + 1, kRows);
  }
}

// Behind a cached prefix with the span in it, replayed or not, and with a decoder that starts inside the span.
TEST_P(Images, SurvivePrefixesAndDecoderStarts) {
  const auto cut = [&](int64_t begin) {
    Span part;
    part.image.assign(span_.image.begin() + begin, span_.image.end());
    for (size_t i = 0; i < span_.embedding_rows.size(); ++i) {
      if (span_.embedding_rows[i] < begin) continue;
      part.embedding_rows.push_back(static_cast<int32_t>(span_.embedding_rows[i] - begin));
      const bf16* row = span_.embeddings.data() + static_cast<int64_t>(i) * config_->hidden_size;
      part.embeddings.insert(part.embeddings.end(), row, row + config_->hidden_size);
    }
    return part;
  };
  auto whole = model().new_sequence();
  const auto want = run(*whole, ids_, span_);
  for (int64_t hit : {8, 13, 16}) {
    std::vector<uint8_t> copy(static_cast<size_t>(model().page_layout().page_bytes) + 64);
    uint8_t* page = copy.data() + (64 - reinterpret_cast<uintptr_t>(copy.data()) % 64);
    std::copy_n(whole->main_rows(0).pages[0], model().page_layout().page_bytes, page);
    auto state = model().new_borrowing_sequence();
    state->append_pages({&page, 1});
    const auto n = static_cast<size_t>(hit);
    ASSERT_TRUE(model().adopt_prefix(*state, std::span(ids_).first(n), std::span(span_.image).first(n), 0).ok());
    EXPECT_EQ(run(*state, ids_, span_), want);
    if (hit % 2 != 0) continue;
    WindowSnapshot snapshot;
    auto first = model().new_sequence();
    Span head;
    head.image.assign(span_.image.begin(), span_.image.begin() + hit);
    for (size_t i = 0; i < span_.embedding_rows.size() && span_.embedding_rows[i] < hit; ++i) {
      head.embedding_rows.push_back(span_.embedding_rows[i]);
      const bf16* row = span_.embeddings.data() + static_cast<int64_t>(i) * config_->hidden_size;
      head.embeddings.insert(head.embeddings.end(), row, row + config_->hidden_size);
    }
    run(*first, {ids_.begin(), ids_.begin() + hit}, head);
    first->save_window(snapshot);
    state->reset();
    state->append_pages({&page, 1});
    ASSERT_TRUE(model().adopt_prefix(*state, std::span(ids_).first(n), std::span(span_.image).first(n), snapshot).ok());
    const auto got = run(*state, {ids_.begin() + hit, ids_.end()}, cut(hit));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + hit * config_->vocab_size));
  }
  // Narrowed at d in one step, or cut there: the mask moves with its rows.
  const int64_t d = kFirst + 3;
  const auto narrowed = [&](SequenceState& state, int64_t begin, int64_t end, const Span& span) {
    const StepSequence sequence{&state, end - begin};
    const std::vector<int32_t> rows = {static_cast<int32_t>(end - begin - 1)};
    StepBatch batch;
    batch.tokens = std::span(ids_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    batch.sequences = {&sequence, 1};
    batch.image_mask = span.image;
    batch.embedding_rows = span.embedding_rows;
    batch.embeddings = span.embeddings;
    if (end == kRows) batch.logit_rows = rows;
    const auto out = model().forward(batch);
    EXPECT_TRUE(out.has_value()) << out.error().message();
    return std::vector<float>(out->logits.begin(), out->logits.end());
  };
  auto one = model().new_sequence();
  ASSERT_TRUE(one->set_decoder_start(d).ok());
  const auto last = narrowed(*one, 0, kRows, span_);
  auto two = model().new_sequence();
  ASSERT_TRUE(two->set_decoder_start(d).ok());
  Span head;
  head.image.assign(span_.image.begin(), span_.image.begin() + d);
  head.embedding_rows = {6, 7, 8};
  head.embeddings.assign(span_.embeddings.begin(), span_.embeddings.begin() + 3 * config_->hidden_size);
  narrowed(*two, 0, d, head);
  EXPECT_EQ(narrowed(*two, d, kRows, cut(d)), last);
}

std::string backend_name(const ::testing::TestParamInfo<const char*>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(All, Forward, ::testing::Values("reference", "cpu"), backend_name);
INSTANTIATE_TEST_SUITE_P(All, Images, ::testing::Values("reference", "cpu"), backend_name);

}  // namespace
}  // namespace deepinfer
