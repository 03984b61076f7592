// What the GPU would say against what the CPU says, token by token along the CPU's greedy text. Two sound implementations of the
// same rounding points disagree here and there, for a choice or a code that flips moves everything behind it; the reference,
// which has the CPU's very rounding points and only adds more exactly, shows how often. The GPU must not be further away than
// that.

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(CudaText, NoFurtherFromTheCpuThanTheReference) {
  if (const std::string why = testing::why_absent("cuda"); !why.empty()) GTEST_SKIP() << why;
  testing::LoadedModel cpu = testing::load_model(testing::nano_dir(), "cpu", available_threads());
  testing::LoadedModel gpu = testing::load_model(testing::nano_dir(), "cuda", 1);
  testing::LoadedModel reference = testing::load_model(testing::nano_dir(), "reference", available_threads());
  const int64_t vocab = cpu.model->config().vocab_size;
  constexpr size_t kLength = 320;  // beyond nano's window, top-k and candidate pool
  int64_t positions = 0;
  int64_t gpu_differs = 0;
  int64_t reference_differs = 0;
  for (const char* prompt :
       {"Once upon a time there was a fox", "The old lamp", "On Monday the children went to", "A dragon and a mouse",
        "In the deep forest", "\"Where is my hat?\" asked", "The ship sailed", "1 2 3 4 5"}) {
    std::vector<int32_t> ids = cpu.tokenizer->encode(prompt);
    ASSERT_FALSE(ids.empty());
    auto state = cpu.model->new_sequence();
    std::vector<int32_t> want = best_tokens(logits_of(*cpu.model, *state, ids), vocab);
    while (ids.size() < kLength && want.back() != cpu.model->config().eos_token_id) {
      ids.push_back(want.back());
      want.push_back(best_tokens(logits_of(*cpu.model, *state, {&ids.back(), 1}), vocab)[0]);
    }
    const auto differences = [&](testing::LoadedModel& other) {
      auto mirror = other.model->new_sequence();
      const std::vector<int32_t> got = best_tokens(logits_of(*other.model, *mirror, ids), vocab);
      EXPECT_EQ(got.size(), want.size());
      int64_t count = 0;
      for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) count += got[i] != want[i] ? 1 : 0;
      return count;
    };
    gpu_differs += differences(gpu);
    reference_differs += differences(reference);
    positions += static_cast<int64_t>(ids.size());
  }
  std::printf("of %lld next tokens the GPU has %lld others than the CPU, the reference %lld\n", static_cast<long long>(positions),
              static_cast<long long>(gpu_differs), static_cast<long long>(reference_differs));
  EXPECT_LE(gpu_differs, reference_differs + reference_differs / 4 + 10);
}

}  // namespace
}  // namespace deepinfer
