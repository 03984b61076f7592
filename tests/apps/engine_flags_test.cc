#include "engine_flags.h"

#include <gtest/gtest.h>

namespace deepinfer::cli {
namespace {

EngineOptions parse(std::vector<std::string> arguments, EngineOptions base = {}) {
  CLI::App app;
  EngineFlags flags;
  flags.add_to(app);
  arguments.insert(arguments.begin(), {"-m", "models/x"});
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return flags.to_options(std::move(base));
}

TEST(EngineFlags, WhatIsNotGivenStays) {
  EngineOptions base;
  base.max_num_seqs = 7;
  base.replay = ReplayMode::kExact;
  base.async_scheduling = false;
  base.enable_prefix_caching = false;
  const EngineOptions o = parse({}, base);
  EXPECT_EQ(o.model, "models/x");
  EXPECT_EQ(o.max_num_seqs, 7);
  EXPECT_EQ(o.replay, ReplayMode::kExact);
  EXPECT_FALSE(o.async_scheduling);
  EXPECT_FALSE(o.enable_prefix_caching);
  EXPECT_EQ(o.backend, "cpu");
  EXPECT_EQ(o.threads, 0);
}

TEST(EngineFlags, EveryFlagArrives) {
  const EngineOptions o = parse({"--backend",
                                 "reference",
                                 "--threads",
                                 "3",
                                 "--max-num-seqs",
                                 "4",
                                 "--max-num-batched-tokens",
                                 "64",
                                 "--max-model-len",
                                 "2048",
                                 "--kv-cache-memory",
                                 "512MiB",
                                 "--gpu-memory-utilization",
                                 "0.75",
                                 "--engram-memory",
                                 "host",
                                 "--cuda-features",
                                 "overlap,fused",
                                 "--no-cuda-graphs",
                                 "--no-enable-prefix-caching",
                                 "--cache-ttl-chat",
                                 "1.5",
                                 "--cache-ttl-agent",
                                 "20",
                                 "--window-snapshot-memory",
                                 "0",
                                 "--window-snapshot-ttl",
                                 "3",
                                 "--kv-host-bytes",
                                 "2GiB",
                                 "--kv-store",
                                 "some/dir",
                                 "--kv-store-bytes",
                                 "3MiB",
                                 "--kv-shared",
                                 "shared/dir",
                                 "--kv-shared-bytes",
                                 "5GiB",
                                 "--no-kv-cut-over",
                                 "--kv-directory",
                                 "redis://host",
                                 "--kv-secret-file",
                                 "secret",
                                 "--kv-weights-check",
                                 "full",
                                 "--kv-intervals",
                                 "intervals.json",
                                 "--kv-ttl-chat",
                                 "0",
                                 "--kv-ttl-agent",
                                 "11",
                                 "--kv-ttl-pinned",
                                 "12",
                                 "--kv-match-limit",
                                 "0.25",
                                 "--kv-pull-limit",
                                 "7",
                                 "--replay",
                                 "exact",
                                 "--decoder-replay",
                                 "off",
                                 "--decoder-keep-tokens",
                                 "99",
                                 "--speculative-config",
                                 R"({"method":"dspark","num_speculative_tokens":4,"mode":"fixed"})",
                                 "--no-async",
                                 "--max-queued-requests",
                                 "12"});
  EXPECT_EQ(o.backend, "reference");
  EXPECT_EQ(o.threads, 3);
  EXPECT_EQ(o.max_num_seqs, 4);
  EXPECT_EQ(o.max_num_batched_tokens, 64);
  EXPECT_EQ(o.max_model_len, 2048);
  EXPECT_EQ(o.kv_cache_memory, int64_t{512} << 20);
  EXPECT_FALSE(o.enable_prefix_caching);
  EXPECT_EQ(o.cache_ttl_chat, 1.5);
  EXPECT_EQ(o.cache_ttl_agent, 20);
  EXPECT_EQ(o.window_snapshot_memory, 0);
  EXPECT_EQ(o.window_snapshot_ttl, 3);
  EXPECT_EQ(o.kv_tiers.host_bytes, int64_t{2} << 30);
  EXPECT_EQ(o.kv_tiers.store, "some/dir");
  EXPECT_EQ(o.kv_tiers.store_bytes, 3 << 20);
  EXPECT_EQ(o.kv_tiers.shared, "shared/dir");
  EXPECT_EQ(o.kv_tiers.shared_bytes, int64_t{5} << 30);
  EXPECT_FALSE(o.kv_tiers.cut_over);
  EXPECT_EQ(o.kv_tiers.directory, "redis://host");
  EXPECT_EQ(o.kv_tiers.secret_file, "secret");
  EXPECT_EQ(o.kv_tiers.weights_check, "full");
  EXPECT_EQ(o.kv_tiers.intervals, "intervals.json");
  EXPECT_EQ(o.kv_tiers.ttl_chat, 0);
  EXPECT_EQ(o.kv_tiers.ttl_agent, 11);
  EXPECT_EQ(o.kv_tiers.ttl_pinned, 12);
  EXPECT_EQ(o.kv_tiers.match_limit, 0.25);
  EXPECT_EQ(o.kv_tiers.pull_limit, 7);
  EXPECT_EQ(o.replay, ReplayMode::kExact);
  EXPECT_EQ(o.decoder_replay, DecoderReplay::kOff);
  EXPECT_EQ(o.decoder_keep_tokens, 99);
  EXPECT_EQ(o.speculation, SpeculationMode::kFixed);
  EXPECT_EQ(o.num_speculative_tokens, 4);
  EXPECT_FALSE(o.async_scheduling);
  EXPECT_EQ(o.gpu_memory_utilization, 0.75);
  EXPECT_EQ(o.engram_memory, "host");
  EXPECT_FALSE(o.cuda_graphs);
  EXPECT_EQ(o.cuda_features, "overlap,fused");
  EXPECT_EQ(o.max_queued_requests, 12);
}

TEST(EngineFlags, RangesNameTheFlag) {
  const std::pair<const char*, const char*> bad[] = {{"--backend", "tpu"},
                                                     {"--threads", "0"},
                                                     {"--max-num-seqs", "0"},
                                                     {"--max-num-batched-tokens", "0"},
                                                     {"--max-model-len", "0"},
                                                     {"--kv-cache-memory", "0"},
                                                     {"--kv-cache-memory", "4XB"},
                                                     {"--gpu-memory-utilization", "0"},
                                                     {"--gpu-memory-utilization", "1.1"},
                                                     {"--engram-memory", "disk"},
                                                     {"--cache-ttl-chat", "-1"},
                                                     {"--cache-ttl-agent", "nan"},
                                                     {"--window-snapshot-ttl", "inf"},
                                                     {"--replay", "some"},
                                                     {"--decoder-replay", "on"},
                                                     {"--decoder-keep-tokens", "0"},
                                                     {"--max-queued-requests", "0"},
                                                     {"--window-snapshot-memory", "x"},
                                                     {"--kv-host-bytes", "1e9"},
                                                     {"--kv-store-bytes", "1KiB"},
                                                     {"--kv-ttl-chat", "-1"},
                                                     {"--kv-ttl-agent", "1e12"},
                                                     {"--kv-match-limit", "0"},
                                                     {"--kv-pull-limit", "nan"}};
  for (const auto& [flag, value] : bad) {
    try {
      parse({flag, value});
      ADD_FAILURE() << flag << " " << value;
    } catch (const CLI::ParseError& error) {
      const std::string message = error.what();
      // A flag with several names is called by all of them.
      const std::string names = message.substr(0, message.find(": is "));
      EXPECT_TRUE(names == flag || (names == "--device/--backend" && names.ends_with(flag))) << message;
      EXPECT_NE(message.find(value), std::string::npos) << message;
    }
  }
}

TEST(EngineFlags, BadSpeculativeConfigIsRefused) {
  try {
    parse({"--speculative-config", R"({"method":"eagle"})"});
    ADD_FAILURE();
  } catch (const CLI::ParseError& error) {
    EXPECT_NE(std::string(error.what()).find("--speculative-config"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("eagle"), std::string::npos) << error.what();
  }
}

TEST(EngineFlags, EachUseHasItsOwn) {
  const auto knows = [](EngineUse use, const char* flag) {
    CLI::App app;
    EngineFlags flags;
    flags.add_to(app, use);
    return app.get_option_no_throw(flag) != nullptr;
  };
  for (const EngineUse use : {EngineUse::kServing, EngineUse::kSuite, EngineUse::kPrompt}) {
    for (const char* flag : {"--model", "--replay", "--decoder-replay", "--kv-cache-memory", "--max-num-batched-tokens"})
      EXPECT_TRUE(knows(use, flag)) << flag;
  }
  EXPECT_TRUE(knows(EngineUse::kPrompt, "--prefill-chunk"));
  EXPECT_FALSE(knows(EngineUse::kServing, "--prefill-chunk"));
  EXPECT_FALSE(knows(EngineUse::kPrompt, "--window-snapshot-memory"));
  EXPECT_TRUE(knows(EngineUse::kSuite, "--window-snapshot-memory"));
  EXPECT_FALSE(knows(EngineUse::kSuite, "--cache-ttl-chat"));
  EXPECT_TRUE(knows(EngineUse::kPrompt, "--kv-store"));
  EXPECT_FALSE(knows(EngineUse::kPrompt, "--kv-host-bytes")) << "one prompt fills no memory for another";
  EXPECT_FALSE(knows(EngineUse::kSuite, "--kv-ttl-chat"));
}

}  // namespace
}  // namespace deepinfer::cli
