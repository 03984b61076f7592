#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "deepinfer/options.h"

namespace deepinfer::cli {

/// What an engine is for. A command has the flags that mean something there.
enum class EngineUse : uint8_t {
  kServing,  ///< requests come at any time: all flags
  kSuite,    ///< many prompts that are known beforehand: nothing waits or grows old
  kPrompt,   ///< one prompt: nothing is shared either
};

/// Flags that every command with an engine shares. What is not given stays as it is in the base.
struct EngineFlags {
  std::string model;
  std::optional<std::string> backend;
  std::optional<int> threads;
  std::optional<int64_t> max_num_seqs;
  std::optional<int64_t> max_num_batched_tokens;
  std::optional<int64_t> max_model_len;
  std::optional<int64_t> kv_cache_memory;
  std::optional<double> gpu_memory_utilization;
  std::optional<std::string> engram_memory;
  std::optional<std::string> cuda_features;
  bool no_cuda_graphs = false;
  bool no_enable_prefix_caching = false;
  std::optional<double> cache_ttl_chat;
  std::optional<double> cache_ttl_agent;
  std::optional<int64_t> window_snapshot_memory;
  std::optional<double> window_snapshot_ttl;
  std::optional<int64_t> kv_host_bytes;
  std::optional<std::string> kv_store;
  std::optional<int64_t> kv_store_bytes;
  std::optional<std::string> kv_shared;
  std::optional<int64_t> kv_shared_bytes;
  std::optional<std::string> kv_directory;
  std::optional<std::string> kv_secret_file;
  std::optional<std::string> kv_weights_check;
  std::optional<std::string> kv_intervals;
  std::optional<double> kv_ttl_chat, kv_ttl_agent, kv_ttl_pinned;
  std::optional<double> kv_match_limit, kv_pull_limit;
  bool no_kv_cut_over = false;
  std::optional<std::string> replay;
  std::optional<std::string> decoder_replay;
  std::optional<int64_t> decoder_keep_tokens;
  std::optional<std::string> speculative_config;
  bool no_async = false;
  std::optional<int64_t> max_queued_requests;

  /// The flags keep references to this object.
  void add_to(CLI::App& command, EngineUse use = EngineUse::kServing);
  /// The flags over `base`, which is where the environment's settings belong. Every value was checked when it was parsed.
  EngineOptions to_options(EngineOptions base = {}) const;

 private:
  void add_gpu_flags(CLI::App& command);
  void add_cache_flags(CLI::App& command, EngineUse use);
  void add_tier_flags(CLI::App& command, EngineUse use);
  void take_tiers(KvTierOptions& tiers) const;
};

}  // namespace deepinfer::cli
