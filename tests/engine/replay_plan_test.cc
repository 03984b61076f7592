#include "engine/replay_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "testing/loaded_model.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

constexpr ReplayGeometry kV41{.window = 128, .layers = 40, .first_decoder_layer = 20, .exact_distance = 127 * 40};
constexpr ReplayGeometry kNano{.window = 32, .layers = 10, .first_decoder_layer = 5, .exact_distance = 31 * 10};
constexpr ReplayGeometry kNoDecoder{.window = 32, .layers = 10, .first_decoder_layer = 10, .exact_distance = 31 * 10};

ReplayInput input(ReplayMode mode, DecoderReplay decoder, int64_t keep, int64_t prompt, int64_t hit, bool hit_exact = true) {
  return {.mode = mode, .decoder = decoder, .keep = keep, .prompt = prompt, .hit = hit, .hit_exact = hit_exact};
}

ReplayInput bounded(int64_t prompt, int64_t hit, bool hit_exact = true) {
  return input(ReplayMode::kBounded, DecoderReplay::kCompact, 140, prompt, hit, hit_exact);
}

ReplayInput exact(int64_t prompt, int64_t hit, bool hit_exact = true) {
  return input(ReplayMode::kExact, DecoderReplay::kCompact, 140, prompt, hit, hit_exact);
}

TEST(ReplayGeometryTest, OfNano) {
  const auto model = testing::load_model(testing::nano_dir(), "reference", 1);
  const ReplayGeometry g = ReplayGeometry::Of(model.model->config());
  EXPECT_EQ(g.window, kNano.window);
  EXPECT_EQ(g.layers, kNano.layers);
  EXPECT_EQ(g.first_decoder_layer, kNano.first_decoder_layer);
  EXPECT_EQ(g.exact_distance, kNano.exact_distance);
}

TEST(ReplayGeometryTest, WithoutKvSources) {
  ModelConfig config;
  config.sliding_window = 16;
  config.num_hidden_layers = 3;
  config.kv_source_layer_ids.clear();
  const ReplayGeometry g = ReplayGeometry::Of(config);
  EXPECT_EQ(g.first_decoder_layer, 3);
  EXPECT_EQ(g.exact_distance, 45);
}

TEST(ReplayPlanTest, V41Table) {
  struct Row {
    ReplayInput input;
    const char* plan;
  };
  const Row rows[] = {
      // Cold. The decoder runs for the last 140 tokens.
      {bounded(1, 0), "bounded hit 0 from 0 decoder 0"},
      {bounded(139, 0), "bounded hit 0 from 0 decoder 0"},
      {bounded(140, 0), "bounded hit 0 from 0 decoder 0"},
      {bounded(141, 0), "bounded hit 0 from 0 decoder 1"},
      {bounded(4096, 0), "bounded hit 0 from 0 decoder 3956"},
      {exact(1, 0), "exact hit 0 from 0 decoder 0"},
      {exact(4096, 0), "exact hit 0 from 0 decoder 0"},
      // A hit of one page is replayed whole, so everything is as if it had been cold.
      {bounded(129, 128), "bounded hit 128 from 0 decoder 0"},
      {bounded(268, 128), "bounded hit 128 from 0 decoder 128"},
      {bounded(269, 128), "bounded hit 128 from 0 decoder 129"},
      {bounded(129, 128, false), "bounded hit 128 from 0 decoder 0 inexact"},
      // Longer hits: the last window. A short suffix brings the decoder as far as the replay goes.
      {bounded(257, 256), "bounded hit 256 from 128 decoder 128 inexact"},
      {bounded(268, 256), "bounded hit 256 from 128 decoder 128 inexact"},
      {bounded(269, 256), "bounded hit 256 from 128 decoder 129 inexact"},
      {bounded(396, 256), "bounded hit 256 from 128 decoder 256 inexact"},
      {bounded(1000, 256), "bounded hit 256 from 128 decoder 860 inexact"},
      {bounded(100001, 100000 / 128 * 128), "bounded hit 99968 from 99840 decoder 99861 inexact"},
      // Exact: 127 x 40 = 5080 tokens back.
      {exact(129, 128), "exact hit 128 from 0 decoder 0"},
      {exact(5000, 4992), "exact hit 4992 from 0 decoder 0"},
      {exact(5249, 5120), "exact hit 5120 from 40 decoder 0"},
      {exact(5249, 5120, false), "exact hit 5120 from 40 decoder 0 inexact"},
      {exact(8193, 8192), "exact hit 8192 from 3112 decoder 0"},
  };
  for (const Row& row : rows) EXPECT_EQ(plan_replay(kV41, row.input).to_string(), row.plan);
}

TEST(ReplayPlanTest, HitsThatAreNoWholePages) {
  // The arithmetic does not need whole pages: every boundary of the window.
  const auto from = [](const ReplayGeometry& g, int64_t hit) { return plan_replay(g, bounded(hit + 500, hit)).from; };
  for (const auto& g : {kV41, kNano}) {
    EXPECT_EQ(from(g, 0), 0);
    EXPECT_EQ(from(g, 1), 0);
    EXPECT_EQ(from(g, g.window - 1), 0);
    EXPECT_EQ(from(g, g.window), 0);
    EXPECT_EQ(from(g, g.window + 1), 1);
    const auto exact_from = [&](int64_t hit) { return plan_replay(g, exact(hit + 500, hit)).from; };
    EXPECT_EQ(exact_from(g.exact_distance - 1), 0);
    EXPECT_EQ(exact_from(g.exact_distance), 0);
    EXPECT_EQ(exact_from(g.exact_distance + 1), 1);
  }
}

TEST(ReplayPlanTest, DecoderOffAndModelsWithoutDecoder) {
  EXPECT_EQ(plan_replay(kV41, input(ReplayMode::kBounded, DecoderReplay::kOff, 140, 4096, 1024)).to_string(),
            "bounded hit 1024 from 896 decoder 0 inexact");
  EXPECT_EQ(plan_replay(kNoDecoder, bounded(4096, 1024)).to_string(), "bounded hit 1024 from 992 decoder 0 inexact");
}

TEST(ReplayPlanTest, AWindowThatDoesNotAccumulateIsExact) {
  // One layer: the last window is all that the next row sees.
  const ReplayGeometry one{.window = 128, .layers = 1, .first_decoder_layer = 1, .exact_distance = 127};
  EXPECT_TRUE(plan_replay(one, bounded(1000, 512)).exact_pages);
  EXPECT_FALSE(plan_replay(one, bounded(1000, 512, false)).exact_pages);
}

TEST(ReplayPlanTest, Snapshots) {
  const SnapshotInput whole{.length = 1024, .decoder_window_start = 0, .encoder_exact = true, .decoder_exact = true};
  const SnapshotInput encoder{.length = 1024, .decoder_window_start = 1024, .encoder_exact = true, .decoder_exact = false};
  // The window of row 1024 begins at 897.
  const SnapshotInput just{.length = 1024, .decoder_window_start = 897};
  const SnapshotInput short_by_one{.length = 1024, .decoder_window_start = 898};

  // Another length never serves.
  for (const int64_t hit : {896, 1023, 1025, 1152}) EXPECT_FALSE(snapshot_serves(kV41, bounded(4096, hit), whole));
  // Exact requests need everything exact.
  EXPECT_TRUE(snapshot_serves(kV41, exact(1025, 1024), whole));
  EXPECT_FALSE(snapshot_serves(kV41, exact(4096, 1024), encoder));
  SnapshotInput half = whole;
  half.encoder_exact = false;
  EXPECT_FALSE(snapshot_serves(kV41, exact(4096, 1024), half));
  EXPECT_TRUE(snapshot_serves(kV41, bounded(4096, 1024), half));

  // Bounded ones need decoder rows where the suffix is shorter than what the decoder keeps.
  EXPECT_TRUE(snapshot_serves(kV41, bounded(1024 + 140, 1024), encoder));
  EXPECT_FALSE(snapshot_serves(kV41, bounded(1024 + 139, 1024), encoder));
  EXPECT_TRUE(snapshot_serves(kV41, bounded(1025, 1024), just));
  EXPECT_FALSE(snapshot_serves(kV41, bounded(1025, 1024), short_by_one));
  // Always where every row runs the decoder.
  const auto off = [](int64_t prompt) { return input(ReplayMode::kBounded, DecoderReplay::kOff, 140, prompt, 1024); };
  EXPECT_FALSE(snapshot_serves(kV41, off(1024 + 500), encoder));
  EXPECT_TRUE(snapshot_serves(kV41, off(1024 + 500), just));
  // Never where there is no decoder.
  EXPECT_TRUE(snapshot_serves(kNoDecoder, bounded(1025, 1024), encoder));

  // A hit shorter than the window: rows from 0.
  const SnapshotInput from_zero{.length = 64, .decoder_window_start = 0}, from_one{.length = 64, .decoder_window_start = 1};
  EXPECT_TRUE(snapshot_serves(kV41, bounded(65, 64), from_zero));
  EXPECT_FALSE(snapshot_serves(kV41, bounded(65, 64), from_one));

  EXPECT_EQ(plan_restore(kV41, bounded(1025, 1024), whole).to_string(), "bounded hit 1024 from 1024 decoder 1024 restored");
  EXPECT_EQ(plan_restore(kV41, bounded(1024 + 140, 1024), encoder).to_string(),
            "bounded hit 1024 from 1024 decoder 1024 restored");
  EXPECT_EQ(plan_restore(kV41, bounded(1024 + 141, 1024), encoder).to_string(),
            "bounded hit 1024 from 1024 decoder 1025 restored");
  EXPECT_EQ(plan_restore(kV41, bounded(1025, 1024), half).to_string(),
            "bounded hit 1024 from 1024 decoder 1024 restored inexact");
  EXPECT_EQ(plan_restore(kV41, bounded(1025, 1024, false), whole).to_string(),
            "bounded hit 1024 from 1024 decoder 1024 restored inexact");
  EXPECT_EQ(plan_restore(kV41, exact(4096, 1024), whole).to_string(), "exact hit 1024 from 1024 decoder 0 restored");
  EXPECT_EQ(plan_restore(kV41, off(4096), just).to_string(), "bounded hit 1024 from 1024 decoder 0 restored inexact");
}

void expect_sound(const ReplayGeometry& g, const ReplayInput& in, const ReplayPlan& plan) {
  SCOPED_TRACE(plan.to_string() + " prompt " + std::to_string(in.prompt) + " keep " + std::to_string(in.keep));
  const bool compact =
      in.mode == ReplayMode::kBounded && in.decoder == DecoderReplay::kCompact && g.first_decoder_layer < g.layers;
  ASSERT_EQ(plan.mode, in.mode);
  ASSERT_EQ(plan.hit, in.hit);
  ASSERT_GE(plan.from, 0);
  ASSERT_LE(plan.from, plan.hit);
  ASSERT_LT(plan.hit, in.prompt);
  ASSERT_EQ(plan.replayed(), plan.hit - plan.from);
  if (compact) {
    // Rows without decoder layers never come after rows with them, and the end of the prompt has enough of them.
    ASSERT_GE(plan.decoder_start, plan.from);
    ASSERT_LT(plan.decoder_start, in.prompt);
    ASSERT_GE(in.prompt - plan.decoder_start, std::min(in.keep, in.prompt - plan.from));
    ASSERT_LE(in.prompt - plan.decoder_start, std::max<int64_t>(in.keep, 1));
  } else {
    ASSERT_EQ(plan.decoder_start, 0);
  }
  if (plan.restored) {
    ASSERT_EQ(plan.from, plan.hit);
  } else {
    const int64_t distance = in.mode == ReplayMode::kExact ? g.exact_distance : g.window;
    ASSERT_EQ(plan.replayed(), std::min(distance, in.hit));
    ASSERT_EQ(plan.exact_pages, in.hit_exact && (in.mode == ReplayMode::kExact || in.hit <= g.window));
  }
  ASSERT_TRUE(in.hit_exact || !plan.exact_pages);
}

TEST(ReplayPlanTest, EveryPlanIsSound) {
  struct Model {
    ReplayGeometry g;
    int64_t keep;
  };
  for (const Model& m : {Model{kV41, 140}, Model{kV41, 128}, Model{kNano, 32 + 12}, Model{kNano, 32}, Model{kNoDecoder, 44}}) {
    const int64_t w = m.g.window, k = m.keep, d = m.g.exact_distance;
    std::vector<int64_t> hits{0, 1, 2, w - 1, w, w + 1, 127, 128, 129, 255, 256, 257, d - 1, d, d + 1, d + 128, 40 * 128};
    std::vector<int64_t> suffixes{1, 2, w - 1, w, w + 1, k - w, k - w + 1, k - 1, k, k + 1, 2 * k, 1000};
    for (const int64_t hit : hits) {
      for (const int64_t suffix : suffixes) {
        if (suffix < 1) continue;
        for (const ReplayMode mode : {ReplayMode::kBounded, ReplayMode::kExact}) {
          for (const DecoderReplay decoder : {DecoderReplay::kCompact, DecoderReplay::kOff}) {
            for (const bool hit_exact : {false, true}) {
              const ReplayInput in = input(mode, decoder, k, hit + suffix, hit, hit_exact);
              const ReplayPlan plan = plan_replay(m.g, in);
              expect_sound(m.g, in, plan);
              if (hit == 0) continue;
              for (const int64_t start : {int64_t{0}, std::max<int64_t>(0, hit - w), std::max<int64_t>(0, hit - w + 1),
                                          std::max<int64_t>(0, hit - w + 2), hit}) {
                for (const int exactness : {0, 1, 2, 3}) {
                  const SnapshotInput snapshot{hit, start, (exactness & 1) != 0, (exactness & 2) != 0};
                  const bool serves = snapshot_serves(m.g, in, snapshot);
                  if (mode == ReplayMode::kExact) {
                    ASSERT_EQ(serves, exactness == 3);
                  } else {
                    // Every decoder row that the first row with decoder layers can see is there or will be computed.
                    const ReplayPlan restored = plan_restore(m.g, in, snapshot);
                    const int64_t first = std::max(restored.decoder_start, hit);
                    const bool own = first > hit || (decoder == DecoderReplay::kCompact && suffix >= k);
                    const bool there = start <= std::max<int64_t>(0, first - w + 1);
                    ASSERT_EQ(serves, m.g.first_decoder_layer == m.g.layers || own || there) << restored.to_string();
                  }
                  if (!serves) continue;
                  const ReplayPlan restored = plan_restore(m.g, in, snapshot);
                  expect_sound(m.g, in, restored);
                  ASSERT_TRUE(restored.restored);
                  ASSERT_EQ(restored.exact_pages, hit_exact && snapshot.encoder_exact);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(ReplayPlanTest, TheDecoderWindowOfTheFirstDrawIsWhole) {
  // keep >= window: the last prompt row and every answer row find a full decoder window, or all there is of it.
  for (int64_t prompt = 1; prompt < 700; ++prompt) {
    for (int64_t hit = 0; hit < prompt; hit += 128) {
      const ReplayPlan plan = plan_replay(kV41, bounded(prompt, hit));
      ASSERT_LE(plan.decoder_start, std::max<int64_t>(0, prompt - 128)) << prompt << " " << hit;
    }
  }
}

}  // namespace
}  // namespace deepinfer
