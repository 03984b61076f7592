// The draft module against the reference implementation's values (dspark.md §9.1, DESIGN §4): context rows from golden taps,
// every sublayer of every stage with golden inputs, then the Markov chain over the golden tokens.

#include <gtest/gtest.h>

#include <cmath>

#include "golden/recorder.h"
#include "golden/setup.h"
#include "testing/golden_file.h"
#include "testing/loaded_model.h"
#include "testing/named_backend.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::GoldenFile;
using testing::Recorder;
using testing::relative_l2;

constexpr double kLayerTolerance = 5e-3;  // DESIGN §4
constexpr float kE4m3Step = 0.126f;       // one step above a power of two, relative

using Setup = testing::GoldenSetup;

/// Golden inputs from the second stage on; the first one begins with the embedding.
class StageRecorder final : public StepObserver {
 public:
  StageRecorder(const GoldenFile* golden, std::string name, int64_t first_stage)
      : forced_(golden, std::move(name)), first_stage_(first_stage) {}
  void before_block(int64_t layer, std::span<bf16> x, std::span<float> pre) override {
    if (layer > first_stage_) forced_.before_block(layer, x, pre);
  }
  bool replace(std::string_view name, int64_t layer, std::span<bf16> data) override { return forced_.replace(name, layer, data); }
  void value(std::string_view name, int64_t layer, std::span<const bf16> data) override { forced_.value(name, layer, data); }
  void value(std::string_view name, int64_t layer, std::span<const float> data) override { forced_.value(name, layer, data); }
  void value(std::string_view name, int64_t layer, std::span<const int32_t> data) override { forced_.value(name, layer, data); }
  void value(std::string_view name, int64_t layer, std::span<const uint8_t> data) override { forced_.value(name, layer, data); }
  const Recorder& seen() const { return forced_; }

 private:
  Recorder forced_;
  int64_t first_stage_;
};

class DraftGolden : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_absent(GetParam().backend); !why.empty()) GTEST_SKIP() << why;
    const std::string checkpoint = GetParam().checkpoint;
    std::string directory = testing::nano_dir();
    if (checkpoint == "wide") {
      if (testing::shared_dir().empty())
        GTEST_SKIP() << "wide is read from the shared folder ($DEEPINFER_SHARED), which is absent";
      directory = testing::shared_dir() + "/nano/wide";
    }
    golden_ = std::make_unique<GoldenFile>(testing::source_dir() + "/tests/data/golden/" + checkpoint + ".draft.safetensors");
    loaded_ = testing::load_model(directory, GetParam().backend);
    config_ = &loaded_.model->config();
  }

  /// Packed rows on the E4M3 grid: equal on >= 99 %, and nowhere further apart than a step.
  void expect_rows(const std::string& name, const std::vector<uint8_t>& packed) {
    const std::vector<float> want = golden_->values(name);
    const int64_t dim = config_->head_dim;
    ASSERT_EQ(static_cast<int64_t>(packed.size()) / config_->window_row_bytes(), static_cast<int64_t>(want.size()) / dim) << name;
    size_t equal = 0;
    float largest = 0;
    for (const float w : want) largest = std::max(largest, std::fabs(w));
    for (size_t i = 0; i < want.size(); ++i) {
      const uint8_t* row = packed.data() + static_cast<int64_t>(i) / dim * config_->window_row_bytes();
      const int64_t at = static_cast<int64_t>(i) % dim;
      const float got = e4m3_to_float(row[at]) * e8m0_to_float(row[dim + at / 32]);
      equal += got == want[i] ? 1 : 0;
      EXPECT_LE(std::fabs(got - want[i]), std::max(kE4m3Step * std::max(std::fabs(got), std::fabs(want[i])), 1e-3f * largest))
          << name << "[" << i << "]";
    }
    EXPECT_GE(static_cast<double>(equal), 0.99 * static_cast<double>(want.size())) << name;
  }

  void expect_close(const std::string& name, std::span<const float> got) { expect_close_to(name, got, golden_->values(name)); }
  void expect_close_to(const std::string& name, std::span<const float> got, std::span<const float> want) {
    const double error = relative_l2(got, want);
    EXPECT_LE(error, kLayerTolerance) << name;
    worst_ = std::max(worst_, error);
  }

  std::unique_ptr<GoldenFile> golden_;
  testing::LoadedModel loaded_;
  const ModelConfig* config_ = nullptr;
  double worst_ = 0;
};

TEST_P(DraftGolden, EveryStageTeacherForced) {
  const int64_t first = config_->num_hidden_layers;
  for (const std::string test_case : {"short", "long"}) {
    const auto ids = golden_->i32(test_case + ".ids");
    const auto length = static_cast<int64_t>(ids.size()) - 1;
    auto state = loaded_.model->new_sequence();
    const StepSequence sequence{state.get(), length};
    StepBatch batch;
    batch.tokens = ids.first(static_cast<size_t>(length));
    batch.sequences = {&sequence, 1};
    ASSERT_TRUE(loaded_.model->forward(batch).has_value());

    StageRecorder record(golden_.get(), test_case, first);
    const DraftContext context{.state = state.get(), .row = 0, .position = 0, .count = length};
    const Status extended = loaded_.model->extend_draft({&context, 1}, &record);
    ASSERT_TRUE(extended.ok()) << extended.message();
    EXPECT_EQ(state->draft_end(), length);
    for (int64_t layer = first; layer < first + config_->num_nextn_predict_layers; ++layer)
      expect_rows(Recorder::name_of(test_case, layer, "context_kv"), record.seen().bytes.at({"context_kv", layer}));

    const auto want = golden_->i32(test_case + ".draft_ids");
    const auto logits = golden_->f32(test_case + ".draft_logits");
    const auto vocab = static_cast<size_t>(config_->vocab_size);
    const DraftSequence wants{state.get(), ids.back()};
    const auto out = loaded_.model->draft(
        {&wants, 1}, config_->dspark_block_size,
        [&](int64_t k, std::span<float> got, std::span<int32_t> tokens) {
          expect_close_to(test_case + ".draft_logits", got, logits.subspan(static_cast<size_t>(k) * vocab, vocab));
          tokens[0] = want[static_cast<size_t>(k)];
        },
        &record);
    ASSERT_TRUE(out.has_value()) << out.error().message();
    EXPECT_EQ(state->length(), length) << "a draft changes nothing";
    for (int64_t layer = first; layer < first + config_->num_nextn_predict_layers; ++layer) {
      const auto name = [&](const char* item) { return Recorder::name_of(test_case, layer, item); };
      const auto experts = golden_->i32(name("experts"));
      const auto& got = record.seen().ints.at({"experts", layer});
      EXPECT_TRUE(std::equal(experts.begin(), experts.end(), got.begin(), got.end())) << name("experts");
      expect_rows(name("window_kv"), record.seen().bytes.at({"window_kv", layer}));
      for (const char* item : {"attn_out", "ffn_out", "stream", "pre"})
        expect_close(name(item), record.seen().floats.at({item, layer}));
    }
    expect_close(test_case + ".draft_confidence", out->confidences);
  }
  std::printf("worst relative L2: %.2e\n", worst_);
}

INSTANTIATE_TEST_SUITE_P(All, DraftGolden,
                         ::testing::Values(Setup{"nano", "reference"}, Setup{"nano", "cpu"}, Setup{"nano", "cuda"},
                                           Setup{"nano", "cuda_features"}, Setup{"wide", "reference"}, Setup{"wide", "cpu"},
                                           Setup{"nano", "cpu_avx2"}),
                         [](const auto& param) { return param.param.name(); });

}  // namespace
}  // namespace deepinfer
