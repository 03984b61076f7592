// Worked examples of the spec and exact rules, on every backend.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/backends.h"
#include "ops/candidates.h"
#include "ops/op_inputs.h"
#include "testing/random.h"

namespace deepinfer {
namespace {

using testing::OwnedBackend;
using testing::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class EveryBackend : public ::testing::Test {
 protected:
  std::vector<OwnedBackend> backends_ = testing::all_backends(2);
};

std::vector<bf16> to_bf16s(const std::vector<float>& x) {
  std::vector<bf16> y;
  for (float v : x) y.push_back(to_bf16(v));
  return y;
}

// spec §12.1 through the packers.
TEST_F(EveryBackend, QuantiserVectors) {
  std::vector<float> values = {0,  0.050048828125f,   -0.30078125f, 0.75f, 1.25f,  -1.75f, 2.5f,   3.5f,
                               -5, 0.01300048828125f, -0.8984375f,  6,     -7.25f, 10,     -0.25f, 0.00099945068359375f};
  values.resize(32, 0.0f);
  const auto x = to_bf16s(values);
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    testing::PagedBuffer compressed(1, 1, 18, 0);
    b.backend->pack_compressed(x.data(), 32, testing::rows_of(compressed, 1));
    const std::vector<uint8_t> want = {0x00, 0x18, 0xa2, 0x43, 0x0d, 0x69, 0x7e, 0x08, 0, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_TRUE(std::equal(want.begin(), want.end(), compressed.rows.row(0)));
    EXPECT_EQ(e4m3_to_float(compressed.rows.row(0)[16]), 1.625f);
    EXPECT_EQ(compressed.rows.row(0)[17], 1);  // the floor: 2^-9

    testing::PagedBuffer keys(1, 1, 17, 0);
    b.backend->pack_index_keys(x.data(), 32, testing::rows_of(keys, 1));
    const std::vector<uint8_t> codes = {0, 0, 8, 1, 1, 10, 2, 4, 12, 0, 9, 5, 14, 6, 8, 0};
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(keys.rows.row(0)[i / 2] >> (4 * (i & 1)) & 15, codes[i]) << i;
    EXPECT_EQ(keys.rows.row(0)[16], 128);

    auto q = x;
    b.backend->round_index_queries(q.data(), 1, 32);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(to_float(q[i]), e2m1_to_float(codes[i]) * 2.0f) << i;

    std::vector<uint8_t> window(33);
    b.backend->pack_window(x.data(), 1, 32, window.data());
    const std::vector<float> fp8 = {0,  .05078125f,   -.3125f, .75f, 1.25f, -1.75f, 2.5f,  3.5f,
                                    -5, .0126953125f, -.875f,  6,    -7,    10,     -.25f, .0009765625f};
    EXPECT_EQ(window[32], 122);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(e4m3_to_float(window[i]) * 0x1p-5f, fp8[i]) << i;
  }
}

// All-zero groups sit on the floors of the scales (spec §6.1, §6.3).
TEST_F(EveryBackend, ZeroGroupsHaveTheFloorScale) {
  const auto x = to_bf16s(std::vector<float>(64, -0.0f));
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<uint8_t> window(66);
    b.backend->pack_window(x.data(), 1, 64, window.data());
    EXPECT_EQ(window[64], fp8_group_scale(0));
    EXPECT_EQ(e8m0_to_float(window[65]), 0x1p-22f);  // 1e-4 / 448 = 2^-22.1, rounded up
    testing::PagedBuffer keys(1, 1, 34, 0);
    b.backend->pack_index_keys(x.data(), 64, testing::rows_of(keys, 1));
    EXPECT_EQ(keys.rows.row(0)[32], fp4_index_scale(0));
    testing::PagedBuffer cache(1, 1, 36, 0);
    b.backend->pack_compressed(x.data(), 64, testing::rows_of(cache, 1));
    EXPECT_EQ(cache.rows.row(0)[35], 1);
  }
}

// spec §12.2. x is zero but for one value per stream, so that every dot is one weight times that value and the rms is 1.
TEST_F(EveryBackend, HyperConnectionVector) {
  constexpr int64_t kHidden = 64;
  constexpr int64_t kWidth = 4 * kHidden;
  std::vector<float> x(kWidth, 0.0f);
  x[70] = 16.0f;  // mean of squares: 256 / 256
  std::vector<float> fn(24 * kWidth, 0.5f), base(24);
  for (int i = 0; i < 24; ++i) {
    fn[static_cast<size_t>(i * kWidth + 70)] = static_cast<float>((7 * i) % 11 - 5) / 4 / 16;
    base[static_cast<size_t>(i)] = static_cast<float>((5 * i) % 7 - 3) / 8;
  }
  const std::vector<float> scale = {0.5f, 0.75f, 1.25f};
  const std::vector<float> pre_want = {.2689424f, .6224603f, .4378245f, .5926676f};
  const std::vector<float> post_want = {1.2740616f, .7846737f, 1.3027097f, .8146668f};
  const std::vector<float> comb_want = {.1455350f, .5132014f, .1957274f, .1455352f, .2891641f, .0327783f, .3888926f, .2891640f,
                                        .1142531f, .4028909f, .3686018f, .1142533f, .4510468f, .0511284f, .0467773f, .4510466f};
  const auto v = to_bf16s(x);
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<float> pre(4), post(4), comb(16);
    b.backend->hyper_mix({fn.data(), base.data(), scale.data(), 4, kHidden, 20, 1e-6f, 1e-20f}, v.data(), 1, pre.data(),
                         post.data(), comb.data());
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(pre[i], pre_want[i], 2e-7f) << i;
      EXPECT_NEAR(post[i], post_want[i], 3e-7f) << i;
      EXPECT_NEAR(comb[i] + comb[4 + i] + comb[8 + i] + comb[12 + i], .999999f, 5e-7f) << i;
    }
    for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(comb[i], comb_want[i], 3e-7f) << i;
  }
}

// The source stream is the row of comb (spec §3.2).
TEST_F(EveryBackend, ExpandGoesFromRowsToColumns) {
  constexpr int64_t kHidden = 32;
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<bf16> x(2 * kHidden);
    std::fill_n(x.begin(), kHidden, to_bf16(1.0f));
    std::fill_n(x.begin() + kHidden, kHidden, to_bf16(8.0f));
    const std::vector<bf16> o(kHidden, to_bf16(100.0f));
    const std::vector<float> post = {0.0f, 1.0f};
    const std::vector<float> comb = {2.0f, 3.0f, 0.5f, 0.25f};
    b.backend->hyper_expand(o.data(), post.data(), comb.data(), 1, 2, kHidden, x.data());
    EXPECT_EQ(to_float(x[0]), 2.0f * 1 + 0.5f * 8);
    EXPECT_EQ(to_float(x[kHidden]), 100.0f + 3.0f * 1 + 0.25f * 8);
  }
}

// The pairs are adjacent and the last 2 * pairs dims (spec §3.4).
TEST_F(EveryBackend, RopeTurnsAdjacentPairsOfTheTail) {
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<float> values(32);
    std::iota(values.begin(), values.end(), 1.0f);
    auto x = to_bf16s(values);
    const std::vector<float> cosine = {0.0f, 1.0f}, sine = {1.0f, 0.0f};
    b.backend->rope(x.data(), {cosine.data(), sine.data(), 2}, 1, 1, 32, false);
    EXPECT_EQ(to_float(x[27]), 28.0f);
    EXPECT_EQ(to_float(x[28]), -30.0f);
    EXPECT_EQ(to_float(x[29]), 29.0f);
    EXPECT_EQ(to_float(x[30]), 31.0f);
    b.backend->rope(x.data(), {cosine.data(), sine.data(), 2}, 1, 1, 32, true);
    EXPECT_EQ(to_float(x[28]), 29.0f);
    EXPECT_EQ(to_float(x[29]), 30.0f);
  }
}

// spec §3.10: values are keys, the sink is in the denominator alone and not scaled.
TEST_F(EveryBackend, SinkIsInTheDenominatorAlone) {
  constexpr int64_t kDim = 32;
  std::vector<uint8_t> ring(kDim + 1, float_to_e4m3(2.0f));
  ring[kDim] = 127;
  const std::vector<bf16> q(kDim, to_bf16(0.0f));
  const float sink = std::log(3.0f);
  AttentionQuery query;
  query.window = {ring.data(), 1, nullptr, 5, kDim + 1};
  query.window_first = 4;
  query.window_last = 4;
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<bf16> out(kDim);
    b.backend->sparse_attention(
        {.q = q.data(), .sinks = &sink, .out = out.data(), .queries = {&query, 1}, .heads = 1, .dim = kDim});
    EXPECT_EQ(to_float(out[7]), 0.5f);  // 2 * 1 / (1 + 3)
  }
}

// spec §5.4: an image row keeps its stream; the gate of a zero dot is sigmoid(+-sqrt(1e-6)).
TEST_F(EveryBackend, EngramGateOfZeroDot) {
  constexpr int64_t kHidden = 32;
  const std::vector<bf16> kv = [] {
    std::vector<bf16> v(2 * kHidden, to_bf16(0.0f));
    std::fill_n(v.begin() + kHidden, kHidden, to_bf16(2.0f));
    return v;
  }();
  const std::vector<bf16> ones(kHidden, to_bf16(1.0f));
  const std::vector<uint8_t> image = {1};
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<bf16> x = ones;
    b.backend->engram_gate(kv.data(), ones.data(), ones.data(), nullptr, 1e-20f, 1, 1, kHidden, x.data());
    const float gate = 1.0f / (1.0f + std::exp(-1e-3f));
    EXPECT_EQ(x[0], to_bf16(1.0f + 2.0f * gate));
    x = ones;
    b.backend->engram_gate(kv.data(), ones.data(), ones.data(), image.data(), 1e-20f, 1, 1, kHidden, x.data());
    EXPECT_EQ(x, ones);
  }
}

// Equal scores: the lower id, best first (spec §4 step 3). bias steers the choice only; image rows have their own.
TEST_F(EveryBackend, RouterTiesAndBias) {
  constexpr int64_t kHidden = 32;
  constexpr int64_t kExperts = 5;
  const std::vector<bf16> v(2 * kHidden, to_bf16(1.0f));
  const std::vector<bf16> gate(kExperts * kHidden, to_bf16(0.0625f));
  const std::vector<float> bias = {0, 0, 0, 1.0f, 0};
  const std::vector<float> bias_vl = {0, 0, 0, 0, 2.0f};
  const std::vector<uint8_t> image = {0, 1};
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<int32_t> experts(6);
    std::vector<float> weights(6);
    b.backend->route({.v = v.data(),
                      .gate = {gate.data(), kExperts, kHidden},
                      .bias = bias.data(),
                      .bias_vl = bias_vl.data(),
                      .image = image.data(),
                      .topk = 3,
                      .scale = 1.5f,
                      .experts = experts.data(),
                      .weights = weights.data()},
                     2);
    EXPECT_EQ(experts, (std::vector<int32_t>{3, 0, 1, 4, 0, 1}));
    for (float w : weights) EXPECT_NEAR(w, 0.5f, 1e-6f);
    b.backend->route({.v = v.data(),
                      .gate = {gate.data(), kExperts, kHidden},
                      .bias = bias.data(),
                      .bias_vl = bias_vl.data(),
                      .topk = 1,
                      .scale = 1.5f,
                      .experts = experts.data(),
                      .weights = weights.data()},
                     1);
    EXPECT_NEAR(weights[0], 1.5f * std::sqrt(std::log1p(std::exp(2.0f))), 1e-6f);  // one alone is not normalised to 1
  }
}

// ---- choosing rows from scores ----

std::vector<int32_t> brute_force_top(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(TopK, TiesTakeTheLowerIndex) {
  std::vector<uint64_t> scratch;
  std::vector<int32_t> chosen(3);
  const std::vector<float> scores = {0.0f, 1.0f, -0.0f, 1.0f, 0.0f, 1.0f, 1.0f};
  choose_top(scores.data(), 7, 3, scratch, chosen.data());
  EXPECT_EQ(chosen, (std::vector<int32_t>{1, 3, 5}));
  chosen.resize(5);
  choose_top(scores.data(), 7, 5, scratch, chosen.data());
  EXPECT_EQ(chosen, (std::vector<int32_t>{0, 1, 3, 5, 6}));
  chosen.resize(6);
  choose_top(scores.data(), 7, 6, scratch, chosen.data());
  EXPECT_EQ(chosen, (std::vector<int32_t>{0, 1, 2, 3, 5, 6}));  // -0 is 0
}

TEST(TopK, InfinitiesAndNaN) {
  std::vector<uint64_t> scratch;
  std::vector<int32_t> chosen(3);
  const std::vector<float> scores = {std::nanf(""), -kInfinity, -1e30f, kInfinity, -kInfinity};
  choose_top(scores.data(), 5, 3, scratch, chosen.data());
  EXPECT_EQ(chosen, (std::vector<int32_t>{1, 2, 3}));
}

TEST(TopK, MatchesASort) {
  Random random(50);
  std::vector<uint64_t> scratch;
  for (int round = 0; round < 300; ++round) {
    const int64_t n = random.between(1, 400);
    const int64_t levels = random.between(1, 60);  // many ties
    std::vector<float> scores(static_cast<size_t>(n));
    for (float& s : scores) s = static_cast<float>(random.below(levels) - levels / 2);
    const int64_t k = random.between(0, n);
    std::vector<int32_t> chosen(static_cast<size_t>(k));
    choose_top(scores.data(), n, k, scratch, chosen.data());
    ASSERT_EQ(chosen, brute_force_top(scores, k)) << "n " << n << " k " << k;
  }
}

struct Pool {
  std::vector<uint64_t> bits;
  bool has(int64_t block) const { return (bits[static_cast<size_t>(block / 64)] >> (block % 64) & 1) != 0; }
};

Pool build(const std::vector<float>& scores, int64_t keep, int64_t size) {
  IndexSelectArgs args;
  args.candidate_blocks = keep;
  args.candidate_block_size = size;
  args.candidate_words = 2;
  Pool pool;
  pool.bits.assign(2, ~uint64_t{0});
  std::vector<uint64_t> keys;
  std::vector<float> block_scores;
  std::vector<int32_t> blocks;
  build_candidates(scores.data(), static_cast<int64_t>(scores.size()), args, keys, block_scores, blocks, pool.bits.data());
  return pool;
}

TEST(Candidates, NewestBlockIsPinned) {
  const Pool pool = build({5, 5, 9, 0, 1, 1, 7, 7, -3}, 2, 2);  // blocks: 5 9 1 7 and the newest, half full
  EXPECT_TRUE(pool.has(4));
  EXPECT_TRUE(pool.has(1));
  for (int64_t b : {0, 2, 3}) EXPECT_FALSE(pool.has(b)) << b;
  EXPECT_EQ(pool.bits[1], 0u);
}

TEST(Candidates, EqualBlocksTakeTheLower) {
  const Pool pool = build({1, 0, 0, 1, 1, 0, 0, 0}, 3, 2);
  EXPECT_TRUE(pool.has(0) && pool.has(1) && pool.has(3));
  EXPECT_FALSE(pool.has(2));
}

TEST(Candidates, BlocksWithoutAFiniteScoreAreDropped) {
  const Pool pool = build({-kInfinity, -kInfinity, -kInfinity, -kInfinity, 2, -kInfinity, -kInfinity, -kInfinity}, 3, 2);
  EXPECT_FALSE(pool.has(0));
  EXPECT_FALSE(pool.has(1));
  EXPECT_TRUE(pool.has(2));
  EXPECT_TRUE(pool.has(3));  // the newest, whatever it scores
}

TEST(Candidates, FewBlocksAreAllKept) {
  const Pool pool = build({1, 2, 3, 4}, 2, 2);
  EXPECT_EQ(pool.bits[0], ~uint64_t{0});  // not even written
  std::vector<float> scores = {1, 2, 3, 4};
  IndexSelectArgs args;
  args.candidate_blocks = 2;
  args.candidate_block_size = 2;
  apply_candidates(scores.data(), 4, args, nullptr);
  EXPECT_EQ(scores, (std::vector<float>{1, 2, 3, 4}));
}

// The pool restricts later layers, not the layer that builds it (spec §3.9): the best rows of the source may lie outside when
// several of them share the pinned block's place.
TEST_F(EveryBackend, PoolRestrictsLaterLayersOnly) {
  constexpr int64_t kDim = 32;
  constexpr int64_t kRows = 12;
  // Scores by row: q . key with one key value per row; blocks of 2, keep 2.
  const std::vector<int> code_of = {1, 7, 2, 1, 6, 1, 5, 1, 1, 1, 0, 0};
  testing::PagedBuffer keys(kRows, 5, kDim / 2 + 1, 0);
  for (int64_t j = 0; j < kRows; ++j) {
    std::memset(keys.rows.row(j), 0, kDim / 2);
    keys.rows.row(j)[0] = static_cast<uint8_t>(code_of[static_cast<size_t>(j)]);
    keys.rows.row(j)[kDim / 2] = 127;
  }
  std::vector<bf16> q(kDim, to_bf16(1.0f));
  const bf16 weight = to_bf16(1.0f);
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<int32_t> chosen(3, -1);
    uint64_t bits = 0;
    IndexQuery query{keys.rows, kRows, chosen.data(), 0};
    IndexSelectArgs args{.q = q.data(),
                         .weights = &weight,
                         .queries = {&query, 1},
                         .heads = 1,
                         .dim = kDim,
                         .topk = 3,
                         .mode = IndexSelectArgs::Candidates::kBuild,
                         .candidate_blocks = 2,
                         .candidate_block_size = 2,
                         .candidates = &bits,
                         .candidate_words = 1};
    b.backend->index_select(args);
    EXPECT_EQ(chosen, (std::vector<int32_t>{1, 4, 6}));  // not restricted
    EXPECT_EQ(bits, 0b100001u);                          // the best block and the newest
    args.mode = IndexSelectArgs::Candidates::kRestrict;
    b.backend->index_select(args);
    EXPECT_EQ(chosen, (std::vector<int32_t>{0, 1, 10}));  // zero scores of the newest block tie: the lower
  }
}

// Scores of the test's own, in double precision: a choice may differ only where a bf16 score could have rounded either way.
TEST_F(EveryBackend, IndexChoicesOfRandomScores) {
  constexpr int64_t kHeads = 5, kDim = 64, kRows = 400, kTop = 50;
  Random random(51);
  testing::PagedBuffer keys(kRows, 64, kDim / 2 + 2, 0);
  const auto k = testing::activations(random, kRows, kDim);
  std::vector<bf16> q = testing::activations(random, kHeads, kDim);
  std::vector<bf16> weights = to_bf16s({0.03f, -0.02f, 0.011f, 0.5f, -0.004f});
  backends_[0].backend->pack_index_keys(k.data(), kDim, testing::rows_of(keys, kRows));
  backends_[0].backend->round_index_queries(q.data(), kHeads, kDim);
  std::vector<double> scores;
  for (int64_t j = 0; j < kRows; ++j) {
    const uint8_t* row = keys.rows.row(j);
    double score = 0;
    for (int64_t h = 0; h < kHeads; ++h) {
      double dot = 0;
      for (int64_t i = 0; i < kDim; ++i) {
        dot += static_cast<double>(to_float(q[static_cast<size_t>(h * kDim + i)])) *
               static_cast<double>(e2m1_to_float(row[i / 2] >> (4 * (i & 1)) & 15) * e8m0_to_float(row[kDim / 2 + i / 32]));
      }
      score += static_cast<double>(
          round_bf16(std::max(round_bf16(static_cast<float>(dot)), 0.0f) * to_float(weights[static_cast<size_t>(h)])));
    }
    scores.push_back(score);
  }
  std::vector<double> sorted = scores;
  std::sort(sorted.rbegin(), sorted.rend());
  const double threshold = sorted[kTop - 1];
  for (OwnedBackend& b : backends_) {
    SCOPED_TRACE(b.name);
    std::vector<int32_t> chosen(kTop, -1);
    IndexQuery query{keys.rows, kRows, chosen.data(), 0};
    b.backend->index_select(
        {.q = q.data(), .weights = weights.data(), .queries = {&query, 1}, .heads = kHeads, .dim = kDim, .topk = kTop});
    EXPECT_EQ(query.chosen_count, kTop);
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
    for (int32_t j : chosen) EXPECT_GE(scores[static_cast<size_t>(j)], threshold - std::fabs(threshold) / 128) << j;
    for (int64_t j = 0; j < kRows; ++j) {
      if (scores[static_cast<size_t>(j)] > threshold + std::fabs(threshold) / 128) {
        EXPECT_TRUE(std::binary_search(chosen.begin(), chosen.end(), static_cast<int32_t>(j))) << j;
      }
    }
  }
}

// The environment decides between tables; whichever it is has a name.
TEST(CpuBackend, KernelsCanBeForced) {
  ThreadPool pool(1);
  ::setenv("DEEPINFER_CPU_KERNELS", "portable", 1);
  EXPECT_EQ(make_cpu_backend(&pool)->name(), std::string("cpu/") + cpu::portable_kernels().front()->name);
  ::unsetenv("DEEPINFER_CPU_KERNELS");
  EXPECT_EQ(make_cpu_backend(&pool)->name(), std::string("cpu/") + cpu::cpu_kernels().front()->name);
}

}  // namespace
}  // namespace deepinfer
