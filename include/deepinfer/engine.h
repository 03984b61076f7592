#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/kv_tiers_stats.h"
#include "deepinfer/options.h"
#include "deepinfer/output.h"
#include "deepinfer/request.h"
#include "deepinfer/revisit_intervals.h"
#include "deepinfer/status.h"

namespace deepinfer {

class RequestStream;
class Tokenizer;

/// What `submit` returns: the stream of outputs of one request. Any thread may use it; copies share the stream. The request
/// goes on when the last copy is dropped; `cancel` ends it.
class RequestHandle {
 public:
  RequestHandle() = default;
  explicit RequestHandle(std::shared_ptr<RequestStream> stream);

  RequestId id() const;
  /// Waits for news. Nothing after the last output of the last choice.
  std::optional<Output> next();
  /// News if there is any, without waiting.
  std::optional<Output> poll();
  /// Waits no longer than `timeout`.
  std::optional<Output> next_for(std::chrono::nanoseconds timeout);
  /// True once everything has been read.
  bool finished() const;
  /// Ends the request as soon as the running step is over. Its last outputs say so. Harmless when it has ended.
  void cancel();
  /// False while the request's structured output is being compiled: nothing has run then, and it may still be refused, with an
  /// output that ends in an error (InvalidArgument, Unimplemented, ResourceExhausted).
  bool prepared() const;
  /// What is not enforced of the structured output, keyword and path (JsonSchemaSpec::strict is false). Known once `prepared`.
  std::vector<std::string> unenforced() const;
  /// Called from an engine thread whenever there may be news; it must not block or throw. Called at once if there is news now.
  void set_callback(std::function<void()> on_news);

 private:
  std::shared_ptr<RequestStream> stream_;
};

/// A sum and the largest of what was measured, seconds.
struct StepTimes {
  double total = 0;
  double max = 0;
  int64_t count = 0;

  void add(double seconds) {
    total += seconds;
    max = seconds > max ? seconds : max;
    ++count;
  }
  void merge(const StepTimes& other) {
    total += other.total;
    max = other.max > max ? other.max : max;
    count += other.count;
  }
};

/// A snapshot of counters since the start, and of what is there now.
struct EngineStats {
  int64_t waiting = 0, running = 0;
  int64_t preparing = 0;  ///< of the waiting ones, those whose structured output is being compiled
  int64_t submitted = 0, refused = 0, preemptions = 0;
  std::array<int64_t, 5> finished{};  ///< by FinishReason, counted in choices
  int64_t steps = 0;
  int64_t prompt_tokens = 0, generation_tokens = 0, cached_tokens = 0, replayed_tokens = 0;
  int64_t row_layers = 0;                                     ///< rows x layers that ran
  int64_t full_row_layers = 0;                                ///< the same without cache and without replay
  int64_t pages_total = 0, pages_free = 0, pages_cached = 0;  ///< cached: held by nobody but the cache
  std::array<int64_t, 3> pages_by_class{};                    ///< of the cached ones: chat, agent, pinned
  int64_t prefix_queries = 0, prefix_hits = 0;                ///< in tokens
  int64_t evicted_pages = 0, expired_pages = 0;
  // Prefixes from the tiers (EngineOptions::kv_tiers).
  int64_t pulls = 0, pulls_failed = 0;
  int64_t pulls_refused = 0;     ///< fetching would have taken longer than computing
  int64_t pulled_tokens = 0;     ///< of cached_tokens, those that came from a tier
  double pull_wait_seconds = 0;  ///< that steps waited for pages on their way
  double row_layer_seconds = 0;  ///< that a row of a prompt takes in a layer, estimated; 0: not measured yet
  KvTiersStats tiers;            ///< without tiers: empty
  int64_t snapshots = 0, snapshot_bytes = 0, snapshot_hits = 0, snapshot_misses = 0;
  // Speculative decoding.
  int64_t drafts = 0;  ///< rounds: a sequence in a step with drafts
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  std::array<int64_t, kMaxDraftTokens> drafted_at{}, accepted_at{};  ///< the same by position in the block
  StepTimes plan, publish, step;                                     ///< host planning, host publishing, device step
  StepTimes masks;                 ///< of structured outputs: filling one mask, on a thread of the host
  double mask_wait_seconds = 0;    ///< of these, what steps waited for at the end of their forward pass
  double device_idle_seconds = 0;  ///< the device waited although something was running
};

/// How often each expert was chosen since the start, by rows that ran the layer. A GPU counts by itself and is asked when it has
/// nothing to do, or every 256 steps.
struct ExpertCounts {
  int64_t layers = 0;                        ///< of the model; what follows in `counts` are its draft stages
  std::vector<std::vector<int64_t>> counts;  ///< [layer][expert]
};

/// What `Engine::Create` took, seconds.
struct LoadTimes {
  double checkpoint = 0;  ///< beside the tokenizer, in another thread
  double tokenizer = 0;   ///< with the Engram token map
  double model = 0;
  double total = 0;
};

/// What has been loaded; the same for the engine's whole life.
struct ModelInfo {
  std::string name;  ///< last part of the checkpoint folder
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t page_tokens = 0;  ///< granularity of cache hits
  int64_t bos_token_id = 0, eos_token_id = 0;
  int64_t layers = 0;
  int64_t page_bytes = 0;           ///< of `page_tokens` positions in the KV cache
  int64_t sequence_bytes = 0;       ///< that a running sequence needs besides its pages: windows of all layers
  int64_t weight_bytes = 0;         ///< of the checkpoint
  int64_t active_weight_bytes = 0;  ///< that one decode step of one sequence reads
  std::string backend;              ///< with the kernels that this processor gets, as "cpu/avx512-bf16"
  int threads = 0;                  ///< of the backend
  std::vector<std::pair<std::string, std::string>> kernels;  ///< operators and the kernel that they get
  std::string memory_plan;                                   ///< of a GPU's memory, for people; empty without one
  LoadTimes load;
};

/// The engine: many requests at once over one model. Every member may be called from any thread at any time.
///
/// Results depend on the request alone (and, in bounded replay, on what of it was cached), bit for bit: not on batch, arrival
/// order, chunking, preemption or asynchronous scheduling.
class Engine {
 public:
  /// Loads the model and starts the engine's threads. Errors name what does not fit.
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  /// Cancels what still runs.
  virtual ~Engine() = default;

  /// Checks the request and queues it. InvalidArgument and OutOfRange name the field (a request that needs more pages than there
  /// are is one of these), Unavailable means that a queue is full, FailedPrecondition comes after `shutdown`. A structured output
  /// is compiled later, in a thread of its own: see RequestHandle::prepared.
  virtual Result<RequestHandle> submit(Request request) = 0;
  virtual void cancel(RequestId id) = 0;
  virtual EngineStats stats() const = 0;
  virtual ExpertCounts expert_counts() const { return {}; }
  /// When prompts came back to pages, since the recording began (KvTierOptions::intervals), from a sample if there were many.
  virtual IntervalsByClass revisit_intervals() const { return {}; }
  /// Forgets every cached page, pinned ones too, and every window snapshot that no request uses, before a request that is
  /// submitted later is looked at. What running requests hold stays, and is cached when they end. The tiers keep what they have:
  /// others may use it. A request with another salt finds none of it.
  virtual void reset_prefix_cache() = 0;

  enum class Shutdown : uint8_t { kDrain, kCancel };
  /// No more requests; waits until those there are have finished (drain) or have been cancelled. Later calls return at once.
  virtual void shutdown(Shutdown how = Shutdown::kDrain) = 0;

  virtual const EngineOptions& options() const = 0;  ///< with every default filled in
  virtual ModelInfo model() const = 0;
  /// Token ids of plain text: no start token, added tokens spelled in it stay text.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// Token ids of a conversation with one user turn, ready for the answer.
  virtual Result<std::vector<int32_t>> encode_chat(std::string_view user, bool thinking = false) const = 0;
  virtual std::string decode(const std::vector<int32_t>& tokens, bool skip_special = true) const = 0;
  /// The model's tokenizer (src/tokenizer/tokenizer.h), for prompts that the above cannot spell.
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

 protected:
  Engine() = default;
};

}  // namespace deepinfer
