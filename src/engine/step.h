#pragma once

// What passes between the engine and the device: one command a step, one result.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "deepinfer/logprobs.h"
#include "deepinfer/status.h"
#include "engine/draft_policy.h"
#include "engine/output_constraint.h"
#include "engine/replay_plan.h"
#include "engine/tier_pull.h"
#include "model/window_snapshot.h"
#include "sampling/sampler.h"

namespace deepinfer {

/// The row's token is the one that the sequence's sampler drew last: it may not have reached the host yet.
inline constexpr int32_t kLastSampled = -1;

/// Where an answer ends whatever its text is: the tokens and the length of spec/sampling §2.5.
struct AnswerEnd {
  int32_t eos = -1;  ///< -1: no token is
  std::vector<int32_t> stop_tokens;
  int64_t position = std::numeric_limits<int64_t>::max();  ///< no token is drawn for this position or a later one

  bool at_token(int32_t token) const {
    return token == eos || std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end();
  }
};

/// What the device keeps of an answer from step to step, beside its state. While a command names it the device alone uses it.
struct DeviceSequence {
  DeviceSequence(SamplingParams params, int64_t vocab_size, AnswerEnd answer_end)
      : sampler(std::move(params), vocab_size), end(std::move(answer_end)) {}
  Sampler sampler;
  AnswerEnd end;
  std::optional<OutputConstraint> constraint;  ///< none: the answer is free
  int32_t last = 0;                            ///< the token drawn last
  DraftRest draft_rest;
  bool ended = false;  ///< by `end`: rows that were planned before the host knew are left out
};

/// A window snapshot with what a request has to know before it uses it.
struct CachedWindow {
  WindowSnapshot window;
  bool encoder_exact = false;
  bool decoder_exact = false;
};

/// A draw from the logits of a sequence's last row.
struct StepDraw {
  uint64_t sequence = 0;
  DeviceSequence* device = nullptr;
  int64_t logprobs = -1;  ///< -1: none, 0: of the token, k: and of the k best
};

/// A second answer that starts where the rows of this step end.
struct StepFork {
  uint64_t sequence = 0;
  int32_t place = 0;
  int64_t first_page = 0, page_count = 0;  ///< in StepCommand::pages: all pages of the new sequence
  const uint8_t* copy_from = nullptr;      ///< the last page starts as a copy of this one; nullptr: all are shared
};

/// The rows of one sequence.
struct StepRows {
  uint64_t sequence = 0;
  int32_t place = 0;                           ///< which state
  bool begin = false;                          ///< the state is somebody else's until now
  ReplayPlan replay;                           ///< when it begins
  std::shared_ptr<const CachedWindow> window;  ///< when it begins and is restored
  int64_t prefix_first = 0, prefix_count = 0;  ///< in StepCommand::prefixes: the tokens below replay.hit
  /// Positions. Of a sequence whose earlier step may have accepted drafts, `first` is the least that it can be: the device knows.
  int64_t first = 0, count = 0;
  int64_t drafts = 0;                      ///< at most so many drafts are verified behind the rows
  int64_t first_page = 0, page_count = 0;  ///< in StepCommand::pages: appended to the state's
  int64_t first_draw = 0, draw_count = 0;  ///< in StepCommand::draws
  int64_t first_fork = 0, fork_count = 0;  ///< in StepCommand::forks
  DeviceSequence* device = nullptr;        ///< whose last token kLastSampled means
  int64_t prompt_logprobs = -1;            ///< as StepDraw::logprobs, for the token after each row
  int32_t next_token = -1;                 ///< the token after the last row, where prompt log-probs need it
  int64_t save_at = -1;                    ///< a window snapshot at this position, if not -1 and if the rows come by it
  std::shared_ptr<TierPull> pull;          ///< pages that may still be on their way; see StepResult::lost
  int64_t context_from = 0;                ///< draft rings want the rows from this position on
};

struct StepCommand {
  int64_t number = 0;
  bool after_idle = false;      ///< the device had nothing to do before: its idleness is not ours
  int64_t draft_rows = 0;       ///< drafts to verify at most, all sequences together
  std::vector<int32_t> tokens;  ///< rows of all sequences, one after the other
  std::vector<StepRows> rows;
  std::vector<StepDraw> draws;
  std::vector<StepFork> forks;
  std::vector<int32_t> prefixes;
  std::vector<uint8_t*> pages;

  void clear() {
    draft_rows = 0;
    tokens.clear();
    rows.clear();
    draws.clear();
    forks.clear();
    prefixes.clear();
    pages.clear();
  }
};

/// What came of a draw: one token, and one more for each draft that turned out to be the one before it.
struct DrawResult {
  int64_t first = 0;           ///< in StepResult::tokens
  int64_t count = 0;           ///< 0: the answer had ended before
  int64_t first_logprobs = 0;  ///< in StepResult::logprobs, `count` of them if the draw asked
  int64_t drafted = 0;         ///< drafts that were verified; count - 1 were accepted
};

/// A step that waited for pages on their way.
struct PullWait {
  int64_t rows = 0;           ///< in StepCommand::rows
  int64_t group = 0;          ///< of the pages
  double begin = 0, end = 0;  ///< device clock, seconds
};

struct StepResult {
  Status status;                           ///< of the whole step; on error nothing else is set
  std::vector<DrawResult> draws;           ///< one per draw
  std::vector<int32_t> tokens;             ///< some of them nobody's
  std::vector<PositionLogprobs> logprobs;  ///< of draws that asked
  std::vector<int64_t> ends;               ///< one per StepRows: the length that the sequence has now
  /// One per StepRows, or empty if no row had a pull: 1 where its pull failed. Nothing was drawn there, and the rows mean
  /// nothing.
  std::vector<uint8_t> lost;
  std::vector<PositionLogprobs> prompt_logprobs;  ///< of all rows that asked, in order
  std::vector<std::shared_ptr<CachedWindow>>
      windows;  ///< one per StepRows with save_at, in order, or nullptr; exactness is the engine's to say
  int64_t row_layers = 0;
  int64_t rows = 0;                     ///< that ran, drafts included
  int64_t draft_rows = 0;               ///< drafts that are worth planning for a step like this one
  double begin = 0, end = 0;            ///< device clock, seconds
  bool over = true;                     ///< false: at `end` the device may still have run it, as nothing of it was read back
  double drafted = 0, forward_end = 0;  ///< between them: drafts are there, logits are there; 0: not told
  StepTimes masks;                      ///< one per draw of a constrained answer
  double mask_wait = 0;                 ///< seconds that draws waited for masks after the forward pass
  std::vector<PullWait> pull_waits;     ///< one per StepRows with a pull and group of its pages that the step came to

  void clear() {
    status = Status::Ok();
    draws.clear();
    tokens.clear();
    logprobs.clear();
    ends.clear();
    lost.clear();
    prompt_logprobs.clear();
    windows.clear();
    row_layers = 0;
    rows = 0;
    draft_rows = 0;
    over = true;
    drafted = forward_end = 0;
    masks = {};
    mask_wait = 0;
    pull_waits.clear();
  }
};

/// Runs commands one after the other, in a thread or on a device of its own.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Queues a command; returns at once. Both objects stay as they are until `wait` has returned for them.
  virtual void submit(const StepCommand& command, StepResult& result) = 0;
  /// Waits for the oldest command that has not been waited for.
  virtual void wait() = 0;
};

}  // namespace deepinfer
