// Steps that a device records and replays, rows filled up to few counts, against the same steps as they come.

#include <gtest/gtest.h>

#include <cstring>

#include "ops/cuda/cuda_graph.h"
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
  if (std::string(GetParam()) == "guarded") return;
  const CudaReplays replays = cuda_replays(*recorded.backend);
  EXPECT_GT(replays.recorded, 4);
  EXPECT_GT(replays.replayed, 60);
  EXPECT_EQ(cuda_replays(*plain.backend).recorded + cuda_replays(*plain.backend).plain, 0);
}

INSTANTIATE_TEST_SUITE_P(All, Replayed, ::testing::Values("guarded", "cuda", "cuda_features"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace deepinfer
