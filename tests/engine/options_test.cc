#include "deepinfer/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>

#include "deepinfer/engine.h"
#include "telemetry/trace_recorder.h"

namespace deepinfer {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr const char* kMode = "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE";
constexpr const char* kKeep = "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS";
constexpr const char* kNextn = "DEEPINFER_USE_NEXTN_DECODE";
constexpr const char* kVarlen = "DEEPINFER_ENABLE_MTP_VARLEN";

struct Case {
  const char* message;  ///< its beginning
  std::function<void(EngineOptions&)> change;
};

EngineOptions good() {
  EngineOptions options;
  options.model = "somewhere";
  return options;
}

TEST(EngineOptions, DefaultsAndLimitsAreValid) {
  EXPECT_TRUE(good().validate().ok());
  const Case cases[] = {
      {"backend", [](auto& o) { o.backend = "reference"; }},
      {"threads", [](auto& o) { o.threads = 1024; }},
      {"max_num_seqs", [](auto& o) { o.max_num_seqs = 1; }},
      {"max_num_seqs", [](auto& o) { o.max_num_seqs = 65536; }},
      {"max_num_batched_tokens", [](auto& o) { o.max_num_batched_tokens = o.max_num_seqs; }},
      {"max_num_batched_tokens", [](auto& o) { o.max_num_batched_tokens = 1 << 20; }},
      {"max_model_len", [](auto& o) { o.max_model_len = int64_t{1} << 40; }},
      {"kv_cache_memory", [](auto& o) { o.kv_cache_memory = int64_t{1} << 50; }},
      {"cache_ttl", [](auto& o) { o.cache_ttl_chat = o.cache_ttl_agent = 0; }},
      {"cache_ttl", [](auto& o) { o.cache_ttl_chat = o.cache_ttl_agent = 1e9; }},
      {"cache_max_pinned_fraction", [](auto& o) { o.cache_max_pinned_fraction = 0; }},
      {"cache_max_pinned_fraction", [](auto& o) { o.cache_max_pinned_fraction = 1; }},
      {"window_snapshot_memory", [](auto& o) { o.window_snapshot_memory = 0; }},
      {"window_snapshot_ttl", [](auto& o) { o.window_snapshot_ttl = 0; }},
      {"kv_tiers", [](auto& o) { o.kv_tiers.host_bytes = int64_t{1} << 50; }},
      {"kv_tiers", [](auto& o) { o.kv_tiers.store_bytes = 1 << 20; }},
      {"kv_tiers", [](auto& o) { o.kv_tiers.ttl_chat = o.kv_tiers.ttl_agent = o.kv_tiers.ttl_pinned = 0; }},
      {"kv_tiers", [](auto& o) { o.kv_tiers.ttl_pinned = 10 * 365 * 86400.0; }},
      {"kv_tiers", [](auto& o) { o.kv_tiers.match_limit = o.kv_tiers.pull_limit = 1e-4; }},
      {"decoder_keep_tokens", [](auto& o) { o.decoder_keep_tokens = int64_t{1} << 40; }},
      {"num_speculative_tokens", [](auto& o) { o.num_speculative_tokens = 0; }},
      {"num_speculative_tokens", [](auto& o) { o.num_speculative_tokens = 64; }},
      {"max_queued_requests", [](auto& o) { o.max_queued_requests = 1; }},
      {"priority_interval", [](auto& o) { o.priority_interval = 0; }},
  };
  for (const Case& c : cases) {
    EngineOptions options = good();
    c.change(options);
    const Status status = options.validate();
    EXPECT_TRUE(status.ok()) << c.message << ": " << status.message();
  }
}

TEST(EngineOptions, TiersNeedWhatTheyStandOn) {
  EngineOptions options = good();
  options.kv_tiers.store = "somewhere";
  options.kv_tiers.secret_file = "secret";
  EXPECT_TRUE(options.validate().ok()) << options.validate().message();
  options.enable_prefix_caching = false;
  options.kv_tiers.intervals = "file";
  EXPECT_TRUE(options.validate().message().starts_with("enable_prefix_caching is false, kv_tiers need it"))
      << options.validate().message();
  options = good();
  options.kv_tiers.directory = "redis://host";
  EXPECT_TRUE(options.validate().message().starts_with("kv_tiers.directory is set")) << options.validate().message();
  options.kv_tiers.shared = "folder";
  EXPECT_TRUE(options.validate().ok()) << options.validate().message();
  options = good();
  options.kv_tiers.host_bytes = 1 << 20;
  options.kv_tiers.secret_file = "secret";
  EXPECT_TRUE(options.validate().message().starts_with("kv_tiers.secret_file is \"secret\"")) << options.validate().message();
  options = good();
  options.kv_tiers.weights_check = "most";
  EXPECT_EQ(options.validate().message(), "kv_tiers.weights_check is \"most\", must be sample or full");
}

TEST(EngineOptions, SkippedTimeAndATraceExcludeEachOther) {
  EngineOptions options = good();
  options.time_skipped = [] { return 1.0; };
  EXPECT_TRUE(options.validate().ok()) << options.validate().message();
  options.trace = std::make_shared<telemetry::TraceRecorder>();
  EXPECT_TRUE(options.validate().message().starts_with("time_skipped:")) << options.validate().message();
}

TEST(EngineOptions, EveryFieldIsChecked) {
  EXPECT_EQ(EngineOptions{}.validate().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(EngineOptions{}.validate().message(), "model: no checkpoint folder given");
  EngineOptions options = good();
  options.backend = "gpu";
  EXPECT_EQ(options.validate().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(options.validate().message(), "backend is \"gpu\", must be cpu, reference, cuda or auto");
  const Case cases[] = {
      {"threads is -1, must be from 0 to 1024", [](auto& o) { o.threads = -1; }},
      {"threads is 1025", [](auto& o) { o.threads = 1025; }},
      {"max_num_seqs is 0, must be from 1 to 65536", [](auto& o) { o.max_num_seqs = 0; }},
      {"max_num_seqs is 65537", [](auto& o) { o.max_num_seqs = 65537; }},
      {"max_num_seqs is -9223372036854775808", [](auto& o) { o.max_num_seqs = std::numeric_limits<int64_t>::min(); }},
      {"max_num_batched_tokens is -1, must be from 0 to 1048576", [](auto& o) { o.max_num_batched_tokens = -1; }},
      {"max_num_batched_tokens is 1048577", [](auto& o) { o.max_num_batched_tokens = (1 << 20) + 1; }},
      {"max_num_batched_tokens is 255, must be at least max_num_seqs, 256", [](auto& o) { o.max_num_batched_tokens = 255; }},
      {"kv_tiers.host_bytes is -1, must be from 0", [](auto& o) { o.kv_tiers.host_bytes = -1; }},
      {"kv_tiers.store_bytes is 1048575, must be from 1048576", [](auto& o) { o.kv_tiers.store_bytes = (1 << 20) - 1; }},
      {"kv_tiers.shared_bytes is -1, must be from 0", [](auto& o) { o.kv_tiers.shared_bytes = -1; }},
      {"kv_tiers.ttl_chat is -1, must be from 0 to 315360000", [](auto& o) { o.kv_tiers.ttl_chat = -1; }},
      {"kv_tiers.ttl_agent is nan", [](auto& o) { o.kv_tiers.ttl_agent = kNan; }},
      {"kv_tiers.ttl_pinned is inf", [](auto& o) { o.kv_tiers.ttl_pinned = kInf; }},
      {"kv_tiers.match_limit is 0, must be from 0.0001 to 60", [](auto& o) { o.kv_tiers.match_limit = 0; }},
      {"kv_tiers.pull_limit is 4000, must be from 0.0001 to 3600", [](auto& o) { o.kv_tiers.pull_limit = 4000; }},
      {"max_model_len is -1", [](auto& o) { o.max_model_len = -1; }},
      {"max_model_len is 9223372036854775807", [](auto& o) { o.max_model_len = kHuge; }},
      {"gpu_memory_utilization is 0,", [](auto& o) { o.gpu_memory_utilization = 0; }},
      {"gpu_memory_utilization is 1.5", [](auto& o) { o.gpu_memory_utilization = 1.5; }},
      {"kv_cache_memory is -1", [](auto& o) { o.kv_cache_memory = -1; }},
      {"kv_cache_memory is 9223372036854775807", [](auto& o) { o.kv_cache_memory = kHuge; }},
      {"cache_ttl_chat is nan", [](auto& o) { o.cache_ttl_chat = kNan; }},
      {"cache_ttl_chat is -1", [](auto& o) { o.cache_ttl_chat = -1; }},
      {"cache_ttl_chat is inf", [](auto& o) { o.cache_ttl_chat = kInf; }},
      {"cache_ttl_agent is nan", [](auto& o) { o.cache_ttl_agent = kNan; }},
      {"cache_ttl_agent is 599, must be from 600 to", [](auto& o) { o.cache_ttl_agent = 599; }},
      {"cache_ttl_agent is inf", [](auto& o) { o.cache_ttl_agent = kInf; }},
      {"cache_max_pinned_fraction is nan", [](auto& o) { o.cache_max_pinned_fraction = kNan; }},
      {"cache_max_pinned_fraction is -0.1, must be from 0 to 1", [](auto& o) { o.cache_max_pinned_fraction = -0.1; }},
      {"cache_max_pinned_fraction is 1.5", [](auto& o) { o.cache_max_pinned_fraction = 1.5; }},
      {"window_snapshot_memory is -1", [](auto& o) { o.window_snapshot_memory = -1; }},
      {"window_snapshot_ttl is nan", [](auto& o) { o.window_snapshot_ttl = kNan; }},
      {"window_snapshot_ttl is -5", [](auto& o) { o.window_snapshot_ttl = -5; }},
      {"decoder_keep_tokens is -1", [](auto& o) { o.decoder_keep_tokens = -1; }},
      {"num_speculative_tokens is -2, must be from -1 to 64", [](auto& o) { o.num_speculative_tokens = -2; }},
      {"num_speculative_tokens is 65", [](auto& o) { o.num_speculative_tokens = 65; }},
      {"max_queued_requests is 0, must be from 1", [](auto& o) { o.max_queued_requests = 0; }},
      {"max_queued_requests is 9223372036854775807", [](auto& o) { o.max_queued_requests = kHuge; }},
      {"priority_interval is nan", [](auto& o) { o.priority_interval = kNan; }},
      {"priority_interval is -1", [](auto& o) { o.priority_interval = -1; }},
      {"priority_interval is inf", [](auto& o) { o.priority_interval = kInf; }},
  };
  for (const Case& c : cases) {
    EngineOptions bad = good();
    c.change(bad);
    const Status status = bad.validate();
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << c.message;
    EXPECT_EQ(status.message().rfind(c.message, 0), 0u) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

TEST(EngineOptions, UnknownFeaturesAreNamed) {
  EngineOptions bad = good();
  bad.cuda_features = "fused,turbo";
  const Status status = bad.validate();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("cuda_features: \"turbo\" is none of", 0), 0u) << status.message();
}

TEST(EngineOptions, CreateRefusesBadOptionsBeforeItLoadsAnything) {
  EngineOptions options;
  options.model = "/nonexistent";
  options.max_num_seqs = 0;
  const auto engine = Engine::Create(options);
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().code(), StatusCode::kOutOfRange);
}

class EngineOptionsEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : {kMode, kKeep, kNextn, kVarlen}) ::unsetenv(name);
  }
};

TEST_F(EngineOptionsEnvironment, UnsetChangesNothing) {
  EngineOptions options = good();
  options.decoder_replay = DecoderReplay::kOff;
  options.decoder_keep_tokens = 77;
  options.num_speculative_tokens = 3;
  options.speculation = SpeculationMode::kFixed;
  EXPECT_TRUE(options.apply_environment().ok());
  EXPECT_EQ(options.speculation, SpeculationMode::kFixed);
  EXPECT_EQ(options.decoder_replay, DecoderReplay::kOff);
  EXPECT_EQ(options.decoder_keep_tokens, 77);
  EXPECT_EQ(options.num_speculative_tokens, 3);
}

TEST_F(EngineOptionsEnvironment, SetValuesAreTaken) {
  ::setenv(kMode, "off", 1);
  ::setenv(kKeep, "200", 1);
  ::setenv(kNextn, "0", 1);
  ::setenv(kVarlen, "1", 1);
  EngineOptions options = good();
  EXPECT_TRUE(options.apply_environment().ok());
  EXPECT_EQ(options.decoder_replay, DecoderReplay::kOff);
  EXPECT_EQ(options.decoder_keep_tokens, 200);
  EXPECT_EQ(options.num_speculative_tokens, 0);
  EXPECT_EQ(options.speculation, SpeculationMode::kVariable);
  ::setenv(kVarlen, "0", 1);
  ::setenv(kMode, "compact", 1);
  ::setenv(kKeep, "0", 1);
  ::setenv(kNextn, "64", 1);
  EXPECT_TRUE(options.apply_environment().ok());
  EXPECT_EQ(options.decoder_replay, DecoderReplay::kCompact);
  EXPECT_EQ(options.decoder_keep_tokens, 0);
  EXPECT_EQ(options.num_speculative_tokens, 64);
  EXPECT_EQ(options.speculation, SpeculationMode::kOff);
}

TEST(SpeculativeConfig, IsRead) {
  EngineOptions options = good();
  EXPECT_TRUE(options.apply_speculative_config(R"({"method":"dspark"})").ok());
  EXPECT_EQ(options.speculation, SpeculationMode::kVariable);
  EXPECT_EQ(options.num_speculative_tokens, -1);
  EXPECT_TRUE(options.apply_speculative_config(R"({"method": "dspark", "num_speculative_tokens": 3, "mode": "fixed"})").ok());
  EXPECT_EQ(options.speculation, SpeculationMode::kFixed);
  EXPECT_EQ(options.num_speculative_tokens, 3);
  EXPECT_TRUE(options.apply_speculative_config(R"({"method":"dspark","num_speculative_tokens":0,"mode":"fixed"})").ok());
  EXPECT_EQ(options.speculation, SpeculationMode::kOff);
  EXPECT_TRUE(options.apply_speculative_config(R"({"method":"dspark","mode":"off"})").ok());
  EXPECT_EQ(options.speculation, SpeculationMode::kOff);
}

TEST(SpeculativeConfig, BadOnesAreNamedAndChangeNothing) {
  const std::pair<const char*, const char*> bad[] = {
      {"", "JSON object"},
      {"[]", "JSON object"},
      {"{", "JSON object"},
      {"{}", "method is missing"},
      {R"({"method":"eagle"})", "eagle"},
      {R"({"method":7})", "7"},
      {R"({"num_speculative_tokens":3})", "method is missing"},
      {R"({"method":"dspark","num_speculative_tokens":-1})", "-1"},
      {R"({"method":"dspark","num_speculative_tokens":65})", "65"},
      {R"({"method":"dspark","num_speculative_tokens":1e30})", "num_speculative_tokens"},
      {R"({"method":"dspark","num_speculative_tokens":"5"})", "5"},
      {R"({"method":"dspark","mode":"sometimes"})", "sometimes"},
      {R"({"method":"dspark","mode":1})", "1"},
      {R"({"method":"dspark","model":"x"})", "model"}};
  for (const auto& [text, named] : bad) {
    EngineOptions options = good();
    const Status status = options.apply_speculative_config(text);
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_NE(status.message().find(named), std::string::npos) << status.message();
    EXPECT_EQ(options.speculation, SpeculationMode::kOff) << text;
    EXPECT_EQ(options.num_speculative_tokens, -1) << text;
  }
}

TEST_F(EngineOptionsEnvironment, BadValuesNameTheVariable) {
  struct Bad {
    const char* name;
    const char* value;
    StatusCode code;
  };
  const Bad cases[] = {
      {kMode, "", StatusCode::kInvalidArgument},      {kMode, "Compact", StatusCode::kInvalidArgument},
      {kMode, "off ", StatusCode::kInvalidArgument},  {kMode, "1", StatusCode::kInvalidArgument},
      {kKeep, "", StatusCode::kInvalidArgument},      {kKeep, "many", StatusCode::kInvalidArgument},
      {kKeep, "12x", StatusCode::kInvalidArgument},   {kKeep, " 12", StatusCode::kInvalidArgument},
      {kKeep, "1.5", StatusCode::kInvalidArgument},   {kKeep, "99999999999999999999", StatusCode::kInvalidArgument},
      {kKeep, "-1", StatusCode::kOutOfRange},         {kKeep, "1099511627777", StatusCode::kOutOfRange},
      {kNextn, "true", StatusCode::kInvalidArgument}, {kNextn, "-1", StatusCode::kOutOfRange},
      {kNextn, "65", StatusCode::kOutOfRange},        {kVarlen, "yes", StatusCode::kInvalidArgument},
  };
  for (const Bad& bad : cases) {
    clear();
    ::setenv(bad.name, bad.value, 1);
    EngineOptions options = good();
    const Status status = options.apply_environment();
    EXPECT_EQ(status.code(), bad.code) << bad.name << "=" << bad.value;
    EXPECT_EQ(status.message().rfind(bad.name, 0), 0u) << status.message();
    EXPECT_NE(status.message().find(bad.value), std::string::npos) << status.message();
    EXPECT_EQ(options.decoder_replay, DecoderReplay::kCompact);
    EXPECT_EQ(options.decoder_keep_tokens, 0);
    EXPECT_EQ(options.num_speculative_tokens, -1);
  }
}

TEST(EngineNames, RoundTrips) {
  for (const ReplayMode mode : {ReplayMode::kBounded, ReplayMode::kExact})
    EXPECT_EQ(parse_replay_mode(replay_mode_name(mode)).value(), mode);
  for (const DecoderReplay mode : {DecoderReplay::kCompact, DecoderReplay::kOff})
    EXPECT_EQ(parse_decoder_replay(decoder_replay_name(mode)).value(), mode);
  EXPECT_EQ(replay_mode_name(ReplayMode::kBounded), "bounded");
  EXPECT_EQ(replay_mode_name(ReplayMode::kExact), "exact");
  EXPECT_EQ(decoder_replay_name(DecoderReplay::kCompact), "compact");
  EXPECT_EQ(decoder_replay_name(DecoderReplay::kOff), "off");
  for (const char* text : {"", "Exact", "exact ", "EXACT", "off"}) {
    const auto mode = parse_replay_mode(text);
    ASSERT_FALSE(mode.has_value()) << text;
    EXPECT_EQ(mode.error().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(mode.error().message(), "replay mode is \"" + std::string(text) + "\", must be bounded or exact");
  }
  for (const char* text : {"", "bounded", "Off"}) {
    const auto mode = parse_decoder_replay(text);
    ASSERT_FALSE(mode.has_value()) << text;
    EXPECT_EQ(mode.error().message(), "decoder replay is \"" + std::string(text) + "\", must be compact or off");
  }
}

TEST(EngineNames, FinishReasonsAndMisses) {
  EXPECT_EQ(finish_reason_name(FinishReason::kStop), "stop");
  EXPECT_EQ(finish_reason_name(FinishReason::kLength), "length");
  EXPECT_EQ(finish_reason_name(FinishReason::kCancelled), "cancelled");
  EXPECT_EQ(finish_reason_name(FinishReason::kDeadline), "deadline");
  EXPECT_EQ(finish_reason_name(FinishReason::kError), "error");
  EXPECT_EQ(cache_miss_name(CacheMiss::kNone), "none");
  EXPECT_EQ(cache_miss_name(CacheMiss::kTooShort), "too_short");
  EXPECT_EQ(cache_miss_name(CacheMiss::kNotCached), "not_cached");
  EXPECT_EQ(cache_miss_name(CacheMiss::kInexact), "inexact");
  EXPECT_EQ(cache_miss_name(CacheMiss::kDisabled), "disabled");
}

}  // namespace
}  // namespace deepinfer
