#include "deepinfer/engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "cache/revisit_recorder.h"
#include "engine/engine_core.h"
#include "engine/intervals_file.h"
#include "engine/loaded_model.h"
#include "engine/memory_plan.h"
#include "engine/model_executor.h"
#include "engine/open_tiers.h"
#include "engine/request_check.h"
#include "protocol/render_v4.h"

namespace deepinfer {
namespace {

constexpr int64_t kDefaultBatchedTokens = 512;
constexpr int64_t kMaxDefaultCache = int64_t{4} << 30;
constexpr int64_t kMaxLogitBytes = int64_t{256} << 20;
constexpr double kHousekeepingSeconds = 1.0;
/// How soon the engine sees that pages have come, if nothing else is to be done.
constexpr double kPullSeconds = 200e-6;

int64_t default_cache_memory() {
  const int64_t memory = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return std::min(memory / 4, kMaxDefaultCache);
}

/// Prompt rows, and drafts, whose logits are kept at a time.
int64_t logit_rows_at_once(const ModelConfig& config) {
  return std::max<int64_t>(1, kMaxLogitBytes / (config.vocab_size * static_cast<int64_t>(sizeof(float))));
}

/// Fills in what was left at its default, and refuses what does not fit the model.
Result<EngineOptions> resolve(EngineOptions o, const ModelConfig& config) {
  if (config.kv_source_layer_ids.empty())
    return Err(Status::Unimplemented("{}: a model without compressed KV has nothing to cache by pages", o.model));
  if (o.max_model_len > config.max_position_embeddings) {
    return Err(Status::OutOfRange("max_model_len is {}, max_position_embeddings is {}", o.max_model_len,
                                  config.max_position_embeddings));
  }
  if (o.max_model_len == 0) o.max_model_len = config.max_position_embeddings;
  if (o.max_num_batched_tokens == 0) o.max_num_batched_tokens = std::max(kDefaultBatchedTokens, o.max_num_seqs);
  if (o.num_speculative_tokens > config.dspark_block_size) {
    return Err(Status::OutOfRange("num_speculative_tokens is {}, the checkpoint's draft block has {}", o.num_speculative_tokens,
                                  config.dspark_block_size));
  }
  if (o.num_speculative_tokens < 0) o.num_speculative_tokens = config.dspark_block_size;
  if (o.speculation != SpeculationMode::kOff && config.num_nextn_predict_layers == 0)
    return Err(Status::FailedPrecondition("{}: speculation needs a draft module, and the checkpoint has none", o.model));
  if (o.num_speculative_tokens == 0) o.speculation = SpeculationMode::kOff;
  // Of the checkpoint's block, not of what is drafted: results must not depend on that.
  const int64_t keep = config.sliding_window + 2 * (config.dspark_block_size + 1);
  if (o.decoder_keep_tokens == 0) o.decoder_keep_tokens = keep;
  if (o.decoder_keep_tokens < config.sliding_window) {
    return Err(Status::OutOfRange("decoder_keep_tokens is {}, must be at least the sliding window, {}", o.decoder_keep_tokens,
                                  config.sliding_window));
  }
  return o;
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineOptions options, LoadedModel loaded, std::unique_ptr<KvCache> cache, std::optional<EngineTiers> tiers,
             std::vector<std::unique_ptr<SequenceState>> states, std::string memory_plan, IntervalsByClass earlier)
      : options_(std::move(options)),
        loaded_(std::move(loaded)),
        cache_(std::move(cache)),
        tiers_(std::move(tiers)),
        windows_(options_.window_snapshot_memory, options_.window_snapshot_ttl),
        executor_(loaded_.model.get(), loaded_.pool.get(), options_.max_num_seqs,
                  {.mode = options_.speculation, .most = options_.num_speculative_tokens}, std::move(states)),
        core_(core_options(), cache_.get(), &windows_, &executor_, loaded_.tokenizer, hasher(), step_clock),
        memory_plan_(std::move(memory_plan)),
        sequence_bytes_(loaded_.model->new_borrowing_sequence()->resident_bytes()),
        revisits_(step_clock(), std::move(earlier)),
        inbox_(std::make_shared<Inbox>()),
        compiler_(loaded_.tokenizer, static_cast<int32_t>(loaded_.config().eos_token_id), loaded_.config().vocab_size, {},
                  [inbox = inbox_](RequestId id, FormResult form) { inbox->prepare(id, std::move(form)); }) {
    limits_.vocab_size = loaded_.config().vocab_size;
    limits_.eos_token_id = loaded_.config().eos_token_id;
    limits_.max_model_len = options_.max_model_len;
    limits_.max_num_seqs = options_.max_num_seqs;
    limits_.page_positions = kPagePositions;
    limits_.total_pages = cache_->total_pages();
    limits_.replay = options_.replay;
    core_.set_trace(options_.trace.get());
    if (tiers_.has_value()) {
      executor_.set_page_copies(tiers_->copies);
      core_.set_tiers(tiers_->opened.tiers.get(),
                      [inbox = inbox_](RequestId id, KvTierMatch match) { inbox->match(id, std::move(match)); });
    }
    stats_ = core_.stats();
    core_.set_counted([this] { publish_stats(); });
    thread_ = std::thread([this] { loop(); });
  }

  ~EngineImpl() override { shutdown(Shutdown::kCancel); }

  /// Before anybody else has the engine.
  Status save_intervals() {
    if (options_.kv_tiers.intervals.empty()) return Status::Ok();
    auto file = IntervalsFile::Open(options_.kv_tiers.intervals, [this] { return recording(); });
    if (!file) return file.error();
    intervals_file_ = *std::move(file);
    return Status::Ok();
  }

  Result<RequestHandle> submit(Request request) override {
    auto checked = check_request(std::move(request), limits_);
    if (!checked) return Err(checked.error());
    const std::shared_ptr<ActiveRequest> active = *std::move(checked);
    core_.hash_prompt(*active);
    if (active->request.structured_output.has_value()) active->form = compiler_.find(*active->request.structured_output);
    const std::weak_ptr<Inbox> inbox = inbox_;
    RequestHandle handle;
    {
      const std::lock_guard lock(inbox_->mutex);
      if (inbox_->closed) return Err(Status::FailedPrecondition("the engine has been shut down"));
      const int64_t queued = inbox_->waiting + static_cast<int64_t>(inbox_->submitted.size());
      if (queued >= options_.max_queued_requests) {
        ++inbox_->refused;
        return Err(
            Status::Unavailable("{} requests are queued, max_queued_requests is {}", queued, options_.max_queued_requests));
      }
      active->id = inbox_->next_id++;
      const bool prepared = !active->request.structured_output.has_value() || active->form != nullptr;
      const auto cancel = [inbox](RequestId id) {
        if (const auto box = inbox.lock()) box->cancel(id);
      };
      active->stream = std::make_shared<RequestStream>(active->id, active->request.n, cancel, prepared);
      if (active->form != nullptr) active->stream->set_prepared(active->form->grammar->ignored());
      if (!prepared) {
        // What comes of it is taken in by the engine's thread after the request itself.
        if (const Status queued_form = compiler_.submit(active); !queued_form.ok()) {
          ++inbox_->refused;
          return Err(queued_form);
        }
      }
      active->submitted = clock();
      if (active->request.deadline.has_value()) active->deadline = active->submitted + *active->request.deadline;
      handle = RequestHandle(active->stream);
      if (options_.trace != nullptr)
        options_.trace->submitted(active->id, telemetry::to_ns(active->submitted),
                                  static_cast<int64_t>(active->request.prompt.size()));
      if (options_.enable_prefix_caching) {
        revisits_.record(active->prompt_keys, active->cache_class, static_cast<int64_t>(active->request.prompt.size()),
                         active->submitted);
      }
      inbox_->submitted.push_back(active);
    }
    inbox_->news.notify_one();
    return handle;
  }

  void cancel(RequestId id) override { inbox_->cancel(id); }

  EngineStats stats() const override {
    KvTiersStats tiers;
    if (tiers_.has_value()) tiers = tiers_->opened.tiers->stats();
    const std::lock_guard lock(inbox_->mutex);
    EngineStats stats = stats_;
    stats.waiting += static_cast<int64_t>(inbox_->submitted.size());
    stats.refused = inbox_->refused;
    stats.tiers = std::move(tiers);
    return stats;
  }

  ExpertCounts expert_counts() const override {
    return {.layers = loaded_.config().num_hidden_layers, .counts = loaded_.model->expert_load().counts()};
  }

  IntervalsByClass revisit_intervals() const override { return revisits_.snapshot(step_clock()); }

  void reset_prefix_cache() override {
    {
      const std::lock_guard lock(inbox_->mutex);
      inbox_->reset_cache = true;
    }
    inbox_->news.notify_one();
  }

  void shutdown(Shutdown how) override {
    {
      const std::lock_guard lock(inbox_->mutex);
      inbox_->closed = true;
      if (how == Shutdown::kCancel) inbox_->cancel_all = true;
    }
    inbox_->news.notify_one();
    const std::lock_guard lock(join_mutex_);
    if (!thread_.joinable()) return;
    thread_.join();
    if (tiers_.has_value()) tiers_->opened.tiers->flush();
    intervals_file_.reset();
  }

  const EngineOptions& options() const override { return options_; }

  ModelInfo model() const override {
    const ModelConfig& config = loaded_.config();
    std::vector<std::pair<std::string, std::string>> kernels;
    for (KernelChoice& k : loaded_.backend->kernels()) kernels.emplace_back(std::move(k.operators), std::move(k.kernel));
    return {.name = std::filesystem::path(options_.model).lexically_normal().filename().string(),
            .vocab_size = config.vocab_size,
            .max_model_len = options_.max_model_len,
            .page_tokens = kPagePositions,
            .bos_token_id = config.bos_token_id,
            .eos_token_id = config.eos_token_id,
            .layers = config.num_hidden_layers,
            .page_bytes = loaded_.model->page_layout().page_bytes,
            .sequence_bytes = sequence_bytes_,
            .weight_bytes = loaded_.checkpoint->total_bytes(),
            .active_weight_bytes = loaded_.model->active_weight_bytes(),
            .backend = loaded_.backend->name(),
            .threads = loaded_.pool->size(),
            .kernels = std::move(kernels),
            .memory_plan = memory_plan_,
            .load = loaded_.times};
  }

  std::vector<int32_t> encode(std::string_view text) const override { return loaded_.tokenizer->encode(text); }

  Result<std::vector<int32_t>> encode_chat(std::string_view user, bool thinking) const override {
    Conversation conversation;
    conversation.messages.push_back(Message::User(std::string(user)));
    conversation.thinking = thinking;
    return encode_prompt(*loaded_.tokenizer, render_prompt(conversation, ModelVersion::kV4_1).segments);
  }

  std::string decode(const std::vector<int32_t>& tokens, bool skip_special) const override {
    return loaded_.tokenizer->decode(tokens, skip_special);
  }

  std::shared_ptr<const Tokenizer> tokenizer() const override { return loaded_.tokenizer; }

 private:
  /// What other threads leave for the engine's. It outlives the engine for handles that are still about.
  struct Inbox {
    std::mutex mutex;
    std::condition_variable news;
    std::vector<std::shared_ptr<ActiveRequest>> submitted;
    std::vector<RequestId> cancelled;
    std::vector<std::pair<RequestId, FormResult>> prepared;
    std::vector<std::pair<RequestId, KvTierMatch>> matched;
    RequestId next_id = 1;
    int64_t waiting = 0;  ///< in the core, as of its last turn
    int64_t refused = 0;
    bool closed = false;
    bool cancel_all = false;
    bool reset_cache = false;

    void prepare(RequestId id, FormResult form) {
      {
        const std::lock_guard lock(mutex);
        prepared.emplace_back(id, std::move(form));
      }
      news.notify_one();
    }

    void match(RequestId id, KvTierMatch match) {
      {
        const std::lock_guard lock(mutex);
        matched.emplace_back(id, std::move(match));
      }
      news.notify_one();
    }

    void cancel(RequestId id) {
      {
        const std::lock_guard lock(mutex);
        cancelled.push_back(id);
      }
      news.notify_one();
    }
  };

  CoreOptions core_options() const {
    const ModelConfig& config = loaded_.config();
    CoreOptions core;
    core.limits = {options_.max_num_seqs, options_.max_num_batched_tokens, kPagePositions};
    core.eos_token_id = config.eos_token_id;
    core.vocab_size = config.vocab_size;
    core.geometry = ReplayGeometry::Of(config);
    core.decoder_replay = options_.decoder_replay;
    core.decoder_keep = options_.decoder_keep_tokens;
    core.priority_interval = options_.priority_interval;
    core.async = options_.async_scheduling;
    core.snapshots = options_.enable_prefix_caching && options_.window_snapshot_memory > 0;
    core.prompt_logprob_rows = logit_rows_at_once(config);
    if (options_.speculation != SpeculationMode::kOff) core.max_drafts = options_.num_speculative_tokens;
    core.max_draft_rows = core.prompt_logprob_rows;
    core.cut_over = options_.kv_tiers.cut_over;
    if (tiers_.has_value()) core.prefill = tiers_->prefill;
    core.fingerprint = tiers_.has_value() ? tiers_->fingerprint : options_.model;
    return core;
  }

  RevisitRecording recording() const {
    const EngineStats now = stats();
    RecordedCosts costs{.page_bytes = loaded_.model->page_layout().page_bytes,
                        .page_positions = kPagePositions,
                        .prefill_tokens_per_second = 0,
                        .pull_bytes_per_second = {}};
    if (now.row_layer_seconds > 0) {
      // A prompt that only ends in the decoder costs little there.
      const ReplayGeometry geometry = ReplayGeometry::Of(loaded_.config());
      const bool compact = options_.replay == ReplayMode::kBounded && options_.decoder_replay == DecoderReplay::kCompact;
      costs.prefill_tokens_per_second =
          1 / (now.row_layer_seconds * static_cast<double>(compact ? geometry.first_decoder_layer : geometry.layers));
    }
    for (const KvTierStats& tier : now.tiers.tiers) {
      if (tier.bytes_per_second > 0) costs.pull_bytes_per_second[tier.name] = tier.bytes_per_second;
    }
    return {.by_class = revisit_intervals(), .costs = std::move(costs)};
  }

  /// Keys that others are to find again are made under their secret.
  PrefixHasher hasher() const { return tiers_.has_value() ? PrefixHasher(tiers_->opened.secret) : PrefixHasher::Random(); }

  /// Of times to live, deadlines and waiting: seconds.
  double clock() const { return step_clock() + (options_.time_skipped != nullptr ? options_.time_skipped() : 0); }

  void loop() {
    std::vector<std::shared_ptr<ActiveRequest>> submitted;
    std::vector<RequestId> cancelled;
    std::vector<std::pair<RequestId, FormResult>> prepared;
    std::vector<std::pair<RequestId, KvTierMatch>> matched;
    double housekeeping = clock();
    while (true) {
      bool cancel_all = false, reset_cache = false;
      {
        std::unique_lock lock(inbox_->mutex);
        const auto something = [&] {
          return !inbox_->submitted.empty() || !inbox_->cancelled.empty() || !inbox_->prepared.empty() ||
                 !inbox_->matched.empty() || inbox_->reset_cache || (inbox_->closed && (inbox_->cancel_all || !core_.open()));
        };
        if (core_.waits_for_pulls()) {
          inbox_->news.wait_for(lock, std::chrono::duration<double>(kPullSeconds), something);
        } else if (!core_.busy() && !something()) {
          double wait = kHousekeepingSeconds;
          if (const auto deadline = core_.next_deadline()) wait = std::clamp(*deadline - clock(), 0.0, wait);
          inbox_->news.wait_for(lock, std::chrono::duration<double>(wait), something);
        }
        submitted.swap(inbox_->submitted);
        cancelled.swap(inbox_->cancelled);
        prepared.swap(inbox_->prepared);
        matched.swap(inbox_->matched);
        cancel_all = inbox_->cancel_all;
        reset_cache = std::exchange(inbox_->reset_cache, false);
        if (inbox_->closed && submitted.empty() && cancelled.empty() && prepared.empty() && matched.empty() && !core_.open())
          return;
        inbox_->waiting = core_.waiting() + static_cast<int64_t>(submitted.size());
      }
      const double now = clock();
      // Before anything is looked for: the process, or its clock, may have skipped a long time.
      if (now - housekeeping > kHousekeepingSeconds) {
        housekeeping = now;
        cache_->expire(now);
        windows_.expire(now);
      }
      if (reset_cache) {
        cache_->clear();
        windows_.clear();
      }
      for (auto& request : submitted) {
        const double when = request->submitted;
        core_.submit(std::move(request), when);
      }
      submitted.clear();
      for (auto& [id, form] : prepared) core_.prepared(id, std::move(form));
      prepared.clear();
      for (auto& [id, match] : matched) core_.matched(id, std::move(match));
      matched.clear();
      for (const RequestId id : cancelled) core_.end(id, FinishReason::kCancelled);
      cancelled.clear();
      if (cancel_all) core_.end_all(FinishReason::kCancelled);
      if (core_.open()) core_.turn(now);
      publish_stats();
    }
  }

  /// On the engine's thread: others see the core's counters as they are now.
  void publish_stats() {
    const EngineStats stats = core_.stats();
    const std::lock_guard lock(inbox_->mutex);
    stats_ = stats;
    inbox_->waiting = core_.waiting();
  }

  const EngineOptions options_;
  LoadedModel loaded_;
  std::unique_ptr<KvCache> cache_;
  std::optional<EngineTiers> tiers_;  ///< read into the cache's pages, at the core's bidding
  WindowSnapshotPool<CachedWindow> windows_;
  ModelExecutor executor_;
  EngineCore core_;
  RequestLimits limits_;
  const std::string memory_plan_;
  const int64_t sequence_bytes_;
  EngineStats stats_;  ///< under the inbox's mutex
  RevisitRecorder revisits_;
  std::shared_ptr<Inbox> inbox_;
  FormCompiler compiler_;
  std::unique_ptr<IntervalsFile> intervals_file_;
  std::mutex join_mutex_;
  std::thread thread_;
};

/// Pages of a device lie in its memory, which the backend keeps for as long as the model.
PagePool::Arena page_arena(Backend& backend) {
  DeviceMemory* memory = &backend.memory();
  if (memory->is_host()) return {};
  return {[memory](int64_t bytes) { return memory->free_bytes() > bytes ? memory->allocate(bytes) : nullptr; },
          [memory](void* data) { memory->free(data); }};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  DI_RETURN_IF_ERROR(options.validate());
  const double start = step_clock();
  Model::Options model_options;
  model_options.memory_utilization = options.gpu_memory_utilization;
  model_options.replay = options.cuda_graphs;
  model_options.engram_memory = options.engram_memory == "device" ? EngramMemory::kDevice
                                : options.engram_memory == "host" ? EngramMemory::kHost
                                                                  : EngramMemory::kAuto;
  DI_ASSIGN_OR_RETURN(LoadedModel loaded,
                      load_model(options.model, options.backend, options.threads, options.load_progress, options.trace.get(),
                                 model_options, *parse_cuda_features(options.cuda_features)));
  DI_ASSIGN_OR_RETURN(EngineOptions resolved, resolve(options, loaded.config()));
  std::vector<std::unique_ptr<SequenceState>> states;
  const int64_t logit_rows = logit_rows_at_once(loaded.config());
  DI_ASSIGN_OR_RETURN(MemoryPlan plan, plan_memory(loaded, resolved, logit_rows, logit_rows, states));
  if (resolved.kv_cache_memory == 0 && loaded.backend->memory().is_host()) resolved.kv_cache_memory = default_cache_memory();
  DI_ASSIGN_OR_RETURN(const PrefillCost prefill, measure_prefill(resolved, loaded));
  auto pool = PagePool::Create(loaded.model->page_layout().page_bytes, resolved.kv_cache_memory, page_arena(*loaded.backend));
  if (!pool) return Err(pool.error().with_context("kv_cache_memory"));
  KvCacheOptions cache_options;
  cache_options.chat_ttl_seconds = resolved.cache_ttl_chat;
  cache_options.agent_ttl_seconds = resolved.cache_ttl_agent;
  cache_options.max_pinned_fraction = resolved.cache_max_pinned_fraction;
  cache_options.enable_prefix_caching = resolved.enable_prefix_caching;
  DI_ASSIGN_OR_RETURN(auto cache, KvCache::Create(*std::move(pool), cache_options));
  DI_ASSIGN_OR_RETURN(auto tiers, open_tiers(resolved, loaded, prefill));
  if (tiers.has_value()) plan.pinned = tiers->pinned_bytes;
  IntervalsByClass earlier;
  if (!resolved.kv_tiers.intervals.empty()) {
    DI_ASSIGN_OR_RETURN(earlier, IntervalsFile::Read(resolved.kv_tiers.intervals));
  }
  resolved.load_progress = nullptr;
  loaded.times.total = step_clock() - start;
  auto engine = std::make_unique<EngineImpl>(std::move(resolved), std::move(loaded), std::move(cache), std::move(tiers),
                                             std::move(states), plan.total > 0 ? plan.text() : std::string(), std::move(earlier));
  DI_RETURN_IF_ERROR(engine->save_intervals());
  return engine;
}

}  // namespace deepinfer
