#include "workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace deepinfer::bench {
namespace {

WorkloadOptions small() {
  WorkloadOptions o;
  o.num_prompts = 20;
  o.input_len = 100;
  o.output_len = 10;
  o.vocab_size = 4096;
  o.seed = 3;
  return o;
}

Workload make(const WorkloadOptions& o) {
  auto made = make_workload(o);
  EXPECT_TRUE(made.has_value()) << made.error().message();
  return std::move(*made);
}

size_t common(const PlannedRequest& a, const PlannedRequest& b) {
  const auto [at, other] = std::mismatch(a.prompt.begin(), a.prompt.end(), b.prompt.begin(), b.prompt.end());
  return static_cast<size_t>(at - a.prompt.begin());
}

TEST(Workload, SameOptionsSameRequests) {
  const Workload a = make(small()), b = make(small());
  ASSERT_EQ(a.requests.size(), 20u);
  for (size_t i = 0; i < a.requests.size(); ++i) {
    EXPECT_EQ(a.requests[i].prompt, b.requests[i].prompt);
    EXPECT_EQ(a.requests[i].seed, b.requests[i].seed);
    EXPECT_EQ(a.requests[i].prompt.size(), 100u);
    EXPECT_EQ(a.requests[i].output_len, 10);
    EXPECT_EQ(a.requests[i].arrival, 0);
    EXPECT_EQ(a.requests[i].cache_class, "chat");
  }
  WorkloadOptions other = small();
  other.seed = 4;
  EXPECT_NE(make(other).requests[0].prompt, a.requests[0].prompt);
  EXPECT_EQ(a.prompt_tokens(), 2000);
  EXPECT_EQ(a.output_tokens(), 200);
  EXPECT_EQ(a.longest(), 110);
}

TEST(Workload, TheFirstRequestsDoNotDependOnTheirNumber) {
  WorkloadOptions more = small();
  more.num_prompts = 30;
  more.length_jitter = 0.5;
  WorkloadOptions fewer = more;
  fewer.num_prompts = 5;
  const Workload a = make(more), b = make(fewer);
  for (size_t i = 0; i < b.requests.size(); ++i) EXPECT_EQ(a.requests[i].prompt, b.requests[i].prompt);
}

TEST(Workload, TokensAreSafe) {
  for (const int64_t vocab : {64, 4096, 129280}) {
    WorkloadOptions o = small();
    o.vocab_size = vocab;
    o.input_len = 5000;
    const TokenRange range = safe_tokens(vocab);
    EXPECT_GT(range.low, 2);
    EXPECT_LT(range.low + range.count, vocab);
    std::set<int32_t> seen;
    for (const PlannedRequest& r : make(o).requests) {
      for (const int32_t token : r.prompt) {
        ASSERT_GE(token, range.low);
        ASSERT_LT(token, range.low + range.count);
        seen.insert(token);
      }
    }
    EXPECT_GT(static_cast<double>(seen.size()), 0.5 * static_cast<double>(std::min<int64_t>(range.count, 50000)));
  }
  EXPECT_LT(safe_tokens(129280).low + safe_tokens(129280).count, 128000);
  WorkloadOptions tiny = small();
  tiny.vocab_size = 1;
  EXPECT_FALSE(make_workload(tiny));
}

TEST(Workload, SharedPrefixes) {
  WorkloadOptions o = small();
  o.shared_prefix_ratio = 0.9;
  o.num_prefixes = 3;
  const Workload w = make(o);
  EXPECT_EQ(common(w.requests[0], w.requests[3]), 90u);
  EXPECT_EQ(common(w.requests[1], w.requests[4]), 90u);
  EXPECT_LT(common(w.requests[0], w.requests[1]), 3u);
  EXPECT_EQ(w.requests[4].prefix_id, 1);
  EXPECT_EQ(w.requests[4].prefix_len, 90);

  o.shared_prefix_ratio = 1;
  o.num_prefixes = 1;
  const Workload same = make(o);
  EXPECT_EQ(same.requests[0].prompt, same.requests[19].prompt);
  EXPECT_NE(same.requests[0].seed, same.requests[19].seed);

  o.shared_prefix_ratio = 0.5;
  o.length_jitter = 0.5;
  const Workload uneven = make(o);
  const auto shorter = std::min(uneven.requests[0].prefix_len, uneven.requests[1].prefix_len);
  EXPECT_GE(static_cast<int64_t>(common(uneven.requests[0], uneven.requests[1])), shorter);
  EXPECT_EQ(uneven.requests[0].prefix_len, std::llround(0.5 * static_cast<double>(uneven.requests[0].prompt.size())));
}

TEST(Workload, Jitter) {
  WorkloadOptions o = small();
  o.num_prompts = 2000;
  o.length_jitter = 0.25;
  double sum = 0;
  size_t least = 1000, most = 0;
  for (const PlannedRequest& r : make(o).requests) {
    sum += static_cast<double>(r.prompt.size());
    least = std::min(least, r.prompt.size());
    most = std::max(most, r.prompt.size());
    EXPECT_GE(r.output_len, 8);
    EXPECT_LE(r.output_len, 12);
  }
  EXPECT_EQ(least, 75u);
  EXPECT_EQ(most, 125u);
  EXPECT_NEAR(sum / 2000, 100, 1.5);
  o.input_len = 1;
  o.length_jitter = 1;
  for (const PlannedRequest& r : make(o).requests) EXPECT_GE(r.prompt.size(), 1u);
}

TEST(Workload, PoissonArrivals) {
  WorkloadOptions o = small();
  o.input_len = 1;
  o.num_prompts = 4001;
  o.arrival = Arrival::kPoisson;
  o.request_rate = 10;
  const Workload w = make(o);
  EXPECT_EQ(w.requests[0].arrival, 0);
  double squares = 0;
  for (size_t i = 1; i < w.requests.size(); ++i) {
    const double gap = w.requests[i].arrival - w.requests[i - 1].arrival;
    ASSERT_GE(gap, 0);
    squares += gap * gap;
  }
  EXPECT_NEAR(w.requests.back().arrival / 4000, 0.1, 0.006);
  EXPECT_NEAR(squares / 4000, 0.02, 0.003);  // of an exponential distribution: 2 / rate^2
  o.request_rate = HUGE_VAL;
  EXPECT_EQ(make(o).requests.back().arrival, 0);
}

TEST(Workload, ARunHasTheRateItWasTold) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    WorkloadOptions o = small();
    o.input_len = 1;
    o.num_prompts = 4001;
    o.arrival = Arrival::kPoisson;
    o.request_rate = 10;
    o.burstiness = burstiness;
    const Workload w = make(o);
    EXPECT_NEAR(w.requests.back().arrival, 400, 1e-6);
    double squares = 0;
    for (size_t i = 1; i < w.requests.size(); ++i) {
      const double gap = w.requests[i].arrival - w.requests[i - 1].arrival;
      ASSERT_GE(gap, 0);
      squares += (gap - 0.1) * (gap - 0.1);
    }
    EXPECT_NEAR(squares / 4000 / 0.01, 1 / burstiness, 0.15 / burstiness);  // variance of a gamma distribution: mean^2 / shape
  }
}

TEST(Workload, BlocksOfATrace) {
  WorkloadOptions o = small();
  o.arrival = Arrival::kTrace;
  o.time_scale = 0.5;
  std::vector<TraceRow> rows(3);
  for (TraceRow& row : rows) {
    row.input_len = kTraceBlockTokens + 100;
    row.output_len = 1;
  }
  rows[0].block_ids = {7, 8};
  rows[1].block_ids = {7, 9};
  rows[1].arrival = 4;
  rows[2].block_ids = {8, 7};
  rows[2].arrival = 6;
  o.trace = std::make_shared<const std::vector<TraceRow>>(rows);
  o.num_prompts = 0;
  const Workload w = make(o);
  EXPECT_EQ(w.requests[1].arrival, 2);
  EXPECT_EQ(common(w.requests[0], w.requests[1]), static_cast<size_t>(kTraceBlockTokens));
  EXPECT_LT(common(w.requests[0], w.requests[2]), 5u);
  // The same block, elsewhere.
  EXPECT_TRUE(std::equal(w.requests[2].prompt.begin(), w.requests[2].prompt.begin() + 100,
                         w.requests[0].prompt.begin() + kTraceBlockTokens));
}

TEST(Workload, Sessions) {
  WorkloadOptions o = small();
  o.num_prompts = 12;
  o.turns = 3;
  o.arrival = Arrival::kPoisson;
  o.request_rate = 6;  // sessions at 2 a second
  o.shared_prefix_ratio = 0.5;
  o.num_prefixes = 2;
  const Workload w = make(o);
  ASSERT_EQ(w.requests.size(), 12u);
  EXPECT_NEAR(w.requests.back().arrival, 1.5, 1e-9);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(w.requests[i].arrival, w.requests[i / 3 * 3].arrival);
    EXPECT_EQ(w.requests[i].prefix_len > 0, i % 3 == 0);  // what is shared is said at the start
    if (i % 3 == 0) EXPECT_EQ(w.requests[i].prefix_id, static_cast<int64_t>(i / 3 % 2));
  }
}

TEST(Workload, LaterTurnsHaveTheirOwnLengthAndWaitForTheirUser) {
  WorkloadOptions o = small();
  o.num_prompts = 4001;
  o.turns = 4001;
  o.input_len = 9;
  o.turn_input_len = 3;
  o.think_time = 2;
  const Workload w = make(o);
  double sum = 0, squares = 0;
  for (size_t i = 0; i < w.requests.size(); ++i) {
    const PlannedRequest& r = w.requests[i];
    EXPECT_EQ(r.turn, static_cast<int64_t>(i));
    EXPECT_EQ(r.prompt.size(), i == 0 ? 9u : 3u);
    if (i == 0) EXPECT_EQ(r.think_time, 0);
    sum += r.think_time;
    squares += r.think_time * r.think_time;
  }
  EXPECT_NEAR(sum / 4000, 2, 0.15);
  EXPECT_NEAR(squares / 4000, 8, 1) << "of an exponential distribution: twice the square of the mean";
}

TEST(Workload, WarmupHasOtherTokens) {
  WorkloadOptions o = small();
  o.num_prompts = 2;
  o.warmup = 5;
  o.shared_prefix_ratio = 1;
  const Workload w = make(o);
  ASSERT_EQ(w.warmup.size(), 5u);
  for (const PlannedRequest& r : w.warmup) {
    EXPECT_EQ(r.prompt.size(), 100u);
    EXPECT_LT(common(r, w.requests[0]), 3u);
  }
  o.warmup = 0;
  EXPECT_EQ(make(o).requests[1].prompt, w.requests[1].prompt);
}

TEST(Workload, Trace) {
  WorkloadOptions o = small();
  o.num_prompts = 0;
  o.arrival = Arrival::kTrace;
  o.trace = std::make_shared<const std::vector<TraceRow>>(
      std::vector<TraceRow>{{2.0, 30, 5, 7, 20, "agent"}, {0.5, 20, 4, 7, 20, ""}, {1.0, 10, 3, std::nullopt, 0, ""}});
  const Workload w = make(o);
  ASSERT_EQ(w.requests.size(), 3u);
  EXPECT_EQ(w.requests[0].arrival, 0.5);
  EXPECT_EQ(w.requests[1].arrival, 1.0);
  EXPECT_EQ(w.requests[2].arrival, 2.0);
  EXPECT_EQ(common(w.requests[0], w.requests[2]), 20u);  // the second turn goes on from the first
  EXPECT_EQ(w.requests[2].cache_class, "agent");
  EXPECT_EQ(w.requests[0].cache_class, "chat");
  EXPECT_EQ(w.requests[1].prefix_id, -1);
  o.num_prompts = 2;
  EXPECT_EQ(make(o).requests.size(), 2u);
}

TEST(Workload, TooLarge) {
  WorkloadOptions o = small();
  o.num_prompts = 1'000'000;
  o.input_len = 1'000'000;
  const auto made = make_workload(o);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), StatusCode::kOutOfRange);
  EXPECT_NE(made.error().message().find("268435456"), std::string::npos) << made.error().message();
}

}  // namespace
}  // namespace deepinfer::bench
