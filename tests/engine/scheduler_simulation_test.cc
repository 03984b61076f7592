// The scheduler with a world around it: requests come, pages are taken and given back, steps are in flight.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "engine/scheduler.h"
#include "testing/random.h"

namespace deepinfer {
namespace {

struct Job {
  SequenceId id = 0;
  double due = 0;
  int64_t prompt = 0, answer = 0;
  int64_t choices = 1;    ///< of which this is the first, until it has forked
  int64_t submitted = 0;  ///< step
  int64_t length = 0;     ///< prompt and what has been drawn
  int64_t drawing = 0;    ///< draws in flight
  int64_t scheduled = 0, pages = 0, prompt_end = 0;
  int64_t reading = 0;  ///< steps in flight that name it
  bool running = false, leaving = false, finished = false;

  int64_t longest() const { return prompt + answer - 1; }  ///< the last token need not run
};

/// What the core does, without a cache: a job begins at its first token each time it is admitted.
class World {
 public:
  World(SchedulerLimits limits, int64_t pages, int64_t depth) : limits_(limits), depth_(depth), total_(pages), free_(pages) {}

  SequenceId submit(double due, int64_t prompt, int64_t answer, int64_t choices = 1) {
    Job job{.id = next_++, .due = due, .prompt = prompt, .answer = answer, .choices = choices, .submitted = step_};
    job.length = prompt;
    const SequenceId id = job.id;
    jobs_.emplace(id, job);
    return id;
  }

  /// False: nothing can ever happen again although jobs are left.
  bool turn() {
    ++step_;
    const bool planned = static_cast<int64_t>(in_flight_.size()) < depth_ && plan();
    if (!in_flight_.empty() && (!planned || static_cast<int64_t>(in_flight_.size()) == depth_)) {
      commit();
      return true;
    }
    return planned || jobs_.empty();
  }

  bool done(SequenceId id) const { return !jobs_.contains(id); }
  int64_t step() const { return step_; }
  size_t left() const { return jobs_.size(); }
  int64_t rows() const { return rows_; }
  int64_t useful_rows() const { return useful_rows_; }
  int64_t preemptions() const { return preemptions_; }
  int64_t max_running() const { return max_running_; }
  const std::map<SequenceId, int64_t>& finished_at() const { return finished_at_; }

 private:
  int64_t pages_for(int64_t positions) const { return (positions + limits_.page_positions - 1) / limits_.page_positions; }

  bool plan() {
    SchedulerView view;
    int64_t places = limits_.max_num_seqs, running = 0;
    for (const auto& [id, job] : jobs_) {
      if (job.running || job.leaving) places -= job.leaving ? 1 : job.choices;
      if (!job.running) continue;
      ++running;
      RunningView v;
      v.id = id;
      v.due = job.due;
      v.scheduled = job.scheduled;
      v.runnable = std::min(job.length + job.drawing, job.longest());
      v.prompt_end = job.prompt_end;
      v.pages = job.pages;
      v.releasable = job.pages - shared_[id];
      v.extra_pages = job.prompt % limits_.page_positions != 0 ? job.choices - 1 : 0;
      v.in_flight = job.reading > 0;
      view.running.push_back(v);
    }
    max_running_ = std::max(max_running_, running);
    EXPECT_GE(places, 0);
    for (const auto& [id, job] : jobs_) {
      if (job.running || job.leaving) continue;
      WaitingView v;
      v.id = id;
      v.due = job.due;
      v.runnable = v.prompt_end = job.length;
      v.places = job.choices;
      v.extra_pages = job.prompt % limits_.page_positions != 0 ? job.choices - 1 : 0;
      view.waiting.push_back(v);
    }
    std::sort(view.waiting.begin(), view.waiting.end(),
              [](const auto& a, const auto& b) { return std::pair(a.due, a.id) < std::pair(b.due, b.id); });
    view.available_pages = free_;
    view.free_places = places;
    const StepPlan p = plan_step(view, limits_);
    for (const SequenceId id : p.preempt) {
      ++preemptions_;
      leave(jobs_.at(id));
    }
    std::vector<SequenceId> drawing;
    std::vector<SequenceId> reading;
    for (const PlannedRows& rows : p.rows) apply(rows, reading, drawing);
    EXPECT_GE(free_, 0);
    if (p.rows.empty()) return false;
    rows_ += p.row_count();
    in_flight_.push_back({reading, drawing});
    return true;
  }

  void apply(const PlannedRows& rows, std::vector<SequenceId>& reading, std::vector<SequenceId>& drawing) {
    Job& job = jobs_.at(rows.id);
    if (rows.admitted) {
      job.running = true;
      job.scheduled = 0;
      job.prompt_end = job.length;
    }
    free_ -= rows.pages - job.pages;
    job.pages = rows.pages;
    job.scheduled += rows.count;
    ++job.reading;
    reading.push_back(job.id);
    if (job.scheduled != job.length + job.drawing) return;
    ++job.drawing;
    drawing.push_back(job.id);
    for (; job.choices > 1; --job.choices) {
      // Shared pages are counted with the first choice; a fork owns its last page and what follows. Near enough: it pays for
      // its whole prompt once it has been preempted.
      Job fork{.id = next_++, .due = job.due, .prompt = job.prompt, .answer = job.answer, .submitted = job.submitted};
      fork.length = fork.scheduled = fork.prompt_end = job.prompt;
      fork.pages = pages_for(job.prompt);
      free_ -= job.prompt % limits_.page_positions != 0 ? 1 : 0;
      shared_[fork.id] = job.prompt / limits_.page_positions;
      fork.running = true;
      fork.drawing = fork.reading = 1;
      reading.push_back(fork.id);
      drawing.push_back(fork.id);
      jobs_.emplace(fork.id, fork);
    }
  }

  void commit() {
    const auto [reading, drawing] = in_flight_.front();
    in_flight_.pop_front();
    for (const SequenceId id : drawing) {
      Job& job = jobs_.at(id);
      --job.drawing;
      if (job.finished) continue;
      if (++job.length < job.prompt + job.answer) continue;
      job.finished = true;
      useful_rows_ += job.longest();
      finished_at_[id] = step_;
      if (job.running) leave(job, /*settles=*/false);
    }
    for (const SequenceId id : reading) --jobs_.at(id).reading;
    for (const SequenceId id : reading) settle(id);
  }

  void leave(Job& job, bool settles = true) {
    job.running = false;
    job.leaving = true;
    job.choices = std::max<int64_t>(1, job.choices);
    if (settles) settle(job.id);
  }

  void settle(SequenceId id) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end() || !found->second.leaving || found->second.reading > 0) return;
    Job& job = found->second;
    free_ += job.pages - shared_[id];
    shared_[id] = 0;
    job.pages = 0;
    job.leaving = false;
    if (job.finished) jobs_.erase(found);
  }

  struct Flight {
    std::vector<SequenceId> reading, drawing;
  };

  SchedulerLimits limits_;
  int64_t depth_, total_, free_;
  std::map<SequenceId, Job> jobs_;
  std::map<SequenceId, int64_t> shared_, finished_at_;
  std::deque<Flight> in_flight_;
  SequenceId next_ = 1;
  int64_t step_ = 0, rows_ = 0, useful_rows_ = 0, preemptions_ = 0, max_running_ = 0;
};

constexpr SchedulerLimits kLimits{.max_num_seqs = 16, .max_num_batched_tokens = 64, .page_positions = 16};

TEST(SchedulerSimulation, EveryRequestFinishes) {
  testing::Random random(1);
  int64_t preemptions = 0;
  for (int round = 0; round < 60; ++round) {
    SchedulerLimits limits = kLimits;
    limits.max_num_seqs = random.between(4, 20);
    limits.max_num_batched_tokens = random.between(1, 100);
    const int64_t pages = random.between(16, 60);
    World world(limits, pages, random.between(1, 2));
    int64_t requests = random.between(5, 60);
    const bool choices = random.below(2) == 0;
    const double interval = static_cast<double>(random.below(50));
    int64_t steps = 0, tokens = 0;
    while (requests > 0 || world.left() > 0) {
      if (requests > 0 && random.below(4) == 0) {
        --requests;
        const int64_t prompt = random.between(1, 120), answer = random.between(1, 100);
        const int64_t n = choices ? random.between(1, 4) : 1;
        tokens += prompt + n * answer;
        world.submit(static_cast<double>(world.step()) + static_cast<double>(random.between(-3, 3)) * interval, prompt, answer,
                     n);
      }
      const bool alive = world.turn();
      ASSERT_TRUE(alive) << "stuck in round " << round << " with " << world.left() << " left";
      ASSERT_LT(++steps, 40 * tokens + 1000) << "round " << round;
    }
    preemptions += world.preemptions();
  }
  EXPECT_GT(preemptions, 100);
}

/// Small requests without end, each more urgent than the big one: it is served all the same once it is due before new ones.
void expect_served(int64_t depth, int64_t small_answer) {
  World world(kLimits, 64, depth);
  testing::Random random(static_cast<uint64_t>(depth * 100 + small_answer));
  constexpr int64_t kHeadStart = 500;  // steps that a small one may come later and still be due first
  // Twice of what the pages can hold is always there.
  const auto turn = [&] {
    while (world.left() < 40) world.submit(static_cast<double>(world.step() - kHeadStart), random.between(1, 60), small_answer);
    return world.turn();
  };
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(turn());
  // 60 of the 64 pages at its end.
  const int64_t begin = world.step();
  const SequenceId big = world.submit(static_cast<double>(begin), 800, 160);
  while (!world.done(big)) {
    ASSERT_TRUE(turn());
    ASSERT_LT(world.step(), begin + kHeadStart + 3000) << "the big one starves";
  }
  EXPECT_GT(world.step(), begin + kHeadStart) << "the small ones were not more urgent";
  // Those after it go on.
  const size_t finished = world.finished_at().size();
  EXPECT_GT(finished, 30u);
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(turn());
  EXPECT_GT(world.finished_at().size(), finished + 10);
}

TEST(SchedulerSimulation, ABigOneIsNotStarvedBySmallOnes) {
  for (const int64_t depth : {1, 2}) {
    for (const int64_t answer : {1, 20, 100}) expect_served(depth, answer);
  }
}

TEST(SchedulerSimulation, EqualRequestsFinishInTheOrderOfTheirComing) {
  for (const int64_t depth : {1, 2}) {
    World world(kLimits, 20, depth);
    std::vector<SequenceId> ids;
    for (int i = 0; i < 40; ++i) ids.push_back(world.submit(i, 50, 60));
    for (int i = 0; i < 20000 && world.left() > 0; ++i) ASSERT_TRUE(world.turn());
    ASSERT_EQ(world.left(), 0u);
    for (size_t i = 1; i < ids.size(); ++i) EXPECT_LE(world.finished_at().at(ids[i - 1]), world.finished_at().at(ids[i])) << i;
    EXPECT_GT(world.preemptions(), 0);
  }
}

TEST(SchedulerSimulation, LittleIsComputedTwice) {
  // Steady load, more than the pages hold: what preemption throws away stays a part of the work.
  for (const int64_t depth : {1, 2}) {
    World world(kLimits, 48, depth);
    testing::Random random(7);
    for (int i = 0; i < 200; ++i) world.submit(i, random.between(20, 200), random.between(10, 120));
    int64_t steps = 0;
    while (world.left() > 0) {
      ASSERT_TRUE(world.turn());
      ASSERT_LT(++steps, 100000);
    }
    EXPECT_EQ(world.finished_at().size(), 200u);
    EXPECT_LT(static_cast<double>(world.rows()), 1.5 * static_cast<double>(world.useful_rows())) << depth;
    EXPECT_GE(world.rows(), world.useful_rows());
    EXPECT_GT(world.max_running(), 2);
  }
}

}  // namespace
}  // namespace deepinfer
