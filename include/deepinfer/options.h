#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "deepinfer/status.h"

namespace deepinfer {

namespace telemetry {
class TraceRecorder;
}

/// How windows of the attention are rebuilt where they are missing, and how much of the decoder a prompt runs (SWA bounded
/// replay; docs/guides/replay.md).
enum class ReplayMode : uint8_t {
  kBounded,  ///< the last window before a hit is replayed; the decoder layers run for the end of the prompt only
  kExact,    ///< everything as if the prompt had been computed in one piece with nothing cached: bitwise
};

/// "bounded" or "exact".
Result<ReplayMode> parse_replay_mode(std::string_view text);
std::string_view replay_mode_name(ReplayMode mode);

/// Whether bounded mode leaves out decoder layers for most of the prompt.
enum class DecoderReplay : uint8_t {
  kCompact,  ///< decoder layers run for the last `decoder_keep_tokens` prompt tokens
  kOff,      ///< decoder layers run for every token
};

/// "compact" or "off".
Result<DecoderReplay> parse_decoder_replay(std::string_view text);
std::string_view decoder_replay_name(DecoderReplay mode);

/// Speculative decoding with the checkpoint's DSpark draft module. Answers are the same bits in every mode
/// (docs/guides/speculation.md).
enum class SpeculationMode : uint8_t {
  kOff,
  kFixed,     ///< `num_speculative_tokens` drafts are verified in every step
  kVariable,  ///< as many as the draft module's confidence and the measured cost of steps make worth while, often none
};

/// "off", "fixed" or "variable".
Result<SpeculationMode> parse_speculation_mode(std::string_view text);
std::string_view speculation_mode_name(SpeculationMode mode);

/// Drafts of one sequence in one step at most, whatever the checkpoint.
inline constexpr int64_t kMaxDraftTokens = 64;

/// Where prefixes are kept below the backend's pages: computed once, found again by later requests, by the engine after a
/// restart, and by others (docs/guides/engine.md). What is 0 or empty is left out; without any tier the rest says nothing. Sizes
/// are bytes, times seconds.
struct KvTierOptions {
  int64_t host_bytes = 0;  ///< memory of this process; pages stay there as long as EngineOptions::cache_ttl_* say
  std::string store;       ///< folder of a RocksDB database, of this process alone
  int64_t store_bytes = int64_t{64} << 30;  ///< that it may take
  std::string shared;                       ///< folder that machines share (3FS, Lustre, NFS); must be there
  int64_t shared_bytes = 0;                 ///< that it may take, for all models together; 0: no limit
  std::string directory;  ///< Redis that knows what `shared` holds, for fast look-ups: redis://HOST[:PORT] or unix://PATH
  /// 32 bytes under which pages are named; empty: SHARED/secret or STORE/secret, made if it isn't there.
  std::string secret_file;
  /// How much of the weights is read to tell the checkpoint from others: "sample", some of each tensor, or "full". Engines that
  /// share pages do the same.
  std::string weights_check = "sample";
  /// File in which the engine records when prompts come back to pages, for `deepinfer cache plan`; needs no tier. One that is
  /// there is gone on with. Empty: none.
  std::string intervals;
  double ttl_chat = 86400;           ///< how long stores keep a page of class `chat` after its last use; 0: not at all
  double ttl_agent = 3 * 86400.0;    ///< the same for class `agent`
  double ttl_pinned = 30 * 86400.0;  ///< the same for class `pinned`
  double match_limit = 0.05;         ///< what looking a prompt up may take; later it counts as not found
  bool cut_over = true;              ///< pages are fetched only where that is faster than computing them, as measured
  double pull_limit = 5;             ///< what fetching its pages may take; later they are computed

  bool any() const { return host_bytes > 0 || persistent(); }
  /// Some tier outlives the process.
  bool persistent() const { return !store.empty() || !shared.empty(); }
  Status validate() const;
};

/// What an engine is made from. Sizes are bytes, times seconds. `validate` names the field, its value and the limit.
struct EngineOptions {
  std::string model;            ///< checkpoint folder: config.json, tokenizer.json, safetensors
  std::string backend = "cpu";  ///< "cpu", "cuda": a GPU, "auto": a GPU if there is one, or "reference": plain loops, slow
  int threads = 0;              ///< of the backend; 0: as many as the process may use

  int64_t max_num_seqs = 256;          ///< sequences that run at once
  int64_t max_num_batched_tokens = 0;  ///< rows of one step; 0: 512, or max_num_seqs if that is more
  int64_t max_model_len = 0;           ///< prompt and answer together; 0: max_position_embeddings
  int64_t kv_cache_memory = 0;  ///< bytes of global pages; 0: a quarter of the memory, at most 4 GiB; on a GPU what is left
  double gpu_memory_utilization = 0.9;  ///< part of a GPU's memory for weights, workspace, sequences and pages together, (0, 1]
  std::string engram_memory = "auto";   ///< where a GPU's Engram tables lie: "device", "host", or "auto": device if they fit well
  bool cuda_graphs = true;              ///< off: a GPU's steps are launched anew each time
  std::string cuda_features = "all";  ///< ways of a GPU's kernels that have the same bits as the plain ones: names, "all", "none"
  bool enable_prefix_caching = true;
  double cache_ttl_chat = 600;    ///< how long a page of class `chat` is kept after its last use
  double cache_ttl_agent = 3600;  ///< the same for class `agent`
  double cache_max_pinned_fraction = 0.5;
  int64_t window_snapshot_memory = int64_t{256} << 20;  ///< 0: no snapshots, every hit is replayed
  double window_snapshot_ttl = 300;
  KvTierOptions kv_tiers;  ///< needs enable_prefix_caching

  ReplayMode replay = ReplayMode::kBounded;
  DecoderReplay decoder_replay = DecoderReplay::kCompact;
  int64_t decoder_keep_tokens = 0;  ///< 0: sliding window + 2 x (draft block + 1), 140 for V4.1

  SpeculationMode speculation = SpeculationMode::kOff;
  int64_t num_speculative_tokens = -1;  ///< drafts per step and sequence at most; -1: the checkpoint's draft block

  bool async_scheduling = true;        ///< plan step N+1 and publish N-1 while step N runs
  int64_t max_queued_requests = 8192;  ///< beyond it `submit` answers Unavailable
  double priority_interval = 10;       ///< seconds of waiting that make up for one step of priority

  /// Seconds that have been skipped since the start, by which the clock of times to live, deadlines and waiting is ahead of the
  /// machine's; for replaying a recording without its pauses. Never falls; called by any thread. Null: none. Not with `trace`.
  std::function<double()> time_skipped;

  /// Is told where the time of requests goes (docs/guides/observability.md); null: nothing is recorded, and nothing is measured.
  std::shared_ptr<telemetry::TraceRecorder> trace;

  /// Bytes of the checkpoint that have been read, and all of them; called while `Engine::Create` runs, and dropped then.
  std::function<void(int64_t done, int64_t total)> load_progress;

  /// Limits that need no model. Everything that depends on the model is checked by `Engine::Create`.
  Status validate() const;
  /// The JSON of --speculative-config: {"method": "dspark", "num_speculative_tokens": 5, "mode": "variable"}.
  Status apply_speculative_config(std::string_view json);
  /// Takes over the environment variables that DeepInfer documents, where they are set (docs/guides/engine.md has the table).
  /// An unknown value is an error that names the variable.
  Status apply_environment();
};

}  // namespace deepinfer
