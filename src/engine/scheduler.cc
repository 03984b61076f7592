#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer {
namespace {

int64_t pages_for(int64_t positions, const SchedulerLimits& limits) {
  return (positions + limits.page_positions - 1) / limits.page_positions;
}

/// Rows that a sequence runs next, if pages allow.
int64_t chunk(int64_t scheduled, int64_t runnable, int64_t row_limit, int64_t budget) {
  return std::min({runnable - scheduled, row_limit, budget});
}

class Planner {
 public:
  Planner(const SchedulerView& view, const SchedulerLimits& limits, StepPlan& plan)
      : view_(view),
        limits_(limits),
        plan_(plan),
        budget_(limits.max_num_batched_tokens),
        available_(view.available_pages),
        gone_(view.running.size(), 0) {
    plan_.preempt.clear();
    plan_.rows.clear();
    plan_.starved = 0;
    plan_.draft_rows = 0;
    order_.resize(view.running.size());
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      const RunningView &x = view.running[a], &y = view.running[b];
      return x.due < y.due || (x.due == y.due && x.id < y.id);
    });
  }

  void run() {
    for (const size_t i : order_) {
      const RunningView& s = view_.running[i];
      if (s.scheduled >= s.prompt_end) extend(i);
    }
    if (view_.draft_rows > 0 && plan_.preempt.empty() && plan_.starved == 0) offer_drafts();
    for (const size_t i : order_) {
      const RunningView& s = view_.running[i];
      if (s.scheduled < s.prompt_end) extend(i);
    }
    // Pages were short: newcomers would only make it worse.
    if (plan_.preempt.empty() && plan_.starved == 0) admit();
  }

 private:
  void extend(size_t i) {
    const RunningView& s = view_.running[i];
    if (gone_[i] != 0 || budget_ <= 0) return;
    const int64_t count = chunk(s.scheduled, s.runnable, s.row_limit, budget_);
    if (count <= 0) return;
    const int64_t end = s.scheduled + count;
    const int64_t extra = s.scheduled < s.prompt_end && end >= s.prompt_end ? s.extra_pages : 0;
    const int64_t pages = std::max(s.pages, pages_for(std::min(end + s.ahead, std::max(end, s.limit)), limits_));
    const int64_t need = pages - s.pages + extra;
    if (!make_room(i, need)) {
      if (gone_[i] == 0) ++plan_.starved;
      return;
    }
    available_ -= need;
    budget_ -= count;
    gone_[i] = 2;
    plan_.rows.push_back({.id = s.id, .first = s.scheduled, .count = count, .pages = pages, .admitted = false});
    planned_.push_back(i);
  }

  /// Every row of the plan is a decoding sequence's own so far.
  void offer_drafts() {
    int64_t wanted = 0;
    for (size_t r = 0; r < plan_.rows.size() && budget_ > 0; ++r) {
      const RunningView& s = view_.running[planned_[r]];
      PlannedRows& rows = plan_.rows[r];
      const int64_t end = rows.first + rows.count;
      int64_t drafts = std::min({s.drafts, s.limit - end, budget_});
      if (drafts <= 0) continue;
      // The last of them may need a page more.
      const int64_t reach = std::min(end + s.ahead, s.limit);
      const int64_t extra = std::max<int64_t>(0, pages_for(std::min(reach + drafts, s.limit), limits_) - rows.pages);
      if (extra > available_) {
        drafts = std::min(drafts, rows.pages * limits_.page_positions - reach);
        if (drafts <= 0) continue;
      } else {
        available_ -= extra;
        rows.pages += extra;
      }
      rows.drafts = drafts;
      wanted += drafts;
    }
    plan_.draft_rows = std::min({wanted, view_.draft_rows, budget_});
    budget_ -= plan_.draft_rows;
  }

  /// Takes pages from those due last until `need` are available. What a step that still runs reads comes free only later.
  bool make_room(size_t i, int64_t need) {
    while (available_ < need) {
      size_t victim = order_.size();
      while (victim > 0 && gone_[order_[victim - 1]] != 0) --victim;
      if (victim == 0) return false;
      const size_t v = order_[victim - 1];
      if (later_ + available_ >= need) return false;  // enough is on its way
      const RunningView& s = view_.running[v];
      // The last one standing keeps what it has: with nothing to wait for, giving up would not help it.
      if (v == i && plan_.rows.empty()) return false;
      gone_[v] = 1;
      plan_.preempt.push_back(s.id);
      (s.in_flight ? later_ : available_) += s.releasable;
      if (v == i) return false;
    }
    return true;
  }

  void admit() {
    int64_t places = view_.free_places;
    // What running prompts will still ask for is spoken for.
    int64_t spoken_for = 0;
    for (size_t i = 0; i < view_.running.size(); ++i) {
      const RunningView& s = view_.running[i];
      if (s.scheduled >= s.prompt_end) continue;
      spoken_for += std::max<int64_t>(0, pages_for(s.prompt_end, limits_) - s.pages) + s.extra_pages;
      if (gone_[i] == 2) {
        for (const PlannedRows& rows : plan_.rows) {
          if (rows.id != s.id) continue;
          spoken_for -= rows.pages - s.pages;
          if (rows.first + rows.count >= s.prompt_end) spoken_for -= s.extra_pages;
        }
      }
    }
    for (const WaitingView& s : view_.waiting) {
      if (budget_ <= 0 || places < s.places) break;
      const int64_t rows = chunk(s.from, s.runnable, s.row_limit, budget_);
      if (rows <= 0) break;
      const int64_t count = s.pull_pages > 0 ? 0 : rows;
      const int64_t whole = std::max(s.hit_pages, pages_for(s.prompt_end, limits_)) - s.hit_pages + s.extra_pages;
      if (available_ - s.hit_evictable - spoken_for < whole) break;
      const int64_t end = s.from + count;
      const int64_t pages = s.pull_pages > 0 ? s.hit_pages + s.pull_pages : std::max(s.hit_pages, pages_for(end, limits_));
      const int64_t now = pages - s.hit_pages + (count > 0 && end >= s.prompt_end ? s.extra_pages : 0);
      available_ -= s.hit_evictable + now;
      spoken_for += whole - now;
      budget_ -= count;
      places -= s.places;
      plan_.rows.push_back({.id = s.id, .first = s.from, .count = count, .pages = pages, .admitted = true});
    }
  }

  const SchedulerView& view_;
  const SchedulerLimits& limits_;
  StepPlan& plan_;
  int64_t budget_;
  int64_t available_;
  int64_t later_ = 0;            ///< pages that come free when the step that runs now is over
  std::vector<size_t> order_;    ///< of running, by due
  std::vector<size_t> planned_;  ///< number in the view of each row of the plan, as far as they are running
  std::vector<uint8_t> gone_;    ///< 1: preempted, 2: has its rows
};

}  // namespace

int64_t StepPlan::row_count() const {
  int64_t count = 0;
  for (const PlannedRows& r : rows) count += r.count;
  return count;
}

std::string StepPlan::to_string() const {
  std::string text;
  const auto out = std::back_inserter(text);
  for (size_t i = 0; i < preempt.size(); ++i) fmt::format_to(out, "{}{}", i == 0 ? "preempt " : ",", preempt[i]);
  if (!preempt.empty() && !rows.empty()) text += "; ";
  for (size_t i = 0; i < rows.size(); ++i) {
    const PlannedRows& r = rows[i];
    fmt::format_to(out, "{}{}{}[{}+{}", i == 0 ? "" : " ", r.admitted ? "+" : "", r.id, r.first, r.count);
    if (r.drafts > 0) fmt::format_to(out, "~{}", r.drafts);
    text += ']';
  }
  if (draft_rows > 0) fmt::format_to(out, " drafts {}", draft_rows);
  if (starved > 0) fmt::format_to(out, "{}starved {}", text.empty() ? "" : "; ", starved);
  return text;
}

void plan_step(const SchedulerView& view, const SchedulerLimits& limits, StepPlan& plan) { Planner(view, limits, plan).run(); }

StepPlan plan_step(const SchedulerView& view, const SchedulerLimits& limits) {
  StepPlan plan;
  plan_step(view, limits, plan);
  return plan;
}

}  // namespace deepinfer
