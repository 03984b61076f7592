#include "driver.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "apps/fake_engine.h"

namespace deepinfer::bench {
namespace {

using testing::FakeBehaviour;
using testing::FakeEngine;
using testing::FakeLog;

Output output(int64_t choice, size_t tokens, std::optional<FinishReason> finish = std::nullopt) {
  Output out;
  out.index = choice;
  out.tokens.assign(tokens, 5);
  out.finish = finish;
  return out;
}

TEST(RequestMeter, Times) {
  RequestRecord record;
  record.submitted = 1;
  std::vector<float> gaps;
  RequestMeter meter(&record, 1, &gaps);
  meter.add(output(0, 0), 1.5);  // no token: not the first
  EXPECT_TRUE(std::isnan(record.ttft()));
  meter.add(output(0, 1), 2);
  meter.add(output(0, 1), 2.5);
  meter.add(output(0, 4), 4.5);  // merged: four times half a second
  EXPECT_FALSE(meter.done());
  meter.add(output(0, 0, FinishReason::kLength), 5);
  EXPECT_TRUE(meter.done());
  EXPECT_EQ(record.ttft(), 1);
  EXPECT_EQ(gaps, (std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f, 0.5f}));
  EXPECT_DOUBLE_EQ(record.tpot, 0.5);
  EXPECT_EQ(record.latency(), 4);
  EXPECT_EQ(record.output_tokens, 6);
  EXPECT_EQ(record.outcome, Outcome::kCompleted);
}

TEST(RequestMeter, TokensThatComeWithTheFirstHaveNoTime) {
  RequestRecord record;
  record.submitted = 0;
  std::vector<float> gaps;
  RequestMeter meter(&record, 1, &gaps);
  meter.add(output(0, 5), 1);
  meter.add(output(0, 2, FinishReason::kStop), 2);
  EXPECT_EQ(gaps, (std::vector<float>{0.5f, 0.5f}));
  EXPECT_DOUBLE_EQ(record.tpot, 0.5);
  EXPECT_EQ(record.output_tokens, 7);

  RequestRecord single;
  single.submitted = 0;
  RequestMeter one(&single, 1, &gaps);
  one.add(output(0, 1, FinishReason::kLength), 1);
  EXPECT_TRUE(std::isnan(single.tpot));
  EXPECT_EQ(single.latency(), 1);
}

TEST(RequestMeter, Choices) {
  RequestRecord record;
  record.submitted = 0;
  std::vector<float> gaps;
  RequestMeter meter(&record, 2, &gaps);
  meter.add(output(1, 1), 1);
  meter.add(output(0, 1), 2);
  meter.add(output(1, 1, FinishReason::kLength), 3);
  EXPECT_FALSE(meter.done());
  meter.add(output(1, 0, FinishReason::kLength), 3);  // twice
  meter.add(output(7, 1, FinishReason::kLength), 3);  // no such choice
  EXPECT_FALSE(meter.done());
  meter.add(output(0, 1, FinishReason::kError), 3);
  EXPECT_TRUE(meter.done());
  EXPECT_EQ(record.ttft(), 1);
  EXPECT_DOUBLE_EQ(record.tpot, 1.5);
  EXPECT_EQ(record.finish, FinishReason::kError);
  EXPECT_EQ(record.outcome, Outcome::kFailed);
}

class DriverTest : public ::testing::Test {
 protected:
  RunRecord run(const FakeBehaviour& behaviour, const WorkloadOptions& workload, const DriverOptions& options,
                const RequestSettings& settings = {}) {
    FakeEngine engine({}, behaviour, log_);
    const auto made = make_workload(workload);
    EXPECT_TRUE(made.has_value());
    return run_workload(engine, made->requests, settings, options);
  }
  static WorkloadOptions workload(int64_t requests) {
    WorkloadOptions o;
    o.num_prompts = requests;
    o.input_len = 16;
    o.output_len = 8;
    o.vocab_size = 4096;
    return o;
  }
  static int64_t count(const RunRecord& run, Outcome outcome) {
    return std::count_if(run.requests.begin(), run.requests.end(), [&](const RequestRecord& r) { return r.outcome == outcome; });
  }

  std::shared_ptr<FakeLog> log_ = std::make_shared<FakeLog>();
};

TEST_F(DriverTest, ClosedLoopKeepsItsConcurrency) {
  DriverOptions options;
  options.max_in_flight = 4;
  const RunRecord r = run({}, workload(50), options);
  ASSERT_EQ(r.requests.size(), 50u);
  EXPECT_EQ(count(r, Outcome::kCompleted), 50);
  EXPECT_LE(log_->max_in_flight, 4);
  EXPECT_EQ(r.peak_in_flight, 4);
  EXPECT_EQ(r.not_submitted, 0);
  for (const RequestRecord& each : r.requests) {
    EXPECT_EQ(each.output_tokens, 8);
    EXPECT_EQ(each.finish, FinishReason::kLength);
    EXPECT_GT(each.ttft(), 0);
    EXPECT_GE(each.latency(), each.ttft());
    EXPECT_EQ(each.usage.cached_tokens, 8);
  }
  EXPECT_GT(r.seconds, 0);
  EXPECT_EQ(r.after.generation_tokens - r.before.generation_tokens, 400);
  ASSERT_EQ(log_->requests.size(), 50u);
  EXPECT_TRUE(log_->requests[0].ignore_eos);
  EXPECT_FALSE(log_->requests[0].detokenize);
  EXPECT_EQ(log_->requests[0].max_tokens, 8);
}

TEST_F(DriverTest, ThousandsAtOnce) {
  const RunRecord r = run({}, workload(3000), {});
  EXPECT_EQ(count(r, Outcome::kCompleted), 3000);
  int64_t tokens = 0;
  for (const RequestRecord& each : r.requests) tokens += each.output_tokens;
  EXPECT_EQ(tokens, 24000);
}

TEST_F(DriverTest, OpenLoopWaitsForArrivals) {
  WorkloadOptions o = workload(20);
  o.arrival = Arrival::kPoisson;
  o.request_rate = 200;
  const RunRecord r = run({}, o, {});
  EXPECT_EQ(count(r, Outcome::kCompleted), 20);
  for (const RequestRecord& each : r.requests) EXPECT_GE(each.submitted, each.planned);
  EXPECT_GE(r.seconds, r.requests.back().planned);
  EXPECT_GT(r.requests.back().planned, 0.02);
}

TEST_F(DriverTest, SettingsReachTheEngine) {
  RequestSettings settings;
  settings.n = 3;
  settings.ignore_eos = false;
  settings.priority = -2;
  settings.sampling.temperature = 0.25f;
  FakeBehaviour behaviour;
  behaviour.stop_after = 5;
  const RunRecord r = run(behaviour, workload(4), {}, settings);
  for (const RequestRecord& each : r.requests) {
    EXPECT_EQ(each.finish, FinishReason::kStop);
    EXPECT_EQ(each.output_tokens, 15);
  }
  EXPECT_EQ(log_->requests[0].priority, -2);
  EXPECT_EQ(log_->requests[0].sampling.temperature, 0.25f);
  EXPECT_TRUE(log_->requests[0].seed.has_value());
}

TEST_F(DriverTest, RefusalsAndErrorsAreCounted) {
  FakeBehaviour behaviour;
  behaviour.refuse_every = 5;
  behaviour.fail_every = 4;
  DriverOptions options;
  options.max_in_flight = 3;
  const RunRecord r = run(behaviour, workload(20), options);
  EXPECT_EQ(count(r, Outcome::kFailed), 4 + 4);  // 5, 10, 15, 20 refused; 4, 8, 12, 16 fail
  EXPECT_EQ(count(r, Outcome::kCompleted), 12);
  EXPECT_EQ(r.requests[4].error, "the queue is full");
  EXPECT_EQ(r.requests[3].error, "a made-up defect");
  EXPECT_EQ(r.requests[3].finish, FinishReason::kError);
}

TEST_F(DriverTest, DurationCancelsWhatRuns) {
  FakeBehaviour behaviour;
  behaviour.never_answer = true;
  DriverOptions options;
  options.max_in_flight = 2;
  options.duration = 0.05;
  const RunRecord r = run(behaviour, workload(10), options);
  EXPECT_TRUE(r.timed_out);
  EXPECT_FALSE(r.stopped);
  EXPECT_EQ(r.requests.size(), 2u);
  EXPECT_EQ(count(r, Outcome::kCancelled), 2);
  EXPECT_EQ(r.not_submitted, 8);
  EXPECT_EQ(log_->cancelled, 2);
  EXPECT_GE(r.seconds, 0.05);
}

TEST_F(DriverTest, StopIsAskedAndProgressTold) {
  FakeBehaviour behaviour;
  behaviour.step = std::chrono::milliseconds(5);
  DriverOptions options;
  options.max_in_flight = 1;
  int64_t told = 0;
  options.progress = [&](const RunProgress& p) {
    ++told;
    EXPECT_EQ(p.total, 1000);
    EXPECT_LE(p.in_flight, 1);
  };
  options.stop = [&] { return told >= 2; };
  const RunRecord r = run(behaviour, workload(1000), options);
  EXPECT_TRUE(r.stopped);
  EXPECT_GT(count(r, Outcome::kCompleted), 0);
  EXPECT_GT(r.not_submitted, 0);
}

TEST_F(DriverTest, NothingToDo) {
  FakeEngine engine({}, {}, log_);
  const RunRecord r = run_workload(engine, {}, {}, {});
  EXPECT_TRUE(r.requests.empty());
}

}  // namespace
}  // namespace deepinfer::bench
