#include "engine/core_harness.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cache/tiers/device_tiers.h"
#include "ops/cuda/cuda_device.h"
#include "testing/guarded_backend.h"
#include "testing/named_backend.h"
#include "testing/paths.h"
#include "testing/random.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kPromptLogprobRows = 64;

std::string test_backend() {
  const char* set = std::getenv("DEEPINFER_TEST_BACKEND");
  return set != nullptr ? set : "cpu";
}

/// Skips every test of a program whose backend is absent.
class BackendThere : public ::testing::Environment {
  void SetUp() override {
    if (const std::string why = why_absent(test_backend()); !why.empty()) GTEST_SKIP() << why;
  }
};
const ::testing::Environment* const kBackendThere = ::testing::AddGlobalTestEnvironment(new BackendThere);

/// Pages in the backend's memory.
PagePool::Arena page_arena(DeviceMemory& memory) {
  if (memory.is_host()) return {};
  return {[&memory](int64_t bytes) { return memory.allocate(bytes); }, [&memory](void* data) { memory.free(data); }};
}

}  // namespace

LoadedModel& nano_model(int threads) {
  static std::map<int, LoadedModel> models;
  const auto found = models.find(threads);
  if (found != models.end()) return found->second;
  const std::string name = test_backend();
  auto loaded = load_model(nano_dir(), name == "guarded" ? "cpu" : name, threads);
  if (!loaded) throw std::runtime_error(loaded.error().message());
  if (name == "guarded") {
    loaded->model.reset();
    loaded->backend = make_guarded_backend(std::move(loaded->backend));
    auto model = Model::Create(loaded->checkpoint, make_engram_token_map(*loaded->tokenizer).map, loaded->backend.get());
    if (!model) throw std::runtime_error(model.error().message());
    loaded->model = *std::move(model);
  }
  return models.emplace(threads, *std::move(loaded)).first->second;
}

int64_t device_allocations() {
  const std::string backend = test_backend();
  return backend == "guarded" ? guarded_allocations() : backend == "cuda" ? cuda_allocations() : -1;
}

FormResult nano_form(const StructuredOutput& output) {
  static const auto cache = [] {
    const LoadedModel& nano = nano_model();
    auto vocabulary = grammar::TokenVocabulary::Make(*nano.tokenizer, {static_cast<int32_t>(nano.config().eos_token_id)});
    if (!vocabulary) throw std::runtime_error(vocabulary.error().message());
    return std::make_unique<grammar::GrammarCache>(*std::move(vocabulary), size_t{64} << 20);
  }();
  return compile_form(output, *cache, nano_model().config().vocab_size);
}

CoreHarness::CoreHarness(const CoreSetup& setup, Executor* executor) : setup_(setup), windows_(setup.snapshot_bytes, 300) {
  LoadedModel& nano = nano_model(setup.threads);
  const ModelConfig& config = nano.config();
  const int64_t page_bytes = nano.model->page_layout().page_bytes;
  KvCacheOptions cache_options;
  cache_options.enable_prefix_caching = setup.caching;
  auto pool = PagePool::Create(page_bytes, (page_bytes + 63) / 64 * 64 * setup.pages, page_arena(nano.backend->memory()));
  if (!pool) throw std::runtime_error(pool.error().message());
  auto cache = KvCache::Create(*std::move(pool), cache_options);
  if (!cache) throw std::runtime_error(cache.error().message());
  cache_ = *std::move(cache);
  KvTiers* tiers = setup.tiers;
  PageCopies* copies = nullptr;
  if (tiers != nullptr && !nano.backend->memory().is_host()) {
    copies = &page_copies(nano.backend->memory());
    const int64_t staging = (page_bytes + 255) / 256 * 256 * setup.staged_pages;
    auto made = make_device_tiers(std::shared_ptr<KvTiers>(tiers, [](KvTiers*) {}), copies,
                                  {.pull_bytes = staging, .write_bytes = staging});
    if (!made) throw std::runtime_error(made.error().message());
    device_tiers_ = std::move(made->tiers);
    tiers = device_tiers_.get();
  }
  const int64_t drafts = setup.drafts < 0 ? config.dspark_block_size : setup.drafts;
  if (executor == nullptr) {
    std::vector<std::unique_ptr<SequenceState>> states;
    if (!nano.backend->memory().is_host()) {  // as the engine does
      for (int64_t i = 0; i < setup.max_num_seqs; ++i) states.push_back(nano.model->new_borrowing_sequence());
      const int64_t draft_rows = setup.speculation == SpeculationMode::kOff ? 0 : setup.max_num_seqs * drafts;
      const std::lock_guard turn(nano.model->turn());  // the executor of another harness may be there
      nano.model->reserve(states, setup.max_num_batched_tokens + draft_rows, config.max_position_embeddings,
                          setup.max_num_seqs + draft_rows + kPromptLogprobRows, draft_rows > 0 ? drafts : 0);
    }
    auto device =
        std::make_unique<ModelExecutor>(nano.model.get(), nano.pool.get(), setup.max_num_seqs,
                                        DraftPolicy::Options{.mode = setup.speculation, .most = drafts}, std::move(states));
    device->replace_drafts(setup.replace_drafts);
    device->set_page_copies(copies);
    executor_ = std::move(device);
  }
  CoreOptions options;
  if (setup.speculation != SpeculationMode::kOff) options.max_drafts = drafts;
  options.limits = {setup.max_num_seqs, setup.max_num_batched_tokens, kPagePositions};
  options.eos_token_id = config.eos_token_id;
  options.vocab_size = config.vocab_size;
  options.geometry = ReplayGeometry::Of(config);
  options.decoder_replay = setup.decoder;
  options.decoder_keep = setup.keep > 0 ? setup.keep : config.sliding_window + 2 * (config.dspark_block_size + 1);
  options.async = setup.async;
  options.snapshots = setup.caching && setup.snapshot_bytes > 0;
  options.prompt_logprob_rows = kPromptLogprobRows;
  options.fingerprint = "nano";
  options.step_at_once = setup.tiers != nullptr;
  options.cut_over = setup.cut_over;
  options.prefill = setup.prefill;
  core_ = std::make_unique<EngineCore>(options, cache_.get(), &windows_, executor != nullptr ? executor : executor_.get(),
                                       nano.tokenizer, PrefixHasher(std::array<uint8_t, 32>{1, 2, 3}));
  if (setup.tiers != nullptr) {
    core_->set_tiers(tiers, [this](RequestId id, KvTierMatch match) { matches_.emplace_back(id, std::move(match)); });
  }
  limits_.vocab_size = config.vocab_size;
  limits_.eos_token_id = config.eos_token_id;
  limits_.max_model_len = config.max_position_embeddings;
  limits_.max_num_seqs = setup.max_num_seqs;
  limits_.total_pages = cache_->total_pages();
  limits_.replay = setup.replay;
}

CoreHarness::~CoreHarness() {
  core_->end_all(FinishReason::kCancelled);
  run();
  // Whatever happened: every page is free, or the cache's.
  cache_->clear();
  EXPECT_EQ(cache_->free_pages(), cache_->total_pages());
}

Result<RequestId> CoreHarness::try_submit(Request request) {
  DI_ASSIGN_OR_RETURN(const std::shared_ptr<ActiveRequest> active, check_request(std::move(request), limits_));
  const RequestId id = next_id_++;
  active->id = id;
  active->stream =
      std::make_shared<RequestStream>(id, active->request.n, [this](RequestId r) { core_->end(r, FinishReason::kCancelled); });
  if (active->request.deadline.has_value()) active->deadline = now + *active->request.deadline;
  if (active->request.structured_output.has_value() && !hold_forms) {
    DI_ASSIGN_OR_RETURN(active->form, nano_form(*active->request.structured_output));
  }
  handles_.emplace(id, RequestHandle(active->stream));
  answers_[id].resize(static_cast<size_t>(active->request.n));
  core_->submit(active, now);
  return id;
}

RequestId CoreHarness::submit(Request request) {
  const auto id = try_submit(std::move(request));
  if (!id) throw std::runtime_error(id.error().message());
  return *id;
}

void CoreHarness::turn() {
  now += seconds_per_turn;
  const int64_t steps = core_->stats().steps;
  take_matches();
  core_->turn(now);
  if (keep_plans && core_->stats().steps > steps) plans.push_back(core_->last_plan().to_string());
  core_->check_invariants();
  collect();
}

void CoreHarness::run() {
  while (core_->busy() || !matches_.empty()) turn();
  collect();
}

void CoreHarness::take_matches() {
  for (auto& [id, match] : std::exchange(matches_, {})) core_->matched(id, std::move(match));
}

void CoreHarness::collect() {
  for (auto it = handles_.begin(); it != handles_.end();) {
    while (auto output = it->second.poll()) {
      Answer& a = answers_.at(it->first)[static_cast<size_t>(output->index)];
      EXPECT_FALSE(a.finish.has_value()) << "news after the end";
      if (!output->prompt_logprobs.empty()) {
        EXPECT_TRUE(a.tokens.empty() && a.prompt_logprobs.empty()) << "prompt log-probs come in one piece, before anything else";
      }
      a.tokens.insert(a.tokens.end(), output->tokens.begin(), output->tokens.end());
      a.text += output->text;
      a.logprobs.insert(a.logprobs.end(), output->logprobs.begin(), output->logprobs.end());
      a.prompt_logprobs.insert(a.prompt_logprobs.end(), output->prompt_logprobs.begin(), output->prompt_logprobs.end());
      a.finish = output->finish;
      a.stop_reason = output->stop_reason;
      a.error = output->error;
      a.usage = output->usage;
    }
    it = it->second.finished() ? handles_.erase(it) : std::next(it);
  }
}

bool CoreHarness::finished(RequestId id) const { return !handles_.contains(id); }

std::vector<int32_t> random_prompt(int64_t length, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.between(10, 4000));
  return ids;
}

Request make_request(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.seed = seed;
  r.sampling.temperature = 1.0f;
  r.logprobs = 3;
  r.ignore_eos = true;
  return r;
}

std::vector<Answer> run_alone(const Request& request, const CoreSetup& like) {
  CoreSetup setup = like;
  setup.tiers = nullptr;
  setup.speculation = SpeculationMode::kOff;
  setup.pages = 512;
  setup.max_num_seqs = std::max<int64_t>(16, request.n);
  setup.max_num_batched_tokens = 8192;
  setup.async = false;
  setup.caching = false;
  CoreHarness harness(setup);
  Request alone = request;
  alone.deadline.reset();
  const RequestId id = harness.submit(std::move(alone));
  harness.run();
  return harness.answers(id);
}

namespace {

void expect_same_logprobs(const PositionLogprobs& got, const PositionLogprobs& want, const std::string& what) {
  const auto same = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.token == b.token && a.rank == b.rank && std::memcmp(&a.logprob, &b.logprob, sizeof(float)) == 0;
  };
  ASSERT_TRUE(same(got.chosen, want.chosen)) << what << ": " << got.chosen.logprob << " " << want.chosen.logprob;
  ASSERT_EQ(got.top.size(), want.top.size()) << what;
  for (size_t i = 0; i < got.top.size(); ++i) ASSERT_TRUE(same(got.top[i], want.top[i])) << what << ", top " << i;
}

}  // namespace

void expect_prefix(const Answer& got, const Answer& want, const std::string& what) {
  ASSERT_LE(got.tokens.size(), want.tokens.size()) << what;
  for (size_t i = 0; i < got.tokens.size(); ++i) ASSERT_EQ(got.tokens[i], want.tokens[i]) << what << ", token " << i;
  ASSERT_LE(got.logprobs.size(), want.logprobs.size()) << what;
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    expect_same_logprobs(got.logprobs[i], want.logprobs[i], what + ", log-probs of token " + std::to_string(i));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void expect_same(const Answer& got, const Answer& want, const std::string& what) {
  expect_prefix(got, want, what);
  if (::testing::Test::HasFatalFailure()) return;
  ASSERT_EQ(got.tokens.size(), want.tokens.size()) << what;
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size()) << what;
  ASSERT_EQ(got.text, want.text) << what;
  ASSERT_EQ(got.finish, want.finish) << what;
  ASSERT_EQ(got.stop_reason, want.stop_reason) << what;
  ASSERT_EQ(got.prompt_logprobs.size(), want.prompt_logprobs.size()) << what;
  for (size_t i = 0; i < got.prompt_logprobs.size(); ++i) {
    expect_same_logprobs(got.prompt_logprobs[i], want.prompt_logprobs[i],
                         what + ", log-probs of prompt token " + std::to_string(i + 1));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace deepinfer::testing
