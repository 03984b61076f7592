#pragma once

// An engine core over the nano model, driven turn by turn on a clock of the test's own.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "engine/loaded_model.h"
#include "engine/model_executor.h"
#include "engine/request_check.h"

namespace deepinfer::testing {

/// The nano model with `threads` threads, loaded once for each number of threads; on the backend that DEEPINFER_TEST_BACKEND
/// names (testing/named_backend.h), the CPU's without.
LoadedModel& nano_model(int threads = 2);

/// Allocations of device memory so far; -1 where the backend's memory is the host's.
int64_t device_allocations();

/// A form for nano's vocabulary; compiled ones are kept.
FormResult nano_form(const StructuredOutput& output);

struct CoreSetup {
  int64_t pages = 256;
  int64_t max_num_seqs = 16;
  int64_t max_num_batched_tokens = 256;
  bool async = true;
  bool caching = true;
  int64_t snapshot_bytes = int64_t{64} << 20;
  ReplayMode replay = ReplayMode::kExact;
  DecoderReplay decoder = DecoderReplay::kCompact;
  int64_t keep = 0;  ///< 0: window + 2 x (draft block + 1)
  int threads = 2;
  SpeculationMode speculation = SpeculationMode::kOff;
  int64_t drafts = -1;  ///< most of a step; -1: the checkpoint's block
  ModelExecutor::ReplaceDrafts replace_drafts;
  KvTiers* tiers = nullptr;  ///< calls back from `match` itself
  int64_t staged_pages = 8;  ///< pinned memory each way, where pages are a device's
  bool cut_over = false;     ///< pulls only what is worth it
  PrefillCost prefill;       ///< what computing is said to take
};

/// What came of one choice.
struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<PositionLogprobs> logprobs;
  std::vector<PositionLogprobs> prompt_logprobs;
  std::optional<FinishReason> finish;
  std::variant<std::monostate, int32_t, std::string> stop_reason;
  Status error;
  Usage usage;
};

class CoreHarness {
 public:
  explicit CoreHarness(const CoreSetup& setup = {}, Executor* executor = nullptr);
  ~CoreHarness();

  /// Queues a request that must be valid.
  RequestId submit(Request request);
  Result<RequestId> try_submit(Request request);
  /// One turn; collects outputs and checks every invariant.
  void turn();
  void run();  ///< until nothing is left
  /// Answers of the choices of a request, so far.
  std::vector<Answer>& answers(RequestId id) { return answers_.at(id); }
  bool finished(RequestId id) const;

  EngineCore& core() { return *core_; }
  KvCache& cache() { return *cache_; }
  WindowSnapshotPool<CachedWindow>& windows() { return windows_; }
  double now = 0;
  double seconds_per_turn = 0.01;
  /// Every plan that was made, printed.
  std::vector<std::string> plans;
  bool keep_plans = false;
  /// Forms of structured outputs are left to the test, which calls `core().prepared`.
  bool hold_forms = false;

 private:
  void collect();
  void take_matches();

  CoreSetup setup_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<KvTiers> device_tiers_;  ///< the setup's, for a device's pages
  WindowSnapshotPool<CachedWindow> windows_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<EngineCore> core_;
  RequestLimits limits_;
  RequestId next_id_ = 1;
  std::vector<std::pair<RequestId, KvTierMatch>> matches_;
  std::map<RequestId, RequestHandle> handles_;
  std::map<RequestId, std::vector<Answer>> answers_;
};

/// Random ids of ordinary tokens.
std::vector<int32_t> random_prompt(int64_t length, uint64_t seed);
/// A request for `max_tokens` random tokens with log-probs to compare by.
Request make_request(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed);
/// The answers to the request when it has an engine for itself, nothing cached, one big prefill. No other harness may have a step
/// in flight: they share the model.
std::vector<Answer> run_alone(const Request& request, const CoreSetup& like = {});

/// Tokens, text, log-probs and finish, bit for bit.
void expect_same(const Answer& got, const Answer& want, const std::string& what);
/// The same as far as `got` went.
void expect_prefix(const Answer& got, const Answer& want, const std::string& what);

}  // namespace deepinfer::testing
