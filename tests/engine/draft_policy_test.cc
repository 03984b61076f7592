#include "engine/draft_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "testing/random.h"

namespace deepinfer {
namespace {

using Kind = DraftPolicy::Kind;

float logit(double p) { return static_cast<float>(std::log(p / (1 - p))); }

TEST(CostCurve, LinesBetweenWhatIsKnown) {
  CostCurve c;
  EXPECT_EQ(c.at(5), 0);
  c.learn(1, 9.0);  // the first step of a size pays for buffers
  c.learn(1, 1.0);
  EXPECT_EQ(c.at(1), 1.0);
  EXPECT_EQ(c.at(40), 1.0) << "nothing says that rows cost";
  c.learn(5, 9.0);
  c.learn(5, 3.0);
  EXPECT_DOUBLE_EQ(c.at(3), 2.0);
  EXPECT_DOUBLE_EQ(c.at(9), 5.0) << "on with the slope";
  c.learn(4, 1.0);
  c.learn(4, 0.5);
  EXPECT_DOUBLE_EQ(c.at(4), 1.0) << "never falling";
  for (int i = 0; i < 20; ++i) c.learn(5, i % 5 == 0 ? 100.0 : 7.0);
  EXPECT_DOUBLE_EQ(c.at(5), 7.0) << "single slow steps do not count";
  EXPECT_TRUE(c.knows(5));
  EXPECT_FALSE(c.knows(4));
  c.learn(1000, 1.0);
  c.learn(1000, 9.0);
  EXPECT_DOUBLE_EQ(c.at(1023), 9.0 + 8.0 / 959 * 63) << "sizes beyond 32 go by the eighth of an octave";
}

/// A world in which a step costs fixed + rows x each, and drafts are accepted with what the confidences say.
struct World {
  DraftPolicy policy{{.mode = SpeculationMode::kVariable, .most = 5}};
  double fixed = 1.0, each = 0.01, draft = 0.1;
  std::vector<double> chances = {0.9, 0.8, 0.7, 0.6, 0.5};
  double said = 1.0;  ///< the head says chance^said
  testing::Random random{1};
  int64_t tokens = 0, drafting_steps = 0, drafts = 0, verified = 0;
  double seconds = 0;

  void step(int64_t sequences) {
    const Kind kind = policy.begin_step(sequences, policy.wanted() > 0);
    if (kind != Kind::kDraft) {
      policy.learn_step(sequences, sequences, sequences, 0, fixed + each * static_cast<double>(sequences));
      tokens += sequences;
      seconds += fixed + each * static_cast<double>(sequences);
      return;
    }
    ++drafting_steps;
    std::vector<std::vector<float>> confidences(static_cast<size_t>(sequences));
    std::vector<DraftOffer> offers;
    for (auto& c : confidences) {
      for (const double p : chances) c.push_back(logit(std::pow(p, said)));
      offers.push_back({.most = 5, .confidences = c, .chosen = 0});
    }
    const int64_t budget = policy.wanted();
    policy.choose(offers, budget, sequences);
    int64_t rows = sequences, made = 0, all = 0;
    for (const DraftOffer& o : offers) {
      EXPECT_LE(o.chosen, 5);
      int64_t accepted = 0;
      while (accepted < o.chosen &&
             static_cast<double>(random.below(1 << 20)) < chances[static_cast<size_t>(accepted)] * (1 << 20)) {
        ++accepted;
      }
      policy.learn_draft(o.confidences, o.chosen, accepted);
      rows += o.chosen;
      all += o.chosen;
      made += 1 + accepted;
    }
    EXPECT_LE(all, budget);
    drafts += sequences;
    verified += all;
    const double draft_seconds = draft * (1 + 0.1 * static_cast<double>(sequences));
    const double step_seconds = fixed + each * static_cast<double>(rows);
    policy.learn_step(sequences, rows, made, draft_seconds, step_seconds);
    tokens += made;
    seconds += draft_seconds + step_seconds;
  }
  double gain(int64_t sequences) const {
    return static_cast<double>(tokens) / seconds * (fixed + each * static_cast<double>(sequences)) /
           static_cast<double>(sequences);
  }
};

TEST(DraftPolicy, VerifiesAllWhereRowsAreFree) {
  World w;
  for (int i = 0; i < 2000; ++i) w.step(1);
  EXPECT_GT(w.drafting_steps, 1900);
  EXPECT_EQ(w.verified, 5 * w.drafts);
  EXPECT_GT(w.gain(1), 2.4);
}

TEST(DraftPolicy, VerifiesFewWhereRowsCost) {
  World w;
  w.fixed = 0.5;
  w.each = 0.5;  // a second row costs half of the first
  w.draft = 0.05;
  for (int i = 0; i < 3000; ++i) w.step(1);
  const double mean = static_cast<double>(w.verified) / static_cast<double>(w.drafts);
  EXPECT_GT(mean, 0.8);
  EXPECT_LT(mean, 4.2);
  EXPECT_GT(w.gain(1), 1.1);
}

// What costs more than it brings is not done, and finding out costs next to nothing.
TEST(DraftPolicy, NeverMuchSlowerThanPlain) {
  for (const int64_t sequences : {1, 4, 16, 64}) {
    World w;
    w.fixed = 0.0;
    w.each = 1.0;
    w.draft = 0.3 * static_cast<double>(sequences);
    w.chances = {0.5, 0.4, 0.3, 0.2, 0.1};
    for (int i = 0; i < 6000; ++i) w.step(sequences);
    EXPECT_GT(w.gain(sequences), 0.97) << sequences;
    EXPECT_LT(w.drafting_steps, 400) << sequences;
  }
}

// The world changes: drafts begin to pay, and stop again.
TEST(DraftPolicy, FollowsTheWorld) {
  World w;
  w.chances = {0.05, 0.05, 0.05, 0.05, 0.05};
  for (int i = 0; i < 1500; ++i) w.step(1);
  const int64_t before = w.drafting_steps;
  EXPECT_LT(before, 200);
  w.chances = {0.9, 0.9, 0.9, 0.9, 0.9};
  for (int i = 0; i < 20000; ++i) w.step(1);
  EXPECT_GT(w.drafting_steps, before + 8000);
  const int64_t then = w.drafting_steps;
  w.chances = {0.01, 0.01, 0.01, 0.01, 0.01};
  for (int i = 0; i < 5000; ++i) w.step(1);
  EXPECT_LT(w.drafting_steps, then + 600);
}

// An over-confident head is corrected by what became of its drafts.
TEST(DraftPolicy, LearnsTheHeadsError) {
  World w;
  w.said = 0.2;  // .5 is told as .87
  for (int i = 0; i < 3000; ++i) w.step(2);
  for (int64_t k = 0; k < 5; ++k) {
    const double p = w.chances[static_cast<size_t>(k)];
    EXPECT_NEAR(w.policy.chance(k, logit(std::pow(p, 0.2))), p, 0.06) << k;
  }
}

// Of several sequences the surest drafts go first, and of each a prefix.
TEST(DraftPolicy, TheSurestFirst) {
  DraftPolicy policy({.mode = SpeculationMode::kVariable, .most = 4});
  const std::vector<float> sure = {logit(.95), logit(.95), logit(.9), logit(.3)};
  const std::vector<float> late = {logit(.3), logit(.99), logit(.99), logit(.99)};
  std::vector<DraftOffer> offers = {{4, late, 0}, {4, sure, 0}, {2, sure, 0}};
  policy.choose(offers, 5, 3);
  EXPECT_EQ(offers[0].chosen, 0);
  EXPECT_EQ(offers[1].chosen, 3);
  EXPECT_EQ(offers[2].chosen, 2);
  policy.choose(offers, 0, 3);
  for (const DraftOffer& o : offers) EXPECT_EQ(o.chosen, 0);
}

// A confidence that is no number says nothing for a draft, nor for what ranks behind it; others are chosen as before.
TEST(DraftPolicy, NotANumberIsNoChance) {
  DraftPolicy policy({.mode = SpeculationMode::kVariable, .most = 3});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> broken = {nan, logit(0.99), logit(0.99)}, late = {logit(0.99), nan, nan}, sound(3, logit(0.99));
  std::vector<DraftOffer> offers;
  for (const auto* c : {&broken, &late, &sound}) offers.push_back({.most = 3, .confidences = *c, .chosen = 0});
  for (int64_t rows = 1; rows <= 12; ++rows) {
    for (int i = 0; i < 4; ++i) policy.learn_step(3, rows, 3, 0, 1 + 1e-3 * static_cast<double>(rows));
  }
  for (int round = 0; round < 20; ++round) {
    policy.choose(offers, 9, 3);
    EXPECT_EQ(offers[0].chosen, 0);
    EXPECT_EQ(offers[1].chosen, 1);
    EXPECT_EQ(offers[2].chosen, 3);
    for (const DraftOffer& o : offers) policy.learn_draft(o.confidences, o.most, o.chosen);
  }
}

TEST(DraftPolicy, FixedTakesWhatThereIs) {
  DraftPolicy policy({.mode = SpeculationMode::kFixed, .most = 5});
  EXPECT_EQ(policy.begin_step(3, true), Kind::kDraft);
  EXPECT_EQ(policy.begin_step(3, false), Kind::kWarm);
  std::vector<DraftOffer> offers = {{5, {}, 0}, {2, {}, 0}, {5, {}, 0}};
  policy.choose(offers, 9, 3);
  EXPECT_EQ(offers[0].chosen, 5);
  EXPECT_EQ(offers[1].chosen, 2);
  EXPECT_EQ(offers[2].chosen, 2);
  EXPECT_GE(policy.wanted(), 1000);
}

TEST(DraftRest, LongerEachTimeUntilADraftIsWorthIt) {
  DraftRest rest;
  const auto steps = [&] {  // until the next round
    int count = 0;
    while (rest.rests()) ++count;
    return count;
  };
  std::vector<int> rests;
  for (int round = 0; round < 9; ++round) {
    rests.push_back(steps());
    rest.chose(0);
  }
  EXPECT_EQ(rests, (std::vector<int>{0, 0, 0, 8, 16, 32, 64, 64, 64}));
  steps();
  rest.chose(1);
  EXPECT_EQ(steps(), 0);
  rest.chose(0);
  EXPECT_EQ(steps(), 0);
}

TEST(DraftPolicy, OffIsOff) {
  DraftPolicy policy(DraftPolicy::Options{});
  EXPECT_EQ(policy.begin_step(3, true), Kind::kPlain);
  EXPECT_EQ(policy.wanted(), 0);
}

}  // namespace
}  // namespace deepinfer
