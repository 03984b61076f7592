// Engines with tiers below their pages: what was computed once is found again by later requests, later engines and nobody else,
// and answers are those of an engine that has never seen the prompt.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cache/revisit_intervals.h"
#include "deepinfer/engine.h"
#include "testing/named_backend.h"
#include "testing/paths.h"
#include "testing/random.h"
#include "testing/tmpfs.h"

namespace deepinfer::testing {
namespace {

constexpr int64_t kPage = 128;

struct Whole {
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
  Usage usage;

  int64_t from(std::string_view tier) const {
    for (const TierUsage::Part& part : usage.tiers.parts) {
      if (part.tier == tier) return part.tokens;
    }
    return 0;
  }
};

Whole run(Engine& engine, const Request& request) {
  Whole whole;
  RequestHandle handle = *engine.submit(request);
  while (const auto output = handle.next()) {
    whole.tokens.insert(whole.tokens.end(), output->tokens.begin(), output->tokens.end());
    whole.finish = output->finish;
    whole.usage = output->usage;
  }
  return whole;
}

Request prompt_of(int64_t tokens, uint64_t seed = 1) {
  Random random(seed);
  Request request;
  for (int64_t i = 0; i < tokens; ++i) request.prompt.push_back(static_cast<int32_t>(random.between(10, 4000)));
  request.max_tokens = 12;
  request.seed = seed;
  request.ignore_eos = true;
  return request;
}

class EngineTiers : public ::testing::Test {
 protected:
  EngineTiers() : directory_(make_temp_dir("engine-tiers")) {
    if (const char* set = std::getenv("DEEPINFER_TEST_BACKEND"); set != nullptr) backend_ = set;
  }
  void SetUp() override {
    if (const std::string why = why_absent(backend_); !why.empty()) GTEST_SKIP() << why;
  }
  ~EngineTiers() override { std::filesystem::remove_all(directory_); }

  EngineOptions options(ReplayMode replay = ReplayMode::kExact) const {
    EngineOptions o;
    o.model = nano_dir();
    o.backend = backend_;
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 256;
    o.kv_cache_memory = int64_t{64} << 20;
    o.replay = replay;
    o.window_snapshot_memory = 0;  // or a hit would not only depend on pages
    o.kv_tiers.cut_over = false;   // what is stored comes from there, however fast the machine is
    return o;
  }
  EngineOptions with_store(ReplayMode replay = ReplayMode::kExact) const {
    EngineOptions o = options(replay);
    o.kv_tiers.store = directory_ + "/store";
    return o;
  }
  static std::unique_ptr<Engine> make(const EngineOptions& o) {
    auto engine = Engine::Create(o);
    if (!engine) throw std::runtime_error(engine.error().message());
    return *std::move(engine);
  }
  /// Waits until every tier has what it was given.
  static void settle(Engine& engine) {
    const auto written = [&] {
      const KvTiersStats stats = engine.stats().tiers;
      for (const KvTierStats& tier : stats.tiers) {
        if (tier.pages_written + tier.pages_dropped < stats.pages_retained || tier.write_errors > 0) return false;
      }
      return true;
    };
    for (int i = 0; i < 2000 && !written(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(written());
  }

  const std::string directory_;
  std::string backend_ = "cpu";
};

TEST_F(EngineTiers, WhatTheDeviceForgotComesFromMemory) {
  const Request request = prompt_of(700);
  const Whole cold = run(*make(options()), request);
  EXPECT_EQ(cold.usage.tiers.miss, "") << "no tier was asked";
  EngineOptions o = options();
  o.kv_tiers.host_bytes = int64_t{64} << 20;
  const auto engine = make(o);
  Whole got = run(*engine, request);
  EXPECT_EQ(got.tokens, cold.tokens);
  EXPECT_EQ(got.usage.cached_tokens, 0);
  EXPECT_EQ(got.usage.tiers.miss, "not_stored");
  settle(*engine);
  engine->reset_prefix_cache();
  got = run(*engine, request);
  EXPECT_EQ(got.tokens, cold.tokens);
  EXPECT_EQ(got.usage.cached_tokens, 5 * kPage);
  EXPECT_EQ(got.from("host"), 5 * kPage);
  EXPECT_EQ(got.usage.tiers.miss, "none");
  EXPECT_EQ(got.usage.tiers.bytes, 5 * engine->model().page_bytes);
  EXPECT_GT(got.usage.tiers.ttl_seconds, 0);
  // Now the device has them again, and a longer prompt has a part from each.
  got = run(*engine, request);
  EXPECT_EQ(got.tokens, cold.tokens);
  EXPECT_EQ(got.usage.cached_tokens, 5 * kPage);
  EXPECT_EQ(got.usage.tiers.tokens(), 0);
  engine->shutdown();
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.pulled_tokens, 5 * kPage);
  EXPECT_EQ(stats.cached_tokens, 10 * kPage);
  ASSERT_EQ(stats.tiers.tiers.size(), 1u);
  EXPECT_EQ(stats.tiers.tiers[0].name, "host");
  EXPECT_EQ(stats.tiers.tiers[0].pages_read, 5);
  EXPECT_GE(stats.tiers.tiers[0].pages, 5);
}

TEST_F(EngineTiers, ARestartedEngineFindsItsPrefixes) {
  const Request request = prompt_of(700), longer = prompt_of(900);
  ASSERT_TRUE(std::equal(request.prompt.begin(), request.prompt.end(), longer.prompt.begin()));
  Whole cold, cold_longer;
  {
    const auto engine = make(options());
    cold = run(*engine, request);
  }
  cold_longer = run(*make(options()), longer);
  { EXPECT_EQ(run(*make(with_store()), request).tokens, cold.tokens); }  // shutdown writes what is still queued
  EngineOptions o = with_store();
  o.kv_tiers.host_bytes = int64_t{64} << 20;
  const auto engine = make(o);
  ASSERT_EQ(engine->stats().tiers.tiers.size(), 2u);
  EXPECT_GE(engine->stats().tiers.tiers[1].pages, 5);
  Whole got = run(*engine, longer);
  EXPECT_EQ(got.tokens, cold_longer.tokens);
  EXPECT_EQ(got.usage.cached_tokens, 5 * kPage);
  EXPECT_EQ(got.from("local"), 5 * kPage);
  EXPECT_EQ(got.usage.tiers.miss, "not_stored") << "the longer one's last pages";
  const int64_t touched = engine->stats().tiers.tiers[1].pages_touched;
  got = run(*engine, request);
  EXPECT_EQ(got.tokens, cold.tokens);
  EXPECT_EQ(got.usage.tiers.tokens(), 0) << "the device has it";
  engine->shutdown();
  EXPECT_EQ(engine->stats().tiers.tiers[1].pages_touched, touched + 5) << "and it has been used: it stays stored";
}

// Bounded results depend on where the prefix was hit, and on nothing else.
TEST_F(EngineTiers, InBoundedModeAHitIsAHitWhereverItComesFrom) {
  const Request start = prompt_of(400), whole = prompt_of(1000);
  const auto device = make(options(ReplayMode::kBounded));
  run(*device, start);
  const Whole want = run(*device, whole);
  ASSERT_EQ(want.usage.cached_tokens, 3 * kPage);
  { run(*make(with_store(ReplayMode::kBounded)), start); }
  const auto engine = make(with_store(ReplayMode::kBounded));
  const Whole got = run(*engine, whole);
  EXPECT_EQ(got.from("local"), 3 * kPage);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.usage.replayed_tokens, want.usage.replayed_tokens);
  // Pages behind a bounded replay are not those of a cold run: who asks for exact results does not get them.
  settle(*engine);
  Request exact = prompt_of(1000);
  exact.replay = ReplayMode::kExact;
  const Whole cold = run(*make(options()), exact);
  engine->reset_prefix_cache();
  const Whole again = run(*engine, exact);
  EXPECT_EQ(again.tokens, cold.tokens);
  EXPECT_EQ(again.usage.cached_tokens, 3 * kPage);
  EXPECT_EQ(again.usage.tiers.miss, "inexact");
}

/// Nano with another bit in one of its weights.
std::string make_other_model(const std::string& other) {
  std::filesystem::copy(nano_dir(), other);
  for (const auto& file : std::filesystem::directory_iterator(other)) {
    if (file.path().extension() != ".safetensors") continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(-4, std::ios::end);
    const auto at = bytes.tellg();
    const int byte = bytes.get();
    bytes.seekp(at);
    bytes.put(static_cast<char>(byte ^ 1));
    break;
  }
  return other;
}

TEST_F(EngineTiers, AnotherModelOnTheStoreFindsNothing) {
  const std::string other = make_other_model(directory_ + "/other");
  const Request request = prompt_of(700);
  { run(*make(with_store()), request); }
  EngineOptions o = with_store();
  o.model = other;
  {
    const Whole got = run(*make(o), request);
    EXPECT_EQ(got.usage.cached_tokens, 0);
    EXPECT_EQ(got.usage.tiers.miss, "not_stored");
  }
  // Both have their own pages now; the same model under another path is the same model.
  EXPECT_EQ(run(*make(o), request).from("local"), 5 * kPage);
  const std::string moved = directory_ + "/moved";
  std::filesystem::copy(nano_dir(), moved);
  o.model = moved;
  EXPECT_EQ(run(*make(o), request).from("local"), 5 * kPage);
}

TEST_F(EngineTiers, WhoSampledTheWeightsAndWhoReadThemAllKeepApart) {
  const Request request = prompt_of(700);
  EngineOptions o = with_store();
  { run(*make(o), request); }
  o.kv_tiers.weights_check = "full";
  { EXPECT_EQ(run(*make(o), request).usage.tiers.miss, "not_stored"); }
  for (const char* check : {"sample", "full"}) {
    o.kv_tiers.weights_check = check;
    EXPECT_EQ(run(*make(o), request).from("local"), 5 * kPage) << check;
  }
}

TEST_F(EngineTiers, TenantsAndSecretsKeepApart) {
  Request mine = prompt_of(700), yours = prompt_of(700);
  mine.cache_salt = "mine";
  yours.cache_salt = "yours";
  { run(*make(with_store()), mine); }
  {
    const auto engine = make(with_store());
    const Whole got = run(*engine, yours);
    EXPECT_EQ(got.usage.cached_tokens, 0);
    EXPECT_EQ(got.usage.tiers.miss, "not_stored");
    EXPECT_EQ(run(*engine, mine).from("local"), 5 * kPage);
  }
  // Without the secret of the store, salt and prompt are of no use.
  const std::string secret = directory_ + "/secret";
  std::ofstream(secret, std::ios::binary) << std::string(32, 's');
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EngineOptions o = with_store();
  o.kv_tiers.secret_file = secret;
  EXPECT_EQ(run(*make(o), mine).usage.tiers.miss, "not_stored");
}

// All of them open at once, as on several machines.
TEST_F(EngineTiers, EnginesShareAFolderAndModelsDoNotMix) {
  const std::string other = make_other_model(directory_ + "/other");
  std::filesystem::create_directory(directory_ + "/shared");
  EngineOptions o = options();
  o.kv_tiers.shared = directory_ + "/shared";
  EngineOptions of_other = o;
  of_other.model = other;
  const auto one = make(o), two = make(o), third = make(of_other);
  const Request request = prompt_of(700);
  EngineOptions alone = options();
  const Whole cold = run(*make(alone), request);
  alone.model = other;
  const Whole cold_other = run(*make(alone), request);
  EXPECT_EQ(run(*one, request).tokens, cold.tokens);
  settle(*one);
  Whole got = run(*third, request);
  EXPECT_EQ(got.tokens, cold_other.tokens);
  EXPECT_EQ(got.usage.tiers.miss, "not_stored");
  settle(*third);
  got = run(*two, request);
  EXPECT_EQ(got.tokens, cold.tokens);
  EXPECT_EQ(got.from("shared"), 5 * kPage);
  for (Engine* engine : {one.get(), two.get(), third.get()}) engine->reset_prefix_cache();
  EXPECT_EQ(run(*one, request).from("shared"), 5 * kPage);
  got = run(*third, request);
  EXPECT_EQ(got.from("shared"), 5 * kPage);
  EXPECT_EQ(got.tokens, cold_other.tokens);
}

// What is read from a store is in memory for the next request.
TEST_F(EngineTiers, PagesGoUpIntoMemory) {
  const Request request = prompt_of(700);
  { run(*make(with_store()), request); }
  EngineOptions o = with_store();
  o.kv_tiers.host_bytes = int64_t{64} << 20;
  const auto engine = make(o);
  EXPECT_EQ(run(*engine, request).from("local"), 5 * kPage);
  engine->reset_prefix_cache();
  const Whole got = run(*engine, request);
  EXPECT_EQ(got.from("host"), 5 * kPage);
  EXPECT_EQ(got.from("local"), 0);
  EXPECT_EQ(engine->stats().tiers.pages_promoted, 5);
}

// Whether a hit is worth it is decided by the clock: here only that the decision changes no answer, and is counted.
TEST_F(EngineTiers, CuttingOverChangesNoAnswer) {
  EngineOptions o = options();
  o.kv_tiers.host_bytes = int64_t{64} << 20;
  o.kv_tiers.cut_over = true;
  const auto engine = make(o), alone = make(options());
  for (int round = 0; round < 3; ++round) {
    for (const int64_t tokens : {140, 700, 1500}) {
      const Request request = prompt_of(tokens);
      EXPECT_EQ(run(*engine, request).tokens, run(*alone, request).tokens) << tokens;
    }
    settle(*engine);
    engine->reset_prefix_cache();
  }
  engine->shutdown();
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.pulls, stats.tiers.pulls);
  EXPECT_GT(stats.pulls + stats.pulls_refused, 0);
}

TEST_F(EngineTiers, TimesToLiveRunOnTheClockThatSkips) {
  const auto skipped = std::make_shared<std::atomic<double>>(0);
  EngineOptions o = with_store();
  o.cache_ttl_chat = o.kv_tiers.ttl_chat = 5000;  // far above what this takes
  o.cache_ttl_agent = 6000;
  o.time_skipped = [skipped] { return skipped->load(); };
  const auto engine = make(o);
  const Request request = prompt_of(700);
  run(*engine, request);
  settle(*engine);
  for (int use = 0; use < 2; ++use) {  // each use gives the pages their time anew, on the device and in the store
    *skipped += 3000;
    EXPECT_EQ(run(*engine, request).usage.cached_tokens, 5 * kPage) << use;
    while (engine->stats().tiers.tiers.front().pages_touched < 5 * (use + 1)) std::this_thread::yield();
  }
  *skipped += 3000;
  engine->reset_prefix_cache();
  EXPECT_EQ(run(*engine, request).from("local"), 5 * kPage);
  *skipped += 9000;
  const Whole late = run(*engine, request);
  EXPECT_EQ(late.usage.cached_tokens, 0);
  EXPECT_EQ(late.usage.tiers.miss, "expired");
}

TEST_F(EngineTiers, ClassesThatAreNotKeptAreNotWritten) {
  EngineOptions o = with_store();
  o.kv_tiers.ttl_chat = 0;
  Request agent = prompt_of(700, 2);
  agent.cache_class = "agent";
  {
    const auto engine = make(o);
    run(*engine, prompt_of(700));
    run(*engine, agent);
    EXPECT_EQ(engine->stats().tiers.pages_filtered, 5);
  }
  const auto engine = make(o);
  EXPECT_EQ(run(*engine, prompt_of(700)).usage.cached_tokens, 0);
  EXPECT_EQ(run(*engine, agent).from("local"), 5 * kPage);
}

TEST_F(EngineTiers, ManyAtOnceAndCancelledOnTheWay) {
  const int kPrompts = 6;
  std::vector<Whole> cold;
  {
    const auto engine = make(with_store());
    for (int i = 0; i < kPrompts; ++i) cold.push_back(run(*engine, prompt_of(300 + 90 * i, static_cast<uint64_t>(i))));
  }
  EngineOptions o = with_store();
  o.kv_tiers.host_bytes = int64_t{64} << 20;
  const auto engine = make(o);
  std::vector<RequestHandle> handles;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < kPrompts; ++i) {
      handles.push_back(*engine->submit(prompt_of(300 + 90 * i, static_cast<uint64_t>(i))));
      if ((round + i) % 3 == 0) handles.back().cancel();
    }
    engine->reset_prefix_cache();
  }
  for (size_t i = 0; i < handles.size(); ++i) {
    Whole got;
    while (const auto output = handles[i].next()) {
      got.tokens.insert(got.tokens.end(), output->tokens.begin(), output->tokens.end());
      got.finish = output->finish;
    }
    ASSERT_TRUE(got.finish.has_value());
    if (*got.finish == FinishReason::kCancelled) continue;
    EXPECT_EQ(got.tokens, cold[i % static_cast<size_t>(kPrompts)].tokens) << i;
  }
  engine->shutdown();
  EXPECT_EQ(engine->stats().running, 0);
  EXPECT_GT(engine->stats().pulled_tokens, 0);
}

// For people who want to know whether tiers pay, so without any.
TEST_F(EngineTiers, RevisitsAreRecordedAndGoOnOverARestart) {
  EngineOptions o = options();
  o.kv_tiers.intervals = directory_ + "/intervals.json";
  const auto saved = [&] {
    std::stringstream text;
    text << std::ifstream(o.kv_tiers.intervals).rdbuf();
    const auto recording = parse_recording(text.str());
    EXPECT_TRUE(recording.has_value()) << recording.error().message();
    return recording.value_or(RevisitRecording{});
  };
  Request request = prompt_of(700);
  {
    const auto engine = make(o);
    for (int i = 0; i < 3; ++i) run(*engine, request);
    request.cache_class = "agent";
    run(*engine, request);
    const IntervalsByClass now = engine->revisit_intervals();
    EXPECT_EQ(now[0].requests, 3);
    EXPECT_EQ(now[0].prompt_tokens, 3 * 700);
    EXPECT_EQ(now[0].uses, 3 * 5);
    EXPECT_EQ(now[0].revisits(), 3 * 5) << "the agent's use ended the last ones";
    EXPECT_EQ(now[1].uses, 5);
    EXPECT_EQ(now[1].revisits(), 0);
    EXPECT_GT(now[0].ended_seconds, 0);
    EXPECT_GE(now[0].span_seconds, now[0].ended_seconds / 5);
    engine->shutdown();
    const RevisitRecording recording = saved();
    EXPECT_EQ(recording.by_class[0].ended, now[0].ended);
    EXPECT_EQ(recording.costs.page_bytes, engine->model().page_bytes);
    EXPECT_EQ(recording.costs.page_positions, kPage);
    EXPECT_GT(recording.costs.prefill_tokens_per_second, 0);
  }
  {
    const auto engine = make(o);
    run(*engine, request);
  }
  EXPECT_EQ(saved().by_class[0].uses, 3 * 5);
  EXPECT_EQ(saved().by_class[1].uses, 2 * 5);
  EXPECT_EQ(saved().by_class[1].revisits(), 0) << "keys of an engine without a store are its own";

  std::ofstream(directory_ + "/mine") << "{}";
  o.kv_tiers.intervals = directory_ + "/mine";
  const auto refused = Engine::Create(o);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("/mine: format"), std::string::npos) << refused.error().message();
  EXPECT_EQ(std::filesystem::file_size(directory_ + "/mine"), 2u);
  o.kv_tiers.intervals = directory_ + "/none/intervals.json";
  const auto unwritable = Engine::Create(o);
  ASSERT_FALSE(unwritable.has_value());
  EXPECT_NE(unwritable.error().message().find("/none/intervals.json"), std::string::npos) << unwritable.error().message();
}

/// A store on a file system of its own, which gets into trouble and out of it.
class TroubledTiers : public EngineTiers, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder());
    disk_ = std::make_unique<Tmpfs>(folder(), kRoomy);
    if (!disk_->why_absent().empty()) GTEST_SKIP() << "may not mount a tmpfs: " << disk_->why_absent();
    for (uint64_t i = 0; i < 3; ++i) {
      requests_.push_back(prompt_of(700, 20 + i));
      cold_.push_back(run(*make(options()), requests_.back()).tokens);
    }
    start();
  }
  void start() {
    engine_.reset();
    EngineOptions o = options();
    (local() ? o.kv_tiers.store : o.kv_tiers.shared) = folder();
    engine_ = make(o);
  }
  static constexpr int64_t kRoomy = int64_t{1} << 30;  ///< RocksDB wants room for all its memtables before it goes on
  bool local() const { return std::string_view(GetParam()) == "local"; }
  std::string folder() const { return directory_ + "/disk"; }
  KvTierStats tier() const { return engine_->stats().tiers.tiers.at(0); }

  /// A right answer, and how many of its tokens came from the store.
  int64_t ask(size_t i) {
    engine_->reset_prefix_cache();
    const Whole got = run(*engine_, requests_[i]);
    EXPECT_EQ(got.tokens, cold_[i]) << "prompt " << i;
    return got.from(GetParam());
  }
  template <typename Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 1200 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return condition();
  }
  bool comes_from_the_store(size_t i) {
    return eventually([&] { return ask(i) == 5 * kPage; });
  }

  std::unique_ptr<Tmpfs> disk_;
  std::vector<Request> requests_;
  std::vector<std::vector<int32_t>> cold_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(TroubledTiers, AFullDisk) {
  ASSERT_TRUE(comes_from_the_store(0));
  // The log of a database has its room already, for far more pages than these.
  if (local()) GTEST_SKIP() << "see LocalStore.AFullDiskIsAnErrorUntilThereIsRoom";
  ASSERT_TRUE(disk_->leave_room(engine_->model().page_bytes));
  for (size_t i = 0; i < 3; ++i) ask(i);
  EXPECT_TRUE(eventually([&] { return tier().write_errors > 0; }));
  EXPECT_NE(tier().last_error.find(folder()), std::string::npos) << tier().last_error;
  ask(1);
  ASSERT_TRUE(disk_->leave_room(kRoomy));
  EXPECT_TRUE(comes_from_the_store(2)) << tier().last_error;
  EXPECT_TRUE(comes_from_the_store(1)) << tier().last_error;
}

TEST_P(TroubledTiers, AVanishedDisk) {
  ASSERT_TRUE(comes_from_the_store(0));
  const std::string elsewhere = directory_ + "/elsewhere";
  std::filesystem::create_directory(elsewhere);
  if (!disk_->move(elsewhere)) GTEST_SKIP() << "may not move a mount: " << std::strerror(errno);
  for (size_t i = 0; i < 3; ++i) ask(i);
  EXPECT_TRUE(std::filesystem::is_empty(folder())) << "nothing is made on the disk below";
  ASSERT_TRUE(disk_->move(folder()));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(comes_from_the_store(i)) << tier().last_error;
}

TEST_P(TroubledTiers, AReadOnlyDisk) {
  ASSERT_TRUE(comes_from_the_store(0));
  // A file system with files open for writing stays as it is; then the store keeps working.
  if (!disk_->set_read_only(true)) GTEST_SKIP() << "has files open for writing";
  EXPECT_TRUE(comes_from_the_store(0)) << "what is there can still be read";
  ask(1);
  EXPECT_TRUE(eventually([&] { return tier().write_errors > 0; }));
  ask(1);
  ASSERT_TRUE(disk_->set_read_only(false));
  EXPECT_TRUE(comes_from_the_store(1)) << tier().last_error;
}

INSTANTIATE_TEST_SUITE_P(All, TroubledTiers, ::testing::Values("local", "shared"),
                         [](const auto& param) { return std::string(param.param); });

TEST_F(EngineTiers, CreateNamesWhatIsWrong) {
  const auto error = [](const EngineOptions& o) {
    const auto engine = Engine::Create(o);
    return engine ? std::string("no error") : engine.error().message();
  };
  EngineOptions o = with_store();
  const auto first = make(o);
  EXPECT_NE(error(o).find(o.kv_tiers.store), std::string::npos) << "the folder is another engine's: " << error(o);
  std::ofstream(directory_ + "/file") << "x";
  o.kv_tiers.store = directory_ + "/file";
  EXPECT_NE(error(o).find("/file"), std::string::npos) << error(o);
  o = with_store();
  o.kv_tiers.secret_file = directory_ + "/none";
  o.kv_tiers.store = directory_ + "/second";
  EXPECT_NE(error(o).find("/none"), std::string::npos) << error(o);
  o = options();
  o.kv_tiers.host_bytes = 100;
  EXPECT_NE(error(o).find("100"), std::string::npos) << error(o);
  o.enable_prefix_caching = false;
  EXPECT_NE(error(o).find("enable_prefix_caching"), std::string::npos) << error(o);
}

}  // namespace
}  // namespace deepinfer::testing
