#pragma once

// One answer on its way through the engine. Its state is a type that holds exactly what it owns, so that whatever happens to a
// request, destroying the state gives everything back.

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/prefix_key.h"
#include "deepinfer/output.h"
#include "engine/replay_plan.h"
#include "engine/request_stream.h"
#include "engine/scheduler.h"
#include "engine/step.h"
#include "engine/text_output.h"

namespace deepinfer {

/// What the choices of one request share.
struct ActiveRequest {
  RequestId id = 0;
  Request request;
  std::shared_ptr<RequestStream> stream;
  ReplayMode mode = ReplayMode::kExact;
  CacheClass cache_class = CacheClass::kChat;
  ServiceTime due = 0;
  double submitted = 0;            ///< on the engine's clock
  std::optional<double> deadline;  ///< on the engine's clock
  int64_t max_tokens = 0;
  /// Of request.structured_output, once it is compiled.
  std::shared_ptr<const CompiledForm> form;
  std::vector<PrefixKey> prompt_keys;  ///< of the prompt's full pages; see EngineCore::hash_prompt
  Usage usage;
  std::vector<SequenceId> sequences;  ///< choices that have begun and not finished
  int64_t open = 0;                   ///< choices that have not finished
  /// For timelines, if there are any.
  struct Trace {
    int64_t mark = 0;                                        ///< where the phase under way began, telemetry::now_ns
    bool loading = false;                                    ///< it waits for pages on their way
    bool started = false, drawn = false, published = false;  ///< its first step, its first token's draw, that token
  } trace;
};

struct Sequence {
  /// Its form is being compiled: owns nothing and has no place in the queue.
  struct Preparing {};
  /// Its prompt is looked for in the tiers: owns nothing and has no place in the queue.
  struct Matching {};
  /// Waits for its first turn: owns nothing.
  struct Waiting {};
  /// Waits for another turn. Holds the pages of its prefix hit, because bounded results depend on them.
  struct Preempted {
    std::optional<PageTable> hit;
  };
  /// Has a place on the device.
  struct Running {
    PageTable pages;
    int32_t place = -1;
    int64_t scheduled = 0;           ///< positions below it have run or are about to, whatever becomes of drafts
    int64_t ahead = 0;               ///< drafts of the commands in flight: so many positions more may have run
    bool begun = false;              ///< the device's state is this sequence's
    int64_t appended = 0;            ///< pages that the device's state knows
    int64_t reserved = 0;            ///< further places kept for the other choices
    int32_t in_flight = 0;           ///< commands that read the pages
    int32_t drawing = 0;             ///< of these, commands that draw a token
    std::shared_ptr<TierPull> pull;  ///< of some of the pages, until it is known to have succeeded
    int64_t prompt_end = 0;          ///< the first row that draws is the one before this position
  };
  /// Finished or preempted while a command that reads its pages runs.
  struct Leaving {
    Running last;
    bool preempted = false;
  };
  using State = std::variant<Waiting, Preparing, Matching, Preempted, Running, Leaving>;

  SequenceId id = 0;
  int64_t choice = 0;
  std::shared_ptr<ActiveRequest> request;
  State state;
  std::vector<int32_t> tokens;  ///< prompt and answer as far as the host knows it
  int64_t prompt_tokens = 0;
  std::vector<PrefixKey> keys;  ///< of the full pages of `tokens`
  std::optional<ReplayPlan> replay;
  std::shared_ptr<const CachedWindow> window;
  std::shared_ptr<DeviceSequence> device;
  std::optional<TextOutput> text;
  std::optional<TierHit> tier_hit;  ///< until it has been pulled, or has failed
  bool admitted = false;            ///< once, at least
  bool hit_counted = false;         ///< what it found in caches is in its request's usage: known from then on
  bool finished = false;
  std::vector<PositionLogprobs> prompt_logprobs;  ///< until all are there
  int64_t prompt_logprobs_given = 0;              ///< entries so far; a prompt that was preempted runs twice

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t generated() const { return length() - prompt_tokens; }
};

}  // namespace deepinfer
