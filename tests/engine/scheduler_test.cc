#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "testing/random.h"

namespace deepinfer {
namespace {

constexpr int64_t kPage = 16;
constexpr SchedulerLimits kLimits{.max_num_seqs = 8, .max_num_batched_tokens = 64, .page_positions = kPage};

int64_t pages_for(int64_t positions, int64_t page = kPage) { return (positions + page - 1) / page; }

/// An answer of `length` tokens so far; its next row is at position length - 1.
RunningView decode(SequenceId id, double due, int64_t length) {
  RunningView v;
  v.id = id;
  v.due = due;
  v.scheduled = length - 1;
  v.runnable = length;
  v.prompt_end = length - 1;
  v.pages = pages_for(length - 1);
  v.releasable = v.pages;
  return v;
}

RunningView prompt(SequenceId id, double due, int64_t scheduled, int64_t length) {
  RunningView v;
  v.id = id;
  v.due = due;
  v.scheduled = scheduled;
  v.runnable = length;
  v.prompt_end = length;
  v.pages = pages_for(scheduled);
  v.releasable = v.pages;
  return v;
}

WaitingView newcomer(SequenceId id, double due, int64_t length, int64_t hit_pages = 0) {
  WaitingView v;
  v.id = id;
  v.due = due;
  v.from = hit_pages * kPage;
  v.runnable = length;
  v.prompt_end = length;
  v.hit_pages = hit_pages;
  return v;
}

SchedulerView view_of(std::vector<RunningView> running, std::vector<WaitingView> waiting, int64_t pages = 1000,
                      int64_t places = 8) {
  return {std::move(running), std::move(waiting), pages, places};
}

std::string plan(const SchedulerView& view, const SchedulerLimits& limits = kLimits) {
  return plan_step(view, limits).to_string();
}

TEST(Scheduler, NothingToDo) {
  EXPECT_EQ(plan_step({}, kLimits), StepPlan{});
  EXPECT_EQ(plan({}), "");
  // Everything has been scheduled; a sequence that rewinds does not exist, but would not run backwards.
  RunningView done = decode(1, 0, 20);
  done.runnable = done.scheduled;
  RunningView past = decode(2, 0, 20);
  past.runnable = past.scheduled - 3;
  EXPECT_EQ(plan(view_of({done, past}, {})), "");
}

TEST(Scheduler, DecodesThenPromptsThenNewcomers) {
  const auto view = view_of({prompt(1, 0, 16, 36), decode(2, 9, 40), prompt(3, 1, 0, 10), decode(4, 8, 17)},
                            {newcomer(5, 2, 12), newcomer(6, 3, 100)});
  EXPECT_EQ(plan(view), "4[16+1] 2[39+1] 1[16+20] 3[0+10] +5[0+12] +6[0+20]");
  const StepPlan p = plan_step(view, kLimits);
  EXPECT_EQ(p.row_count(), 64);
  EXPECT_EQ(p.rows[0], (PlannedRows{.id = 4, .first = 16, .count = 1, .pages = 2, .admitted = false}));
  EXPECT_EQ(p.rows[5], (PlannedRows{.id = 6, .first = 0, .count = 20, .pages = 2, .admitted = true}));
}

TEST(Scheduler, EqualDueGoesById) {
  EXPECT_EQ(plan(view_of({decode(3, 1, 5), decode(1, 1, 5), decode(2, 1, 5)}, {})), "1[4+1] 2[4+1] 3[4+1]");
}

TEST(Scheduler, TheBudgetOfRowsIsSharedInOrder) {
  SchedulerLimits limits = kLimits;
  limits.max_num_batched_tokens = 3;
  EXPECT_EQ(plan(view_of({decode(1, 4, 5), decode(2, 3, 5), decode(3, 2, 5), decode(4, 1, 5)}, {newcomer(5, 0, 3)}), limits),
            "4[4+1] 3[4+1] 2[4+1]");
  // What decodes leave goes to the prompt; the rest of it comes in later steps.
  EXPECT_EQ(plan(view_of({decode(1, 4, 5), prompt(2, 3, 7, 90)}, {newcomer(5, 0, 3)}), limits), "1[4+1] 2[7+2]");
  limits.max_num_batched_tokens = 0;
  EXPECT_EQ(plan(view_of({decode(1, 4, 5)}, {newcomer(5, 0, 3)}), limits), "");
}

TEST(Scheduler, PromptsRunInChunks) {
  int64_t at = 0;
  std::vector<int64_t> chunks;
  while (at < 150) {
    const StepPlan p = plan_step(view_of({prompt(1, 0, at, 150)}, {}), kLimits);
    ASSERT_EQ(p.rows.size(), 1u);
    EXPECT_EQ(p.rows[0].first, at);
    EXPECT_EQ(p.rows[0].pages, pages_for(at + p.rows[0].count));
    chunks.push_back(p.rows[0].count);
    at += p.rows[0].count;
  }
  EXPECT_EQ(chunks, (std::vector<int64_t>{64, 64, 22}));
}

TEST(Scheduler, RowLimit) {
  auto running = prompt(1, 0, 3, 100);
  running.row_limit = 5;
  auto waiting = newcomer(2, 1, 100);
  waiting.row_limit = 7;
  EXPECT_EQ(plan(view_of({running}, {waiting})), "1[3+5] +2[0+7]");
  running.row_limit = waiting.row_limit = 0;
  EXPECT_EQ(plan(view_of({running}, {waiting})), "");
}

TEST(Scheduler, PlacesAreForAllChoices) {
  auto many = newcomer(1, 1, 8);
  many.places = 3;
  EXPECT_EQ(plan(view_of({}, {many, newcomer(2, 2, 8)}, 1000, 4)), "+1[0+8] +2[0+8]");
  EXPECT_EQ(plan(view_of({}, {many, newcomer(2, 2, 8)}, 1000, 3)), "+1[0+8]");
  // Never past one that waits longer.
  EXPECT_EQ(plan(view_of({}, {many, newcomer(2, 2, 8)}, 1000, 2)), "");
  EXPECT_EQ(plan(view_of({}, {newcomer(2, 0, 8), many}, 1000, 2)), "+2[0+8]");
}

TEST(Scheduler, ANewcomerNeedsRoomForItsWholePrompt) {
  // 100 tokens are 7 pages; the first step needs 4 of them.
  EXPECT_EQ(plan(view_of({}, {newcomer(1, 0, 100)}, 7)), "+1[0+64]");
  EXPECT_EQ(plan(view_of({}, {newcomer(1, 0, 100)}, 6)), "");
  // The one behind would fit.
  EXPECT_EQ(plan(view_of({}, {newcomer(1, 0, 100), newcomer(2, 1, 5)}, 6)), "");
}

TEST(Scheduler, WhatRunningPromptsNeedIsSpokenFor) {
  // 1 has 1 page, takes 2 now and needs 4 more later.
  SchedulerLimits limits = kLimits;
  limits.max_num_batched_tokens = 40;
  auto first = prompt(1, 0, 16, 100);
  first.row_limit = 32;
  EXPECT_EQ(plan(view_of({first}, {newcomer(2, 1, 8)}, 7), limits), "1[16+32] +2[0+8]");
  EXPECT_EQ(plan(view_of({first}, {newcomer(2, 1, 8)}, 6), limits), "1[16+32]");
  // The same where the running prompt gets no rows this time.
  first.row_limit = 0;
  EXPECT_EQ(plan(view_of({first}, {newcomer(2, 1, 8)}, 7), limits), "+2[0+8]");
  EXPECT_EQ(plan(view_of({first}, {newcomer(2, 1, 8)}, 6), limits), "");
  // And with forks to come.
  first.extra_pages = 2;
  EXPECT_EQ(plan(view_of({first}, {newcomer(2, 1, 8)}, 9), limits), "+2[0+8]");
  EXPECT_EQ(plan(view_of({first}, {newcomer(2, 1, 8)}, 8), limits), "");
}

TEST(Scheduler, NewcomersReserveForEachOther) {
  SchedulerLimits limits = kLimits;
  limits.max_num_batched_tokens = 80;
  EXPECT_EQ(plan(view_of({}, {newcomer(1, 0, 64), newcomer(2, 1, 64)}, 8), limits), "+1[0+64] +2[0+16]");
  EXPECT_EQ(plan(view_of({}, {newcomer(1, 0, 64), newcomer(2, 1, 64)}, 7), limits), "+1[0+64]");
  // 2 gets one page of its four now; the other three are spoken for.
  EXPECT_EQ(plan(view_of({}, {newcomer(1, 0, 48), newcomer(2, 1, 64), newcomer(3, 2, 8)}, 7), limits), "+1[0+48] +2[0+32]");
  limits.max_num_batched_tokens = 200;
  auto slow = newcomer(2, 1, 64);
  slow.row_limit = 16;
  EXPECT_EQ(plan(view_of({}, {newcomer(1, 0, 48), slow, newcomer(3, 2, 8)}, 8), limits), "+1[0+48] +2[0+16] +3[0+8]");
  EXPECT_EQ(plan(view_of({}, {newcomer(1, 0, 48), slow, newcomer(3, 2, 8)}, 7), limits), "+1[0+48] +2[0+16]");
}

TEST(Scheduler, HitsBringTheirPages) {
  auto hit = newcomer(1, 0, 100, 5);
  hit.from = 64;  // the last page is replayed
  EXPECT_EQ(plan(view_of({}, {hit}, 2)), "+1[64+36]");
  EXPECT_EQ(plan_step(view_of({}, {hit}, 2), kLimits).rows[0].pages, 7);
  EXPECT_EQ(plan(view_of({}, {hit}, 1)), "");
  // Pages of the hit that nobody else holds count as available until they are taken.
  hit.hit_evictable = 5;
  EXPECT_EQ(plan(view_of({}, {hit}, 7)), "+1[64+36]");
  EXPECT_EQ(plan(view_of({}, {hit}, 6)), "");
  EXPECT_EQ(plan(view_of({}, {hit, newcomer(2, 1, 8)}, 8)), "+1[64+36] +2[0+8]");
  EXPECT_EQ(plan(view_of({}, {hit, newcomer(2, 1, 8)}, 7)), "+1[64+36]");
  // A chunk that lies inside the hit takes no page.
  hit.row_limit = 4;
  EXPECT_EQ(plan_step(view_of({}, {hit}, 7), kLimits).rows[0].pages, 5);
}

TEST(Scheduler, ForksNeedPagesInTheStepThatEndsThePrompt) {
  auto running = prompt(1, 0, 10, 40);
  running.extra_pages = 3;
  EXPECT_EQ(plan(view_of({running}, {}, 5)), "1[10+30]");
  EXPECT_EQ(plan(view_of({running}, {}, 4)), "starved 1") << "two pages of its own and three for forks";
  running.row_limit = 29;
  EXPECT_EQ(plan(view_of({running}, {}, 2)), "1[10+29]");
  auto waiting = newcomer(2, 0, 40);
  waiting.extra_pages = 3;
  waiting.places = 4;
  EXPECT_EQ(plan(view_of({}, {waiting}, 6)), "+2[0+40]");
  EXPECT_EQ(plan(view_of({}, {waiting}, 5)), "");
  waiting.row_limit = 8;
  EXPECT_EQ(plan(view_of({}, {waiting}, 5)), "") << "known to be needed later";
  EXPECT_EQ(plan(view_of({}, {waiting, newcomer(3, 1, 8)}, 7)), "+2[0+8] +3[0+8]");
  EXPECT_EQ(plan(view_of({}, {waiting, newcomer(3, 1, 8)}, 6)), "+2[0+8]");
}

TEST(Scheduler, TheLastDueGivesItsPagesUp) {
  // 17 tokens: the next row is the first of a page.
  const auto view = view_of({decode(1, 1, 17), decode(2, 5, 40), decode(3, 3, 40)}, {newcomer(4, 0, 5)}, 0);
  EXPECT_EQ(plan(view), "preempt 2; 1[16+1] 3[39+1]") << "no newcomers while pages are short";
  EXPECT_EQ(plan(view_of({decode(1, 1, 17), prompt(2, 5, 20, 40), decode(3, 3, 33)}, {}, 0)), "preempt 2; 1[16+1] 3[32+1]");
  // One that has its rows keeps its pages, so the one that starves goes itself.
  EXPECT_EQ(plan(view_of({decode(1, 1, 20), decode(2, 5, 17)}, {}, 0)), "preempt 2; 1[19+1]");
  // Decodes have their turn first: a prompt gives way to them, even one that is due before them.
  EXPECT_EQ(plan(view_of({decode(1, 7, 20), decode(2, 8, 20), prompt(3, 1, 16, 40)}, {}, 0)), "preempt 3; 1[19+1] 2[19+1]");
  EXPECT_EQ(plan(view_of({decode(1, 7, 20), decode(2, 8, 20), prompt(3, 9, 16, 40)}, {}, 0)), "preempt 3; 1[19+1] 2[19+1]");
}

TEST(Scheduler, AsManyVictimsAsNeeded) {
  auto a = prompt(1, 1, 16, 80);  // needs four pages
  EXPECT_EQ(plan(view_of({a, prompt(2, 2, 16, 80), prompt(3, 3, 32, 80), prompt(4, 4, 16, 80)}, {}, 1)), "preempt 4,3; 1[16+64]");
  EXPECT_EQ(plan(view_of({a, prompt(2, 2, 16, 80), prompt(3, 3, 32, 80), prompt(4, 4, 16, 80)}, {}, 0)),
            "preempt 4,3,2; 1[16+64]");
}

TEST(Scheduler, EnoughOnItsWayIsWaitedFor) {
  auto a = decode(1, 1, 17), b = decode(2, 2, 33), c = decode(3, 3, 40), d = decode(4, 4, 40);
  b.in_flight = c.in_flight = d.in_flight = true;
  // 4 gives three pages, but only after the step that runs: 1 and 2 need one each and wait, 3 needs none and goes on.
  EXPECT_EQ(plan(view_of({a, b, c, d}, {newcomer(9, 0, 3)}, 0)), "preempt 4; 3[39+1]; starved 2");
  // Not enough on its way: one more goes.
  d.releasable = 0;
  EXPECT_EQ(plan(view_of({a, b, c, d}, {}, 0)), "preempt 4,3; starved 2");
  // What is there now counts with what comes later: 3 gives three pages, the fourth is there, so 2 stays.
  const auto first = prompt(1, 1, 16, 80);
  auto second = prompt(2, 2, 16, 80), third = prompt(3, 3, 48, 80);
  second.in_flight = third.in_flight = true;
  second.row_limit = 0;
  EXPECT_EQ(plan(view_of({first, second, third}, {}, 1)), "preempt 3; starved 1");
  EXPECT_EQ(plan(view_of({first, second, third}, {}, 0)), "preempt 3,2; starved 1");
  third.in_flight = false;
  EXPECT_EQ(plan(view_of({first, second, third}, {}, 1)), "preempt 3; 1[16+64]");
}

TEST(Scheduler, TheLastOneStandingKeepsWhatItHas) {
  EXPECT_EQ(plan_step(view_of({decode(1, 1, 17)}, {newcomer(2, 0, 3)}, 0), kLimits).starved, 1);
  EXPECT_TRUE(plan_step(view_of({decode(1, 1, 17)}, {newcomer(2, 0, 3)}, 0), kLimits).preempt.empty());
  // Even where all others have gone for nothing.
  auto b = decode(2, 2, 40);
  b.releasable = 0;
  const StepPlan p = plan_step(view_of({decode(1, 1, 17), b}, {}, 0), kLimits);
  EXPECT_EQ(p.preempt, std::vector<SequenceId>{2});
  EXPECT_EQ(p.starved, 1);
  EXPECT_TRUE(p.rows.empty());
  EXPECT_EQ(plan_step(view_of({decode(1, 1, 17), b}, {}, 1), kLimits).to_string(), "1[16+1] 2[39+1]");
}

TEST(Scheduler, Names) {
  StepPlan p;
  EXPECT_EQ(p.to_string(), "");
  p.starved = 2;
  EXPECT_EQ(p.to_string(), "starved 2");
  p.preempt = {7};
  EXPECT_EQ(p.to_string(), "preempt 7; starved 2");
  p.starved = 0;
  EXPECT_EQ(p.to_string(), "preempt 7");
  p.preempt = {7, 8};
  p.rows = {{3, 17, 1, 2, false}, {4, 64, 128, 2, false}, {9, 0, 371, 3, true}};
  EXPECT_EQ(p.to_string(), "preempt 7,8; 3[17+1] 4[64+128] +9[0+371]");
  EXPECT_EQ(p.row_count(), 500);
  p.preempt.clear();
  p.starved = 1;
  EXPECT_EQ(p.to_string(), "3[17+1] 4[64+128] +9[0+371]; starved 1");
}

// --- Properties -------------------------------------------------------------------------------------------------------------

struct RandomCase {
  SchedulerView view;
  SchedulerLimits limits;
};

RandomCase random_case(testing::Random& random) {
  RandomCase c;
  const int64_t page = c.limits.page_positions = int64_t{1} << random.between(0, 5);
  c.limits.max_num_seqs = random.between(1, 12);
  c.limits.max_num_batched_tokens = random.between(1, 1 << random.between(0, 7));
  const bool roomy = random.below(3) == 0;
  SequenceId id = 1;
  const auto due = [&] { return static_cast<double>(random.below(random.below(2) == 0 ? 4 : 1000)); };
  const int64_t running = random.between(0, c.limits.max_num_seqs);
  for (int64_t i = 0; i < running; ++i) {
    RunningView v;
    v.id = id++;
    v.due = due();
    v.prompt_end = random.between(1, 120);
    v.scheduled = random.below(3) == 0 ? random.below(v.prompt_end) : v.prompt_end + random.below(40);
    v.runnable = std::max(v.scheduled + random.between(0, 1), v.prompt_end);
    v.pages = pages_for(v.scheduled, page) + (random.below(4) == 0 ? random.below(3) : 0);
    v.releasable = random.below(4) == 0 ? random.between(0, v.pages) : v.pages;
    if (random.below(5) == 0) v.row_limit = random.between(1, 10);
    if (random.below(4) == 0) v.extra_pages = random.below(4);
    v.in_flight = random.below(2) == 0;
    c.view.running.push_back(v);
  }
  const int64_t waiting = random.below(6);
  for (int64_t i = 0; i < waiting; ++i) {
    WaitingView v;
    v.id = id++;
    v.due = due();
    v.prompt_end = random.between(1, 120);
    v.runnable = v.prompt_end;
    if (random.below(3) == 0) {
      v.hit_pages = random.between(0, (v.prompt_end - 1) / page);
      v.hit_evictable = random.between(0, v.hit_pages);
      v.from = random.between(std::max<int64_t>(0, v.hit_pages * page - 20), v.hit_pages * page);
    }
    if (random.below(5) == 0) v.row_limit = random.between(1, 10);
    if (random.below(4) == 0) {
      v.places = random.between(1, 4);
      v.extra_pages = v.places - 1;
    }
    c.view.waiting.push_back(v);
  }
  std::stable_sort(c.view.waiting.begin(), c.view.waiting.end(), [](const auto& a, const auto& b) { return a.due < b.due; });
  c.view.available_pages = roomy ? 1000 : random.below(12);
  c.view.free_places = random.between(0, 6);
  return c;
}

bool before(const RunningView& a, const RunningView& b) { return a.due < b.due || (a.due == b.due && a.id < b.id); }

/// Everything that can be said of a plan without planning. Empty, or what is wrong.
std::string violation(const SchedulerView& view, const SchedulerLimits& limits, const StepPlan& plan) {
  const int64_t page = limits.page_positions;
  std::map<SequenceId, const RunningView*> running;
  std::map<SequenceId, const WaitingView*> waiting;
  for (const auto& v : view.running) running[v.id] = &v;
  for (const auto& v : view.waiting) waiting[v.id] = &v;
  std::set<SequenceId> preempted, has_rows;
  int64_t available = view.available_pages;
  for (const SequenceId id : plan.preempt) {
    if (!running.contains(id)) return "preempts what does not run";
    if (!preempted.insert(id).second) return "preempts twice";
    if (!running[id]->in_flight) available += running[id]->releasable;
  }
  int64_t places = 0, admitted = 0;
  int group = 0;
  const RunningView* last = nullptr;
  for (const PlannedRows& rows : plan.rows) {
    if (!has_rows.insert(rows.id).second) return "rows twice";
    if (preempted.contains(rows.id)) return "rows for a preempted one";
    if (rows.count <= 0) return "no rows";
    const int64_t end = rows.first + rows.count;
    if (rows.admitted) {
      if (admitted >= static_cast<int64_t>(view.waiting.size())) return "admits too many";
      const WaitingView& v = view.waiting[static_cast<size_t>(admitted++)];
      if (v.id != rows.id) return "admits out of order";
      group = 2;
      places += v.places;
      if (rows.first != v.from || end > v.runnable || rows.count > v.row_limit) return "wrong rows of a newcomer";
      if (rows.pages != std::max(v.hit_pages, pages_for(end, page))) return "wrong pages of a newcomer";
      available -= v.hit_evictable + rows.pages - v.hit_pages + (end >= v.prompt_end ? v.extra_pages : 0);
    } else {
      if (!running.contains(rows.id)) return "rows for nobody";
      const RunningView& v = *running[rows.id];
      const int own = v.scheduled >= v.prompt_end ? 0 : 1;
      if (own < group) return "decodes after prompts or newcomers";
      if (own == group && last != nullptr && !before(*last, v)) return "not in the order of service";
      group = own;
      last = &v;
      if (rows.first != v.scheduled || end > v.runnable || rows.count > v.row_limit) return "wrong rows";
      if (rows.pages != std::max(v.pages, pages_for(end, page))) return "wrong pages";
      available -= rows.pages - v.pages + (own == 1 && end >= v.prompt_end ? v.extra_pages : 0);
    }
  }
  if (plan.row_count() > limits.max_num_batched_tokens) return "too many rows";
  if (available < 0) return "more pages than there are";
  if (places > view.free_places) return "more places than there are";
  if (admitted > 0 && (!plan.preempt.empty() || plan.starved > 0)) return "admits although pages are short";

  const bool rows_left = plan.row_count() < limits.max_num_batched_tokens;
  int64_t left_out = 0, spoken_for = 0;
  for (const auto& v : view.running) {
    if (preempted.contains(v.id)) {
      for (const auto& w : view.running) {
        if (before(v, w) && !preempted.contains(w.id) && !has_rows.contains(w.id)) return "preempts one before the last due";
      }
      continue;
    }
    if (v.runnable > v.scheduled && v.row_limit > 0 && !has_rows.contains(v.id)) ++left_out;
    if (v.scheduled >= v.prompt_end) continue;
    const auto rows = std::find_if(plan.rows.begin(), plan.rows.end(), [&](const auto& r) { return r.id == v.id; });
    const int64_t held = rows == plan.rows.end() ? v.pages : rows->pages;
    const bool ended = rows != plan.rows.end() && rows->first + rows->count >= v.prompt_end;
    spoken_for += std::max<int64_t>(0, pages_for(v.prompt_end, page) - held) + (ended ? 0 : v.extra_pages);
  }
  if (rows_left && left_out > plan.starved) return "leaves out one that could run";
  if (plan.starved > static_cast<int64_t>(view.running.size())) return "more starve than there are";
  if (plan.rows.empty() && !view.running.empty() && preempted.size() == view.running.size()) return "nobody is left standing";
  for (const PlannedRows& rows : plan.rows) {
    if (!rows.admitted) continue;
    const WaitingView& v = *waiting[rows.id];
    spoken_for += std::max<int64_t>(0, pages_for(v.prompt_end, page) - rows.pages) +
                  (rows.first + rows.count >= v.prompt_end ? 0 : v.extra_pages);
  }
  if (admitted > 0 && spoken_for > available) return "admits one that does not fit";
  if (plan.preempt.empty() && plan.starved == 0 && rows_left && admitted < static_cast<int64_t>(view.waiting.size())) {
    const WaitingView& next = view.waiting[static_cast<size_t>(admitted)];
    const int64_t whole = std::max<int64_t>(0, pages_for(next.prompt_end, page) - next.hit_pages) + next.extra_pages;
    if (places + next.places <= view.free_places && available - next.hit_evictable - spoken_for >= whole && next.row_limit > 0)
      return "leaves out a newcomer that fits";
  }
  return "";
}

std::string describe(const RandomCase& c) {
  std::string text = "page " + std::to_string(c.limits.page_positions) + " rows " +
                     std::to_string(c.limits.max_num_batched_tokens) + " available " + std::to_string(c.view.available_pages);
  for (const auto& v : c.view.running) {
    text += "\n  " + std::to_string(v.id) + " due " + std::to_string(v.due) + " " + std::to_string(v.scheduled) + "/" +
            std::to_string(v.runnable) + "/" + std::to_string(v.prompt_end) + " pages " + std::to_string(v.pages) + "-" +
            std::to_string(v.releasable) + "+" + std::to_string(v.extra_pages) + (v.in_flight ? " in flight" : "");
  }
  for (const auto& v : c.view.waiting) {
    text += "\n  waits " + std::to_string(v.id) + " " + std::to_string(v.from) + "/" + std::to_string(v.prompt_end) + " hit " +
            std::to_string(v.hit_pages) + "-" + std::to_string(v.hit_evictable) + "+" + std::to_string(v.extra_pages) +
            " places " + std::to_string(v.places);
  }
  return text;
}

TEST(Scheduler, EveryPlanKeepsTheRules) {
  testing::Random random(1);
  int64_t preempted = 0, starved = 0, admitted = 0;
  StepPlan used_again;
  for (int i = 0; i < 40000; ++i) {
    RandomCase c = random_case(random);
    const StepPlan p = plan_step(c.view, c.limits);
    ASSERT_EQ(violation(c.view, c.limits, p), "") << "case " << i << ": " << p.to_string() << "\n" << describe(c);
    // The same view gives the same plan, whatever was planned before and however `running` is ordered.
    plan_step(c.view, c.limits, used_again);
    ASSERT_EQ(used_again, p) << i;
    for (size_t k = c.view.running.size(); k > 1; --k)
      std::swap(c.view.running[k - 1], c.view.running[static_cast<size_t>(random.below(static_cast<int64_t>(k)))]);
    ASSERT_EQ(plan_step(c.view, c.limits), p) << i;
    preempted += p.preempt.empty() ? 0 : 1;
    starved += p.starved > 0 ? 1 : 0;
    for (const auto& rows : p.rows) admitted += rows.admitted ? 1 : 0;
  }
  // The cases are worth something.
  EXPECT_GT(preempted, 2000);
  EXPECT_GT(starved, 1000);
  EXPECT_GT(admitted, 5000);
}

TEST(Scheduler, MorePagesNeverPreemptMore) {
  testing::Random random(2);
  for (int i = 0; i < 5000; ++i) {
    RandomCase c = random_case(random);
    const StepPlan less = plan_step(c.view, c.limits);
    c.view.available_pages += 1000;
    const StepPlan more = plan_step(c.view, c.limits);
    ASSERT_TRUE(more.preempt.empty() && more.starved == 0) << more.to_string();
    ASSERT_GE(more.row_count(), less.row_count()) << i;
  }
}

RunningView drafting(SequenceId id, double due, int64_t length, int64_t drafts, int64_t ahead = 0) {
  RunningView v = decode(id, due, length);
  v.drafts = drafts;
  v.ahead = ahead;
  v.pages = pages_for(length - 1 + ahead);
  return v;
}

std::string draft_plan(SchedulerView view, int64_t draft_rows, const SchedulerLimits& limits = kLimits) {
  view.draft_rows = draft_rows;
  return plan_step(view, limits).to_string();
}

TEST(Scheduler, DraftsComeAfterEveryDecodeAndBeforePrompts) {
  const auto view = view_of({drafting(1, 0, 20, 5), drafting(2, 1, 36, 5), decode(3, 2, 20), prompt(4, 3, 0, 100)}, {});
  EXPECT_EQ(draft_plan(view, 0), "1[19+1] 2[35+1] 3[19+1] 4[0+61]");
  EXPECT_EQ(draft_plan(view, 7), "1[19+1~5] 2[35+1~5] 3[19+1] 4[0+54] drafts 7");
  EXPECT_EQ(draft_plan(view, 100), "1[19+1~5] 2[35+1~5] 3[19+1] 4[0+51] drafts 10");
  // Rows: every decoding sequence has its own before anybody drafts.
  EXPECT_EQ(draft_plan(view, 100, {.max_num_seqs = 8, .max_num_batched_tokens = 6, .page_positions = kPage}),
            "1[19+1~3] 2[35+1~3] 3[19+1] drafts 3");
  EXPECT_EQ(draft_plan(view, 100, {.max_num_seqs = 8, .max_num_batched_tokens = 3, .page_positions = kPage}),
            "1[19+1] 2[35+1] 3[19+1]");
}

TEST(Scheduler, DraftsTakePagesThatNobodyElseNeeds) {
  // Positions 30 (its own row), 31 and on: drafts 2 and more lie on a new page.
  const auto at_the_edge = [](int64_t pages) { return view_of({drafting(1, 0, 31, 5)}, {}, pages); };
  auto view = at_the_edge(1);
  view.draft_rows = 5;
  StepPlan p = plan_step(view, kLimits);
  EXPECT_EQ(p.to_string(), "1[30+1~5] drafts 5");
  EXPECT_EQ(p.rows[0].pages, 3);
  view = at_the_edge(0);
  view.draft_rows = 5;
  p = plan_step(view, kLimits);
  EXPECT_EQ(p.to_string(), "1[30+1~1] drafts 1");
  EXPECT_EQ(p.rows[0].pages, 2);
  // Nobody gives anything up for a draft.
  EXPECT_EQ(draft_plan(view_of({drafting(1, 0, 32, 5), drafting(2, 9, 40, 0)}, {}, 0), 5), "1[31+1] 2[39+1]");
  // When pages run out, nobody drafts.
  EXPECT_EQ(draft_plan(view_of({drafting(1, 0, 33, 5), drafting(2, 9, 40, 5)}, {}, 0), 10), "preempt 2; 1[32+1]");
}

// A step in flight may have accepted drafts: pages reach as far as it can have come.
TEST(Scheduler, PagesForWhatMayHaveBeenAccepted) {
  RunningView s = drafting(1, 0, 28, 5, 5);  // at 27 at least, at 32 at most; then its row, then 5 drafts
  s.pages = 2;
  auto view = view_of({s}, {}, 10);
  view.draft_rows = 5;
  StepPlan p = plan_step(view, kLimits);
  EXPECT_EQ(p.to_string(), "1[27+1~5] drafts 5");
  EXPECT_EQ(p.rows[0].pages, 3);
  // But never beyond the end of the answer.
  s.limit = 32;
  view = view_of({s}, {}, 10);
  view.draft_rows = 5;
  p = plan_step(view, kLimits);
  EXPECT_EQ(p.to_string(), "1[27+1~4] drafts 4");
  EXPECT_EQ(p.rows[0].pages, 2);
  s.limit = 28;
  EXPECT_EQ(draft_plan(view_of({s}, {}, 10), 5), "1[27+1]");
}

}  // namespace
}  // namespace deepinfer
