// Steps that a device records and replays, rows filled up to few counts, against the same steps as they come.

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <numeric>

#include "ops/cuda/cuda_device.h"
#include "ops/cuda/cuda_graph.h"
#include "testing/guarded_backend.h"
#include "testing/named_backend.h"
#include "testing/random.h"
#include "testing/random_model.h"

namespace deepinfer {
namespace {

using testing::Random;
using testing::RandomModel;

/// Sequences of one model.
class Batch {
 public:
  Batch(Model& model, int64_t sequences) : model_(model) {
    for (int64_t i = 0; i < sequences; ++i) states_.push_back(model.new_sequence());
  }
  Batch(Model& model, std::vector<std::unique_ptr<SequenceState>> states) : model_(model), states_(std::move(states)) {}
  /// New tokens of each sequence; logits of all rows, or of each last one.
  std::vector<float> step(const std::vector<std::vector<int32_t>>& tokens, bool all) {
    std::vector<int32_t> ids, rows;
    std::vector<StepSequence> sequences;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].empty()) continue;
      ids.insert(ids.end(), tokens[i].begin(), tokens[i].end());
      sequences.push_back({states_[i].get(), static_cast<int64_t>(tokens[i].size())});
      const auto end = static_cast<int32_t>(ids.size());
      for (int32_t r = all ? end - static_cast<int32_t>(tokens[i].size()) : end - 1; r < end; ++r) rows.push_back(r);
    }
    StepBatch batch;
    batch.tokens = ids;
    batch.sequences = sequences;
    batch.logit_rows = rows;
    const auto out = model_.forward(batch);
    EXPECT_TRUE(out.has_value()) << out.error().message();
    return out ? std::vector<float>(out->logits.begin(), out->logits.end()) : std::vector<float>();
  }
  /// Drafts of every sequence behind `anchor`, drawn by the backend: tokens, then the bits of confidences.
  std::vector<int32_t> draft(int32_t anchor, int64_t length) {
    std::vector<DraftSequence> wants;
    for (const auto& state : states_) {
      const bool greedy = wants.size() % 2 == 0;
      wants.push_back({state.get(), anchor, DrawRow{.greedy = greedy, .temperature = 0.8f, .seed = wants.size()}});
    }
    const auto out = model_.draft(wants, length, [](int64_t, std::span<float>, std::span<int32_t>) { FAIL() << "picked"; });
    EXPECT_TRUE(out.has_value()) << out.error().message();
    if (!out) return {};
    std::vector<int32_t> all(out->tokens.begin(), out->tokens.end());
    for (const float confidence : out->confidences) all.push_back(std::bit_cast<int32_t>(confidence));
    return all;
  }
  /// Rows of the last step, `count` of each sequence, of which the first `kept` stay and become context of the drafts.
  void keep(int64_t count, int64_t kept) {
    std::vector<DraftContext> contexts;
    for (size_t i = 0; i < states_.size(); ++i) {
      const int64_t position = states_[i]->length() - count;
      truncate(i, count - kept);
      contexts.push_back({states_[i].get(), static_cast<int64_t>(i) * count, position, kept});
    }
    const Status status = model_.extend_draft(contexts);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void truncate(size_t i, int64_t by) { EXPECT_TRUE(states_[i]->truncate(states_[i]->length() - by).ok()); }

 private:
  Model& model_;
  std::vector<std::unique_ptr<SequenceState>> states_;
};

class Replayed : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_absent(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(Replayed, GivesTheBitsOfPlainSteps) {
  RandomModel recorded = testing::make_random_model(GetParam(), 2);
  RandomModel plain = testing::share_checkpoint(recorded, GetParam(), 2, {.replay = false});
  Random random(1);
  const int64_t vocab = plain.model->config().vocab_size;
  for (const int64_t count : {1, 3, 9, 13, 21}) {
    Batch got(*recorded.model, count);
    Batch want(*plain.model, count);
    const auto both = [&](const std::vector<std::vector<int32_t>>& tokens, bool all, const char* what) {
      const std::vector<float> a = got.step(tokens, all);
      const std::vector<float> b = want.step(tokens, all);
      ASSERT_EQ(a.size(), b.size());
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what << ", " << count << " sequences";
    };
    const auto ids = [&](int64_t n) {
      std::vector<int32_t> v(static_cast<size_t>(n));
      for (int32_t& id : v) id = static_cast<int32_t>(random.below(vocab));
      return v;
    };
    std::vector<std::vector<int32_t>> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(ids(3 + 7 * i % 40));
    ASSERT_NO_FATAL_FAILURE(both(tokens, false, "prompts"));
    for (int round = 0; round < 30; ++round) {
      for (auto& t : tokens) t = ids(1);
      ASSERT_NO_FATAL_FAILURE(both(tokens, true, "decoding"));
    }
    // Drafts, some of which are taken back; somebody sits a step out.
    for (int round = 0; round < 8; ++round) {
      for (auto& t : tokens) t = ids(random.between(1, 4));
      if (count > 1) tokens[static_cast<size_t>(random.below(count))].clear();
      ASSERT_NO_FATAL_FAILURE(both(tokens, true, "drafts"));
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i].empty()) continue;
        const int64_t back = random.below(static_cast<int64_t>(tokens[i].size()));
        got.truncate(i, back);
        want.truncate(i, back);
      }
    }
  }
  // The device counts experts of the batch's own rows, not of those that fill it up.
  recorded.model->collect_expert_load();
  plain.model->collect_expert_load();
  const auto counts = recorded.model->expert_load().counts();
  EXPECT_EQ(counts, plain.model->expert_load().counts());
  for (int64_t layer = 0; layer < recorded.model->config().num_hidden_layers; ++layer) {
    const auto& own = counts[static_cast<size_t>(layer)];
    EXPECT_GT(std::accumulate(own.begin(), own.end(), int64_t{0}), 0) << "layer " << layer;
  }
  if (std::string(GetParam()).starts_with("guarded")) return;
  const CudaReplays replays = cuda_replays(*recorded.backend);
  EXPECT_GT(replays.recorded, 4);
  EXPECT_GT(replays.replayed, 60);
  EXPECT_EQ(cuda_replays(*plain.backend).recorded + cuda_replays(*plain.backend).plain, 0);
}

// Rounds of drafts, steps that verify them, and the rows that stay: all of them recorded and replayed, at every number of
// sequences and accepted drafts.
TEST_P(Replayed, DraftsHaveTheBitsOfPlainRounds) {
  RandomModel recorded = testing::make_random_model(GetParam(), 2);
  RandomModel plain = testing::share_checkpoint(recorded, GetParam(), 2, {.replay = false});
  const ModelConfig& c = plain.model->config();
  Random random(2);
  for (const int64_t count : {1, 2, 5, 11}) {
    Batch got(*recorded.model, count);
    Batch want(*plain.model, count);
    std::vector<std::vector<int32_t>> prompts;
    for (int64_t i = 0; i < count; ++i) prompts.push_back({3, 4, static_cast<int32_t>(5 + i), 6});
    got.step(prompts, false);
    want.step(prompts, false);
    got.keep(4, 4);
    want.keep(4, 4);
    for (int round = 0; round < 24; ++round) {
      const auto anchor = static_cast<int32_t>(random.below(c.vocab_size));
      const int64_t length = round % 6 == 5 ? random.between(1, c.dspark_block_size) : c.dspark_block_size;
      const std::vector<int32_t> drafts = got.draft(anchor, length);
      ASSERT_EQ(drafts, want.draft(anchor, length)) << count << " sequences, round " << round;
      std::vector<std::vector<int32_t>> rows;
      for (int64_t i = 0; i < count; ++i) {
        rows.push_back({anchor});
        rows.back().insert(rows.back().end(), drafts.begin() + i * length, drafts.begin() + (i + 1) * length);
      }
      const std::vector<float> a = got.step(rows, true);
      const std::vector<float> b = want.step(rows, true);
      ASSERT_EQ(a.size(), b.size());
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << count << " sequences, round " << round;
      const int64_t kept = random.between(1, length + 1);
      got.keep(length + 1, kept);
      want.keep(length + 1, kept);
    }
  }
  recorded.model->collect_expert_load();
  plain.model->collect_expert_load();
  EXPECT_EQ(recorded.model->expert_load().counts(), plain.model->expert_load().counts());
  if (std::string(GetParam()).starts_with("guarded")) return;
  const CudaReplays replays = cuda_replays(*recorded.backend);
  EXPECT_GT(replays.replayed, replays.plain + replays.recorded);
}

// Where room was made for the largest, no round asks for more.
TEST_P(Replayed, RoundsOfDraftsFindTheirRoom) {
  RandomModel subject = testing::make_random_model(GetParam(), 2);
  Model& model = *subject.model;
  DeviceMemory& memory = subject.backend->memory();
  const int64_t block = model.config().dspark_block_size;
  const int64_t count = 5;
  std::vector<std::unique_ptr<SequenceState>> states;
  for (int64_t i = 0; i < count; ++i) states.push_back(model.new_borrowing_sequence());
  model.reserve(states, count * (1 + block), kPagePositions, count * (1 + block), block);
  std::vector<uint8_t*> pages;
  for (const auto& state : states) {
    pages.push_back(static_cast<uint8_t*>(memory.allocate(model.page_layout().page_bytes)));
    state->append_pages({&pages.back(), 1});
  }
  const auto allocations = [&] {
    return std::string(GetParam()).starts_with("guarded") ? testing::guarded_allocations() : cuda_allocations();
  };
  const int64_t before = allocations();
  {
    Batch batch(model, std::move(states));
    batch.step(std::vector<std::vector<int32_t>>(static_cast<size_t>(count), {3, 4}), false);
    batch.keep(2, 2);
    for (int round = 0; round < 4; ++round) {
      for (int64_t length = 1; length <= block; ++length) {
        const std::vector<int32_t> drafts = batch.draft(7, length);
        std::vector<std::vector<int32_t>> rows;
        for (int64_t i = 0; i < count; ++i) rows.emplace_back(drafts.begin() + i * length, drafts.begin() + (i + 1) * length);
        batch.step(rows, true);
        batch.keep(length, 1 + length / 2);
      }
    }
    EXPECT_EQ(allocations(), before);
  }
  for (uint8_t* page : pages) memory.free(page);
}

INSTANTIATE_TEST_SUITE_P(All, Replayed, ::testing::Values("guarded", "guarded_ahead", "cuda", "cuda_features"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace deepinfer
