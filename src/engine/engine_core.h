#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cache/window_snapshots.h"
#include "engine/form_compiler.h"
#include "engine/prefill_cost.h"
#include "engine/sequence.h"
#include "telemetry/trace_recorder.h"

namespace deepinfer {

/// What the core needs to know, every default filled in.
struct CoreOptions {
  SchedulerLimits limits;
  int64_t eos_token_id = 1;
  int64_t vocab_size = 0;
  ReplayGeometry geometry;
  DecoderReplay decoder_replay = DecoderReplay::kCompact;
  int64_t decoder_keep = 0;
  double priority_interval = 10;
  bool async = true;
  bool snapshots = true;
  int64_t max_drafts = 0;                     ///< verified per sequence and step; 0: no speculative decoding
  int64_t max_draft_rows = int64_t{1} << 20;  ///< verified per step: their logits are all kept
  int64_t prompt_logprob_rows = 256;          ///< rows a step of a request that wants prompt log-probs: their logits are all kept
  /// A sequence enters a step as soon as its pull is expected to be over before the step needs it, or (false) only when it is
  /// over.
  bool overlap_pulls = true;
  bool cut_over = true;       ///< pages of a tier are pulled only if that is faster than computing them, as far as is known
  PrefillCost prefill;        ///< what computing takes, to begin with
  bool step_at_once = false;  ///< for tests: enters the next step whatever is expected
  std::string fingerprint;    ///< of model and numerics: pages of another one are never hit
};

/// The life of requests: admission, plans, commands, results, outputs. No thread and no clock of its own; one thread calls it.
///
/// Invariants, checked by `check_invariants`: every sequence is in exactly one state; a place is free or belongs to one Running
/// or Leaving sequence; the pages in use are those of the tables in the states and in `copying_`, and those that the cache holds;
/// `waiting_` has
/// exactly the Waiting and Preempted sequences; a sequence that a command in flight names is Running or Leaving.
class EngineCore {
 public:
  using Clock = double (*)();

  /// All pointers outlive the core. `tokenizer` may be null (no text). `clock` may be null: then times are not measured.
  EngineCore(CoreOptions options, KvCache* cache, WindowSnapshotPool<CachedWindow>* windows, Executor* executor,
             std::shared_ptr<const Tokenizer> tokenizer, PrefixHasher hasher, Clock clock = nullptr);
  /// Waits for the commands in flight; every open request ends as cancelled.
  ~EngineCore();

  /// Prefixes are also looked for in `tiers`, and full pages are kept there. `matched` is called on a thread of theirs, once for
  /// each lookup; what it is given goes to `matched` below. Before the first request; the tiers outlive the core.
  void set_tiers(KvTiers* tiers, std::function<void(RequestId, KvTierMatch)> matched);
  /// What the tiers have of a request's prompt. No harm if the request has gone.
  void matched(RequestId id, KvTierMatch match);
  /// Nothing can be done before pages arrive from the tiers, or have been copied to them: `turn` is worth another try in a
  /// millisecond.
  bool waits_for_pulls() const;

  /// Fills in the request's prompt_keys: for a long prompt milliseconds of hashing, which the submitting thread can do. Any
  /// thread may call it.
  void hash_prompt(ActiveRequest& request) const;
  /// A request that has been checked. `now`: seconds on a clock that never goes back; it orders requests and ends them. One
  /// with a structured output and without its form waits for `prepared`; its place in the order is that of its submission.
  void submit(std::shared_ptr<ActiveRequest> request, double now);
  /// The form of a request has been compiled; an error ends it. No harm if the request has gone.
  void prepared(RequestId id, FormResult form);
  /// Ends every open choice of a request. False: there is no such request (any more).
  bool end(RequestId id, FinishReason reason);
  void end_all(FinishReason reason);
  /// Plans and submits the next step if there is room, and takes in the oldest result if there is nothing else to do. Call it
  /// while `busy`.
  void turn(double now);
  /// Gives the pages of the sequence up, as if others needed them. For tests: false if it has no place or is leaving.
  bool preempt(SequenceId id);

  /// Something can be done now.
  bool busy() const {
    return static_cast<int64_t>(sequences_.size()) > preparing_ + matching_ || !in_flight_.empty() || !copying_.empty();
  }
  /// Some request has not ended, it may be one that waits for its form; or pages are still copied.
  bool open() const { return !sequences_.empty() || !in_flight_.empty() || !copying_.empty(); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()) + preparing_ + matching_; }
  /// When the next deadline passes, on the clock of `now`.
  std::optional<double> next_deadline() const;
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  std::vector<SequenceId> running_ids() const;
  /// Counters of the core's own; the caller adds what it knows.
  EngineStats stats() const;
  /// Called before outputs are pushed to their streams, when the counters have all of them: who has read an output and asks for
  /// counters is to find it counted.
  void set_counted(std::function<void()> counted) { counted_ = std::move(counted); }
  /// What happens is told to it from now on; null: nobody. It outlives the core.
  void set_trace(telemetry::TraceRecorder* trace) { trace_ = trace; }
  const StepPlan& last_plan() const { return plan_; }
  void check_invariants() const;

 private:
  struct Admission {
    Sequence* sequence = nullptr;
    int64_t hit_pages = 0;
    int64_t hit_evictable = 0;  ///< of these, available to others until they are adopted
    ReplayPlan replay;
    CacheMiss miss = CacheMiss::kNone;
    std::shared_ptr<const CachedWindow> window;
    bool refused = false;    ///< the tiers have pages, and computing them is faster
    double worth = 0;        ///< seconds that the pages of the tiers save; 0: unknown
    int64_t tier_pages = 0;  ///< behind the hit in the device's index; the replay's hit counts both
  };
  /// What a sequence runs.
  struct Work {
    int64_t rows = 0;        ///< of the encoder
    int64_t row_layers = 0;  ///< of both parts
  };
  struct InFlight {
    StepCommand command;
    StepResult result;
  };
  /// Pages that the tiers copy from where they lie, up to this number of theirs: nobody may get them before.
  struct Copying {
    PageTable pages;
    int64_t number = 0;
  };
  /// Steps from one that began when the device was done with those before it.
  struct Measured {
    double begin = 0, waited = 0;
    int64_t steps = 0, rows = 0, row_layers = 0;
  };

  // engine_core.cc: planning
  bool plan_and_submit(double now);
  void build_view(double now);
  void apply_preemptions();
  bool apply_rows(const PlannedRows& rows, StepCommand& command, double now);
  bool prepare_forks(Sequence& sequence, std::vector<Sequence*>& forks, double now);
  void write_rows(Sequence& sequence, const PlannedRows& rows, const std::vector<Sequence*>& forks, StepCommand& command,
                  double now);
  void reclaim(double now);
  void extend_keys(const ActiveRequest& request, std::span<const int32_t> tokens, std::vector<PrefixKey>& keys) const;

  // engine_admission.cc: newcomers
  WaitingView consider(Sequence& sequence, double now);
  Admission match(const Sequence& sequence, double now);
  void plan_rows(const Sequence& sequence, const ReplayInput& input, Admission& admission, double now);
  bool begin(Sequence& sequence, double now);
  void count_hit(Sequence& sequence, int64_t cached_tokens, int64_t device_tokens);
  std::shared_ptr<DeviceSequence> new_device_sequence(const Sequence& sequence) const;

  // engine_tiers.cc: prefixes from below the device
  bool start_match(Sequence& sequence);
  void add_tier_hit(const Sequence& sequence, const PrefixMatch& found, Admission& admission, ReplayInput& input,
                    double now) const;
  KvTierMatch rest_of(const TierHit& hit, int64_t first_page) const;
  Work work_of(const Sequence& sequence, const ReplayInput& input, double now) const;
  double seconds_saved(const Work& alone, const Work& with_hit) const;
  void refuse_pull(Sequence& sequence);
  void learn_speed(const StepCommand& command, const StepResult& result);
  bool start_pull(const Sequence& sequence, const Admission& admission, Sequence::Running& running, double now);
  bool pull_is_near(const Sequence::Running& running, double now) const;
  void accept_pull(Sequence& sequence, double now);
  void count_pull(Sequence& sequence, const TierPull& pull);
  void take_back(Sequence& sequence, double now);
  void settle_pulls();
  void write_back(const Sequence& sequence, const PageTable& pages, int64_t first, int64_t end);
  void release_copied();

  // engine_results.cc: results
  void commit(double now);
  static Sequence::Running& running_part(Sequence& sequence);
  void take_prompt_logprobs(Sequence& sequence, int64_t first, std::span<PositionLogprobs> logprobs);
  void take_draw(const StepDraw& draw, const DrawResult& drawn, StepResult& result);
  void take_token(Sequence& sequence, int32_t token, PositionLogprobs* logprobs);
  void publish_pages(Sequence& sequence, int64_t computed, double now);
  void keep_window(const Sequence& sequence, int64_t position, std::shared_ptr<CachedWindow> window, double now);
  void finish(Sequence& sequence, FinishReason reason, Output output);
  void leave(Sequence& sequence, bool preempted);
  void settle(SequenceId id);
  void erase(Sequence& sequence);
  void fail_command(const StepCommand& command, const Status& status);
  /// Leaves an output for `deliver`.
  void push(const ActiveRequest& request, Output output) { outputs_.emplace_back(request.stream, std::move(output)); }
  /// Pushes what was left to the streams. Whatever makes outputs ends with it.
  void deliver();
  Output start_output(const Sequence& sequence) const;

  // engine_timeline.cc: only with `trace_`
  void trace_phase(ActiveRequest& request, telemetry::Phase phase, int64_t end);
  void trace_match(const Sequence& sequence, const Admission& found, int64_t begin);
  void trace_lookup(const Sequence& sequence, const KvTierMatch& match);
  void trace_admitted(ActiveRequest& request, bool pulls);
  void trace_pull(const Sequence& sequence, const TierPull& pull);
  void trace_command(const StepCommand& command);
  void trace_plan(int64_t step);
  void trace_device(const StepCommand& command, const StepResult& result);
  void trace_rows(const Sequence& sequence, const StepRows& rows, const StepResult& result, int64_t begin, int64_t forward,
                  int64_t end);
  void trace_publish(const StepCommand& command, const StepResult& result, double begin);
  void trace_token(ActiveRequest& request);
  void trace_preempted(const Sequence& sequence);
  void trace_finished(const ActiveRequest& request, FinishReason reason);

  Sequence& at(SequenceId id) { return *sequences_.at(id); }
  double measure() const { return clock_ != nullptr ? clock_() : 0; }

  CoreOptions options_;
  KvCache* cache_;
  WindowSnapshotPool<CachedWindow>* windows_;
  Executor* executor_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  PrefixHasher hasher_;
  Clock clock_;
  telemetry::TraceRecorder* trace_ = nullptr;
  int64_t trace_plan_begin_ = 0, trace_sequences_ = 0;
  std::vector<RequestId> trace_starting_;  ///< admitted by the plan under way

  boost::unordered_flat_map<RequestId, std::shared_ptr<ActiveRequest>> requests_;
  boost::unordered_flat_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::set<std::pair<ServiceTime, SequenceId>> waiting_;
  std::vector<Sequence*> running_;  ///< in the order of admission
  std::set<std::pair<double, RequestId>> deadlines_;
  std::vector<int32_t> free_places_;
  int64_t reserved_places_ = 0;
  int64_t preparing_ = 0;  ///< sequences in that state
  int64_t matching_ = 0;   ///< likewise
  SequenceId next_sequence_ = 1;

  KvTiers* tiers_ = nullptr;
  std::function<void(RequestId, KvTierMatch)> matched_;
  std::vector<SequenceId> pulling_;                     ///< that leave, and wait for their pull to end
  double pull_bytes_per_second_ = 0, row_seconds_ = 0;  ///< measured; 0: not yet
  double row_layer_seconds_ = 0;                        ///< the same, of steps with many rows
  PrefillCost prefill_;                                 ///< follows what steps with many rows take
  Measured measured_;                                   ///< until the device is known to be done with them
  std::deque<Copying> copying_;                         ///< in the order of their numbers
  bool idle_ = false;                                   ///< the last turn found nothing to do

  SchedulerView view_;
  StepPlan plan_;
  std::vector<Admission> admissions_;  ///< one per waiting entry of the view
  std::deque<std::unique_ptr<InFlight>> in_flight_;
  std::vector<std::unique_ptr<InFlight>> spare_;
  std::vector<Sequence*> forks_;  ///< scratch
  bool device_was_idle_ = true;
  int64_t stuck_turns_ = 0;
  int64_t draft_rows_ = 0;  ///< what the device last found worth planning
  double device_end_ = 0;
  std::vector<std::pair<std::shared_ptr<RequestStream>, Output>> outputs_;  ///< not delivered yet
  std::function<void()> counted_;
  EngineStats stats_;
};

}  // namespace deepinfer
