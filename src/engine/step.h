#pragma once

// What passes between the engine and the device: one command a step, one result.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "deepinfer/logprobs.h"
#include "deepinfer/status.h"
#include "engine/output_constraint.h"
#include "engine/replay_plan.h"
#include "model/window_snapshot.h"
#include "sampling/sampler.h"

namespace deepinfer {

/// The row's token is the one that the sequence's sampler drew last: it may not have reached the host yet.
inline constexpr int32_t kLastSampled = -1;

/// What the device keeps of an answer from step to step, beside its state. While a command names it the device alone uses it.
struct DeviceSequence {
  explicit DeviceSequence(SamplingParams params, int64_t vocab_size) : sampler(std::move(params), vocab_size) {}
  Sampler sampler;
  std::optional<OutputConstraint> constraint;  ///< none: the answer is free
  int32_t last = 0;                            ///< the token drawn last
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
  int64_t first = 0, count = 0;                ///< positions
  int64_t first_page = 0, page_count = 0;      ///< in StepCommand::pages: appended to the state's
  int64_t first_draw = 0, draw_count = 0;      ///< in StepCommand::draws
  int64_t first_fork = 0, fork_count = 0;      ///< in StepCommand::forks
  DeviceSequence* device = nullptr;            ///< whose last token kLastSampled means
  int64_t prompt_logprobs = -1;                ///< as StepDraw::logprobs, for the token after each row
  int32_t next_token = -1;                     ///< the token after the last row, where prompt log-probs need it
  int64_t save_at = -1;                        ///< a window snapshot at this position, if not -1
};

struct StepCommand {
  int64_t number = 0;
  bool after_idle = false;      ///< the device had nothing to do before: its idleness is not ours
  std::vector<int32_t> tokens;  ///< rows of all sequences, one after the other
  std::vector<StepRows> rows;
  std::vector<StepDraw> draws;
  std::vector<StepFork> forks;
  std::vector<int32_t> prefixes;
  std::vector<uint8_t*> pages;

  void clear() {
    tokens.clear();
    rows.clear();
    draws.clear();
    forks.clear();
    prefixes.clear();
    pages.clear();
  }
};

struct StepResult {
  Status status;                                  ///< of the whole step; on error nothing else is set
  std::vector<int32_t> tokens;                    ///< one per draw
  std::vector<PositionLogprobs> logprobs;         ///< one per draw that asked, in order
  std::vector<PositionLogprobs> prompt_logprobs;  ///< of all rows that asked, in order
  std::vector<std::shared_ptr<CachedWindow>>
      windows;  ///< one per StepRows with save_at, in order; exactness is the engine's to say
  int64_t row_layers = 0;
  double begin = 0, end = 0;  ///< device clock, seconds
  StepTimes masks;            ///< one per draw of a constrained answer
  double mask_wait = 0;       ///< seconds that draws waited for masks after the forward pass

  void clear() {
    status = Status::Ok();
    tokens.clear();
    logprobs.clear();
    prompt_logprobs.clear();
    windows.clear();
    row_layers = 0;
    masks = {};
    mask_wait = 0;
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
