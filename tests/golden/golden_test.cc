// The engine against the reference implementation's values (DESIGN §4): layer by layer with teacher-forced inputs, choices
// first. Every case runs for both checkpoints and both backends.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "testing/golden_file.h"
#include "testing/loaded_model.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

using testing::GoldenFile;
using testing::relative_l2;

constexpr double kLayerTolerance = 5e-3;

std::string layer_name(const std::string& name, int64_t layer, const std::string& item) {
  return fmt::format("{}.L{:02d}.{}", name, layer, item);
}

// Keeps the values of a pass by name and layer, and replaces each block's input by the golden one.
class Recorder final : public StepObserver {
 public:
  Recorder(const GoldenFile* golden, std::string forced_case) : golden_(golden), case_(std::move(forced_case)) {}

  void before_block(int64_t layer, std::span<bf16> x, std::span<float> pre) override {
    if (case_.empty() || layer == 0) return;
    const auto stream = golden_->f32(layer_name(case_, layer - 1, "stream"));
    const auto mix = golden_->f32(layer_name(case_, layer - 1, "pre"));
    ASSERT_EQ(stream.size(), x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(stream[i]);
    std::copy(mix.begin(), mix.end(), pre.begin());
  }

  void value(std::string_view name, int64_t layer, std::span<const bf16> data) override {
    auto& v = floats[{std::string(name), layer}];
    v.clear();
    for (bf16 x : data) v.push_back(to_float(x));
  }
  void value(std::string_view name, int64_t layer, std::span<const float> data) override {
    floats[{std::string(name), layer}].assign(data.begin(), data.end());
  }
  void value(std::string_view name, int64_t layer, std::span<const int32_t> data) override {
    ints[{std::string(name), layer}].assign(data.begin(), data.end());
  }
  void value(std::string_view name, int64_t layer, std::span<const int64_t> data) override {
    ints[{std::string(name), layer}].assign(data.begin(), data.end());
  }
  void value(std::string_view name, int64_t layer, std::span<const uint8_t> data) override {
    bytes[{std::string(name), layer}].assign(data.begin(), data.end());
  }
  void value(std::string_view name, int64_t layer, std::span<const uint64_t> data) override {
    words[{std::string(name), layer}].assign(data.begin(), data.end());
  }

  using Key = std::pair<std::string, int64_t>;
  std::map<Key, std::vector<float>> floats;
  std::map<Key, std::vector<int64_t>> ints;
  std::map<Key, std::vector<uint8_t>> bytes;
  std::map<Key, std::vector<uint64_t>> words;

 private:
  const GoldenFile* golden_;
  std::string case_;
};

struct Setup {
  const char* checkpoint;
  const char* backend;
};

class Golden : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    std::string directory = testing::nano_dir();
    std::string golden = testing::source_dir() + "/tests/data/golden/nano.bf16.safetensors";
    if (std::string(GetParam().checkpoint) == "wide") {
      if (testing::shared_dir().empty()) GTEST_SKIP() << "wide is read from the shared folder ($DEEPINFER_SHARED), which is absent";
      directory = testing::shared_dir() + "/nano/wide";
      golden = testing::shared_dir() + "/nano/golden/wide.bf16.safetensors";
    }
    golden_ = std::make_unique<GoldenFile>(golden);
    loaded_ = testing::load_model(directory, GetParam().backend);
    config_ = &loaded_.model->config();
  }

  std::vector<float> run(SequenceState& state, std::span<const int32_t> ids, std::vector<int32_t> logit_rows, StepObserver* observer,
                         std::vector<float>* main_hidden = nullptr) {
    const StepSequence sequence{&state, static_cast<int64_t>(ids.size())};
    StepBatch batch;
    batch.tokens = ids;
    batch.sequences = {&sequence, 1};
    batch.logit_rows = logit_rows;
    auto out = loaded_.model->forward(batch, observer);
    EXPECT_TRUE(out.has_value()) << out.error().message();
    if (main_hidden != nullptr) {
      main_hidden->clear();
      for (bf16 v : out->main_hidden) main_hidden->push_back(to_float(v));
    }
    return {out->logits.begin(), out->logits.end()};
  }

  std::vector<float> unpacked_window(const std::vector<uint8_t>& packed) const {
    std::vector<float> values;
    const int64_t dim = config_->head_dim;
    const int64_t bytes = config_->window_row_bytes();
    for (size_t r = 0; r * static_cast<size_t>(bytes) < packed.size(); ++r) {
      const uint8_t* row = packed.data() + static_cast<int64_t>(r) * bytes;
      for (int64_t i = 0; i < dim; ++i) values.push_back(e4m3_to_float(row[i]) * e8m0_to_float(row[dim + i / 32]));
    }
    return values;
  }

  void expect_close(const std::string& what, std::span<const float> got, std::span<const float> want, double tolerance = kLayerTolerance) {
    const double error = relative_l2(got, want);
    EXPECT_LE(error, tolerance) << what;
    if (std::getenv("DEEPINFER_TEST_VERBOSE") != nullptr) std::printf("%-24s %.2e\n", what.c_str(), error);
    if (std::getenv("DEEPINFER_TEST_VERBOSE") != nullptr) std::printf("%-24s %.2e\n", what.c_str(), error);
    worst_ = std::max(worst_, error);
  }

  std::unique_ptr<GoldenFile> golden_;
  testing::LoadedModel loaded_;
  const ModelConfig* config_ = nullptr;
  double worst_ = 0;
};

TEST_P(Golden, EveryLayerTeacherForced) {
  Recorder record(golden_.get(), "short");
  const auto ids = golden_->i32("short.ids");
  const auto rows = static_cast<int64_t>(ids.size());
  auto state = loaded_.model->new_sequence();
  std::vector<int32_t> last;
  for (int64_t r = rows - 4; r < rows; ++r) last.push_back(static_cast<int32_t>(r));
  std::vector<float> main_hidden;
  const std::vector<float> logits = run(*state, ids, last, &record, &main_hidden);

  for (int64_t layer = 0; layer < config_->num_hidden_layers; ++layer) {
    const auto name = [&](const char* item) { return layer_name("short", layer, item); };
    // Choices first.
    const auto experts = golden_->i32(name("experts"));
    const auto& got = record.ints.at({"experts", layer});
    int64_t differ = 0;
    for (size_t i = 0; i < experts.size(); ++i) differ += experts[i] != got[i] ? 1 : 0;
    EXPECT_EQ(differ, 0) << name("experts");
    if (golden_->has(name("chosen"))) {
      const auto chosen = golden_->i32(name("chosen"));
      const int64_t width = golden_->dim(name("chosen"), 1);
      const auto& mine = record.ints.at({"chosen", layer});
      const auto& count = record.ints.at({"chosen_count", layer});
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<int64_t> a;
        std::vector<int64_t> b;
        for (int64_t i = 0; i < width; ++i) {
          if (chosen[static_cast<size_t>(r * width + i)] >= 0) a.push_back(chosen[static_cast<size_t>(r * width + i)]);
        }
        for (int64_t i = 0; i < count[static_cast<size_t>(r)]; ++i) b.push_back(mine[static_cast<size_t>(r * config_->index_topk + i)]);
        EXPECT_EQ(a, b) << name("chosen") << " row " << r;
      }
    }
    if (golden_->has(name("engram_rows"))) {
      const auto engram = golden_->i32(name("engram_rows"));
      const auto& mine = record.ints.at({"engram_rows", layer});
      EXPECT_TRUE(std::equal(engram.begin(), engram.end(), mine.begin(), mine.end())) << name("engram_rows");
      expect_close(name("engram_out"), record.floats.at({"engram_out", layer}), golden_->f32(name("engram_out")));
    }
    for (const char* item : {"attn_out", "ffn_out", "stream", "pre", "expert_weights"}) {
      expect_close(name(item), record.floats.at({item, layer}), golden_->f32(name(item)));
    }
    expect_close(name("window_kv"), unpacked_window(record.bytes.at({"window_kv", layer})), golden_->f32(name("window_kv")));
    if (golden_->has(name("compressed"))) {
      const auto& sources = config_->kv_source_layer_ids;
      const int64_t source = std::find(sources.begin(), sources.end(), layer) - sources.begin();
      const int64_t dim = config_->head_dim;
      const int64_t index_dim = config_->index_head_dim;
      std::vector<float> main;
      std::vector<float> keys;
      for (int64_t j = 0; j < golden_->dim(name("compressed"), 0); ++j) {
        const uint8_t* m = state->main_rows(source).row(j);
        const uint8_t* k = state->index_rows(source).row(j);
        for (int64_t i = 0; i < dim; ++i) {
          main.push_back(e2m1_to_float(static_cast<uint8_t>(m[i / 2] >> (i % 2 * 4))) * e4m3_to_float(m[dim / 2 + i / 16]));
        }
        for (int64_t i = 0; i < index_dim; ++i) {
          keys.push_back(e2m1_to_float(static_cast<uint8_t>(k[i / 2] >> (i % 2 * 4))) * e8m0_to_float(k[index_dim / 2 + i / 32]));
        }
      }
      expect_close(name("compressed"), main, golden_->f32(name("compressed")));
      expect_close(name("index_k"), keys, golden_->f32(name("index_k")));
    }
  }
  expect_close("short.logits", logits, golden_->f32("short.logits"));
  if (std::getenv("DBG")) { for (const char* item : {"engram_out","attn_out","ffn_out"}) { const auto& a=record.floats.at({item,1}); auto g=golden_->f32(layer_name("short",1,item)); size_t w=g.size()/rows; for (size_t r=0;r<(size_t)rows;++r){ double e=0,n=0;int cnt=0; for(size_t i=0;i<w;i++){double d=a[r*w+i]-g[r*w+i]; if(d!=0){cnt++; if(std::string(item)=="engram_out")printf("el %zu %zu %.9g %.9g\n",r,i,a[r*w+i],g[r*w+i]);} e+=d*d;n+=g[r*w+i]*g[r*w+i];} if(cnt)printf("%s row %zu cnt %d rel %.3e\n",item,r,cnt,std::sqrt(e/n)); } } }
  // What the draft module is fed (dspark.md §3.1).
  const auto want = golden_->f32("short.main_hidden_last");
  expect_close("short.main_hidden_last", std::span<const float>(main_hidden).last(want.size()), want);
  std::printf("worst relative L2: %.2e\n", worst_);
}

TEST_P(Golden, GreedyTextAndDecodeSteps) {
  auto state = loaded_.model->new_sequence();
  const auto ids = golden_->i32("short.ids");
  const auto steps = golden_->i32("short.decode_ids");
  std::vector<float> logits = run(*state, ids, {static_cast<int32_t>(ids.size() - 1)}, nullptr);
  const auto vocab = static_cast<size_t>(config_->vocab_size);
  const auto want = golden_->f32("short.decode_logits");
  const std::map<size_t, size_t> stored = {{1, 0}, {2, 1}, {6, 2}};  // after which step the file has logits
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(best, steps[i]) << "step " << i;
    if (const auto at = stored.find(i); at != stored.end()) {
      // Free running over the full depth: a sanity bound, not a criterion (spec §12, trap 34).
      EXPECT_LE(relative_l2(logits, want.subspan(at->second * vocab, vocab)), 0.15) << "step " << i;
    }
    const int32_t next = steps[i];
    logits = run(*state, {&next, 1}, {0}, nullptr);
  }
}

// The long prompt runs free: window, top-k and candidate blocks all choose. A choice may differ where the golden scores tie, or
// where the stream has drifted by a flipped rounding before; the bound is on how many do.
TEST_P(Golden, LongPromptChoices) {
  Recorder record(golden_.get(), "");
  const auto ids = golden_->i32("long.ids");
  const auto rows = static_cast<int64_t>(ids.size());
  auto state = loaded_.model->new_sequence();
  std::vector<int32_t> all(ids.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  const std::vector<float> logits = run(*state, ids, all, &record);

  const auto greedy = golden_->i32("long.greedy");
  int64_t same = 0;
  const auto vocab = config_->vocab_size;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = logits.begin() + r * vocab;
    same += std::max_element(row, row + vocab) - row == greedy[static_cast<size_t>(r)] ? 1 : 0;
  }
  std::printf("greedy agreement %ld of %ld\n", static_cast<long>(same), static_cast<long>(rows));
  EXPECT_GE(static_cast<double>(same), 0.97 * static_cast<double>(rows));

  for (int64_t layer = 0; layer < config_->num_hidden_layers; ++layer) {
    const auto name = [&](const char* item) { return layer_name("long", layer, item); };
    const auto experts = golden_->i32(name("experts"));
    const int64_t stored = golden_->dim(name("experts"), 0);  // the last rows only in the wide file
    const int64_t k = config_->num_experts_per_tok;
    const auto& got = record.ints.at({"experts", layer});
    int64_t missing = 0;
    for (int64_t r = 0; r < stored; ++r) {
      const auto* mine = got.data() + (rows - stored + r) * k;
      for (int64_t i = 0; i < k; ++i) missing += std::find(mine, mine + k, experts[static_cast<size_t>(r * k + i)]) == mine + k ? 1 : 0;
    }
    int64_t rows_missing = 0;
    int64_t rows_total = 0;
    if (golden_->has(name("chosen"))) {
      const auto chosen = golden_->i32(name("chosen"));
      const int64_t width = golden_->dim(name("chosen"), 1);
      const auto& mine = record.ints.at({"chosen", layer});
      for (int64_t r = 0; r < stored; ++r) {
        const auto* row = mine.data() + (rows - stored + r) * config_->index_topk;
        const int64_t count = record.ints.at({"chosen_count", layer})[static_cast<size_t>(rows - stored + r)];
        for (int64_t i = 0; i < width; ++i) {
          const int32_t c = chosen[static_cast<size_t>(r * width + i)];
          if (c < 0) continue;
          ++rows_total;
          rows_missing += std::find(row, row + count, c) == row + count ? 1 : 0;
        }
      }
    }
    const auto want = golden_->f32(name("stream_last"));
    const double norm_error = relative_l2(std::span<const float>(record.floats.at({"stream", layer})).last(want.size()), want);
    std::printf("layer %2ld: experts %ld of %ld differ, rows %ld of %ld differ, last stream rel L2 %.1e\n", static_cast<long>(layer),
                static_cast<long>(missing), static_cast<long>(stored * k), static_cast<long>(rows_missing), static_cast<long>(rows_total), norm_error);
    EXPECT_LE(static_cast<double>(missing), 0.02 * static_cast<double>(stored * k)) << name("experts");
    EXPECT_LE(static_cast<double>(rows_missing), 0.02 * static_cast<double>(std::max<int64_t>(rows_total, 1))) << name("chosen");
  }
}

TEST_P(Golden, TinyPrompts) {
  for (const char* tiny : {"tiny1", "tiny2"}) {
    Recorder record(golden_.get(), "");
    const auto ids = golden_->i32(std::string(tiny) + ".ids");
    auto state = loaded_.model->new_sequence();
    std::vector<int32_t> all;
    for (size_t i = 0; i < ids.size(); ++i) all.push_back(static_cast<int32_t>(i));
    const std::vector<float> logits = run(*state, ids, all, &record);
    expect_close(std::string(tiny) + ".logits", logits, golden_->f32(std::string(tiny) + ".logits"), 0.1);
    const auto stream = golden_->f32(std::string(tiny) + ".stream");
    const auto width = static_cast<size_t>(config_->hc_mult * config_->hidden_size);
    for (int64_t layer = 0; layer < config_->num_hidden_layers; ++layer) {
      const auto& mine = record.floats.at({"stream", layer});
      expect_close(fmt::format("{} layer {}", tiny, layer), std::span<const float>(mine).last(width),
                   stream.subspan(static_cast<size_t>(layer) * width, width), 0.05);
    }
  }
  std::printf("worst relative L2: %.2e\n", worst_);
}

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         ::testing::Values(Setup{"nano", "reference"}, Setup{"nano", "cpu"}, Setup{"wide", "reference"}, Setup{"wide", "cpu"}),
                         [](const auto& info) { return std::string(info.param.checkpoint) + "_" + info.param.backend; });

}  // namespace
}  // namespace deepinfer
