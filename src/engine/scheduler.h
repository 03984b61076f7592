#pragma once

// The scheduler: a pure function from what there is to what the next step does. No clock, thread, device or cache inside, so a
// decision can be printed, tested and replayed.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace deepinfer {

/// One choice of one request.
using SequenceId = uint64_t;

struct SchedulerLimits {
  int64_t max_num_seqs = 0;            ///< sequences that hold a state
  int64_t max_num_batched_tokens = 0;  ///< rows of a step
  int64_t page_positions = 128;
};

/// Order of service: the time by which a sequence should have been served had it no company. It never changes while a sequence
/// waits, and later submissions get later times, so nobody waits for ever.
using ServiceTime = double;

/// A sequence that holds a state and pages.
struct RunningView {
  SequenceId id = 0;
  ServiceTime due = 0;
  int64_t scheduled = 0;   ///< positions below it have run or are in the step that runs now
  int64_t runnable = 0;    ///< positions below it can be run next
  int64_t prompt_end = 0;  ///< positions to run before the first token of its own comes out; a resumed answer counts as prompt
  int64_t pages = 0;       ///< held
  int64_t releasable = 0;  ///< pages that preempting it would make available
  int64_t row_limit = std::numeric_limits<int64_t>::max();  ///< rows a step at most
  int64_t extra_pages = 0;  ///< pages needed beside its own in the step that ends its prompt (forks)
  bool in_flight = false;   ///< part of the step that runs now: its pages come free only after it
  // Speculative decoding. Of a step that runs, only what it runs at least is known: `scheduled` counts one row for each.
  int64_t ahead = 0;   ///< rows that the step that runs now may add to `scheduled`: drafts that it may accept
  int64_t drafts = 0;  ///< drafts that it would like to have verified behind its own row
  int64_t limit = std::numeric_limits<int64_t>::max();  ///< positions from here on are never run
};

/// A sequence that waits for a place, the first ones in order.
struct WaitingView {
  SequenceId id = 0;
  ServiceTime due = 0;
  int64_t from = 0;  ///< first position to run
  int64_t runnable = 0;
  int64_t prompt_end = 0;
  int64_t hit_pages = 0;      ///< pages it brings along or gets from the cache
  int64_t hit_evictable = 0;  ///< of these, counted as available until it is admitted
  int64_t pull_pages = 0;     ///< pages that it needs at once, to be filled from the tiers: it is admitted without rows
  int64_t row_limit = std::numeric_limits<int64_t>::max();
  int64_t places = 1;  ///< states it will need: the number of choices
  int64_t extra_pages = 0;
};

struct SchedulerView {
  std::vector<RunningView> running;  ///< any order
  std::vector<WaitingView> waiting;  ///< by due
  int64_t available_pages = 0;       ///< free, or held by the cache alone
  int64_t free_places = 0;
  int64_t draft_rows = 0;  ///< drafts that are worth verifying in the next step, all sequences together
};

struct PlannedRows {
  SequenceId id = 0;
  int64_t first = 0;  ///< position
  int64_t count = 0;
  int64_t pages = 0;  ///< to be held when the step begins
  bool admitted = false;
  int64_t drafts = 0;  ///< rows that may follow: the device drafts, and chooses how many it verifies
  friend bool operator==(const PlannedRows&, const PlannedRows&) = default;
};

/// What the next step does, in the order in which it has to be applied: preempt, then rows.
struct StepPlan {
  std::vector<SequenceId> preempt;
  std::vector<PlannedRows> rows;  ///< decoding sequences, then prompts, then newly admitted ones
  int64_t starved = 0;            ///< sequences that could not go on for want of pages
  int64_t draft_rows = 0;         ///< the device's budget of drafts, all sequences together

  int64_t row_count() const;  ///< without drafts
  /// For people and for comparing runs: "preempt 7; 3[17+1] 4[64+128] +9[0+371]", "3[17+1~5] 4[40+1~5] drafts 6".
  std::string to_string() const;
  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

/// Decodes first, then their drafts as far as rows and pages are there without anybody giving any up, then prompts under way in
/// the order of service, then newcomers as long as rows, places and pages last. When pages run out, the running sequence that is
/// due last of those without rows in this step gives its pages up. A newcomer is admitted when everything it is known to need
/// fits beside what the running prompts still need, and never past one that waits longer.
StepPlan plan_step(const SchedulerView& view, const SchedulerLimits& limits);

/// The same into an existing plan, whose memory is used again.
void plan_step(const SchedulerView& view, const SchedulerLimits& limits, StepPlan& plan);

}  // namespace deepinfer
