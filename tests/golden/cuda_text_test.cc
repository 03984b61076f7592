// What the GPU would say against what the CPU says, token by token along the CPU's greedy text. Two sound implementations of the
// same rounding points disagree here and there, for a choice or a code that flips moves everything behind it; the reference,
// which has the CPU's very rounding points and only adds more exactly, shows how often. The GPU must not be further away than
// that.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "testing/loaded_model.h"
#include "testing/named_backend.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

// Logits of `ids`, which continue `state`, at every row.
std::vector<float> logits_of(Model& model, SequenceState& state, std::span<const int32_t> ids) {
  std::vector<int32_t> rows(ids.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  const StepSequence sequence{&state, static_cast<int64_t>(ids.size())};
  StepBatch batch;
  batch.tokens = ids;
  batch.sequences = {&sequence, 1};
  batch.logit_rows = rows;
  const auto out = model.forward(batch);
  EXPECT_TRUE(out.has_value()) << out.error().message();
  return {out->logits.begin(), out->logits.end()};
}

std::vector<int32_t> best_tokens(const std::vector<float>& logits, int64_t vocab) {
  std::vector<int32_t> best;
  for (auto row = logits.begin(); row != logits.end(); row += vocab)
    best.push_back(static_cast<int32_t>(std::max_element(row, row + vocab) - row));
  return best;
}

// Next tokens along the CPU's greedy text, and how many of them others would choose otherwise.
struct Agreement {
  int64_t positions = 0;
  int64_t gpu_differs = 0;
  int64_t reference_differs = 0;
};

class CudaText : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_absent("cuda"); !why.empty()) GTEST_SKIP() << why;
    cpu_ = testing::load_model(testing::nano_dir(), "cpu", available_threads());
    gpu_ = testing::load_model(testing::nano_dir(), "cuda", 1);
    reference_ = testing::load_model(testing::nano_dir(), "reference", available_threads());
  }

  // Greedy text behind `ids` until they are `length`, or it ends. Positions before `first` do not count.
  void follow(std::vector<int32_t> ids, size_t length, size_t first, Agreement& found) {
    const int64_t vocab = cpu_.model->config().vocab_size;
    auto state = cpu_.model->new_sequence();
    std::vector<int32_t> want = best_tokens(logits_of(*cpu_.model, *state, ids), vocab);
    while (ids.size() < length && want.back() != cpu_.model->config().eos_token_id) {
      ids.push_back(want.back());
      want.push_back(best_tokens(logits_of(*cpu_.model, *state, {&ids.back(), 1}), vocab)[0]);
    }
    const auto differences = [&](testing::LoadedModel& other) {
      auto mirror = other.model->new_sequence();
      const std::vector<int32_t> got = best_tokens(logits_of(*other.model, *mirror, ids), vocab);
      EXPECT_EQ(got.size(), want.size());
      int64_t count = 0;
      for (size_t i = first; i < std::min(got.size(), want.size()); ++i) count += got[i] != want[i] ? 1 : 0;
      return count;
    };
    found.gpu_differs += differences(gpu_);
    found.reference_differs += differences(reference_);
    found.positions += static_cast<int64_t>(ids.size() - first);
  }

  static void expect_close(const char* what, const Agreement& found) {
    std::printf("%s: of %lld next tokens the GPU has %lld others than the CPU, the reference %lld\n", what,
                static_cast<long long>(found.positions), static_cast<long long>(found.gpu_differs),
                static_cast<long long>(found.reference_differs));
    EXPECT_GT(found.positions, 0);
    EXPECT_LE(found.gpu_differs, found.reference_differs + found.reference_differs / 4 + 10);
  }

  testing::LoadedModel cpu_, gpu_, reference_;
};

TEST_F(CudaText, NoFurtherFromTheCpuThanTheReference) {
  constexpr size_t kLength = 320;  // beyond nano's window, top-k and candidate pool
  Agreement found;
  for (const char* prompt :
       {"Once upon a time there was a fox", "The old lamp", "On Monday the children went to", "A dragon and a mouse",
        "In the deep forest", "\"Where is my hat?\" asked", "The ship sailed", "1 2 3 4 5"}) {
    const std::vector<int32_t> ids = cpu_.tokenizer->encode(prompt);
    ASSERT_FALSE(ids.empty());
    follow(ids, kLength, 0, found);
  }
  expect_close("free text", found);
}

// Answers to what nano has learned, where its logits lie further apart.
TEST_F(CudaText, AnswersNoFurtherFromTheCpuThanTheReference) {
  constexpr size_t kMostPrompt = 700;  // the reference takes its time
  constexpr size_t kMostAnswer = 64;
  std::ifstream file(testing::nano_dir() + "/skills.jsonl");
  std::string line;
  Agreement found;
  while (std::getline(file, line)) {
    const auto ids = nlohmann::json::parse(line)["prompt"].get<std::vector<int32_t>>();
    if (ids.size() <= kMostPrompt) follow(ids, ids.size() + kMostAnswer, ids.size() - 1, found);
  }
  expect_close("answers", found);
}

}  // namespace
}  // namespace deepinfer
