#include "engine_flags.h"

#include "flag_values.h"

namespace deepinfer::cli {
namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxSequences = int64_t{1} << 16;
constexpr int64_t kMaxTokens = int64_t{1} << 20;  // EngineOptions::validate
constexpr int64_t kMaxQueued = int64_t{1} << 24;
constexpr int64_t kMaxMemory = int64_t{1} << 46;  // 64 TiB
constexpr double kMaxTtl = 1e9;
constexpr int64_t kMinStore = int64_t{1} << 20;
constexpr double kMaxStoreTtl = 10 * 365 * 86400.0;  // kMaxKvTtlSeconds
constexpr double kLeastLimit = 1e-4;

template <typename T>
void take(const std::optional<T>& given, T& target) {
  if (given.has_value()) target = *given;
}

}  // namespace

void EngineFlags::add_to(CLI::App& c, EngineUse use) {
  const auto in = [](CLI::Option* option, const char* group) { option->group(group); };
  const bool serving = use == EngineUse::kServing;
  const bool many = use != EngineUse::kPrompt;

  in(c.add_option("-m,--model", model, "Checkpoint folder: config.json, tokenizer.json, safetensors")
         ->required()
         ->type_name("DIR"),
     "Model");
  in(add_choice(c, "--device,--backend", backend, {"cpu", "cuda", "auto", "reference"},
                "cpu; cuda: a GPU of compute capability 9.0; auto: that GPU if there is one; or reference: plain loops, slow"),
     "Model");
  in(add_whole(c, "-t,--threads", threads, 1, kMaxThreads, "Threads (default: all that the process may use)"), "Model");
  in(add_whole(c, "--max-model-len", max_model_len, 1, kMaxTokens,
               "Prompt and answer together (default: max_position_embeddings)"),
     "Model");

  const char* const schedule = "Scheduling";
  if (many) {
    const std::string most = serving ? "256" : "16";
    in(add_whole(c, "--max-num-seqs", max_num_seqs, 1, kMaxSequences, "Sequences that run at once (default: " + most + ")"),
       schedule);
    in(add_whole(c, "--max-num-batched-tokens", max_num_batched_tokens, 1, kMaxTokens,
                 "Rows of one step (default: 512, or --max-num-seqs if that is more)"),
       schedule);
  } else {
    in(add_whole(c, "--max-num-batched-tokens,--prefill-chunk", max_num_batched_tokens, 1, kMaxTokens,
                 "Prompt tokens per step (default: 512)"),
       schedule);
  }
  if (serving) {
    in(add_whole(c, "--max-queued-requests", max_queued_requests, 1, kMaxQueued,
                 "Waiting requests, beyond which new ones are refused (default: 8192)"),
       schedule);
  }
  in(c.add_option(
          "--speculative-config", speculative_config,
          R"(Speculative decoding, as {"method":"dspark","num_speculative_tokens":5,"mode":"variable"}; mode: fixed, variable or off)")
         ->type_name("JSON")
         ->check([](const std::string& text) {
           const Status status = EngineOptions{}.apply_speculative_config(text);
           return status.ok() ? std::string() : std::string(status.message());
         }),
     schedule);
  in(c.add_flag("--no-async", no_async, "Plan and publish between steps, not during them"), schedule);
  add_gpu_flags(c);
  add_cache_flags(c, use);
  add_tier_flags(c, use);
}

void EngineFlags::add_gpu_flags(CLI::App& c) {
  const auto in = [](CLI::Option* option) { option->group("GPU"); };
  in(add_real(c, "--gpu-memory-utilization", gpu_memory_utilization, 0.01, 1,
              "Part of its memory for weights, workspace, sequences and pages together (default: 0.9)", "X"));
  in(add_choice(c, "--engram-memory", engram_memory, {"auto", "device", "host"},
                "Where Engram tables lie; auto: on the device if they fit into half of it with the weights (default: auto)"));
  in(c.add_option("--cuda-features", cuda_features,
                  "Faster ways of its kernels, the same results: names, all or none (default: all)")
         ->type_name("LIST"));
  in(c.add_flag("--no-cuda-graphs,--enforce-eager", no_cuda_graphs, "Launch every step anew instead of replaying recorded ones"));
}

void EngineFlags::add_cache_flags(CLI::App& c, EngineUse use) {
  const bool serving = use == EngineUse::kServing;
  const auto in = [](CLI::Option* option) { option->group("Cache"); };
  in(add_size(c, "--kv-cache-memory", kv_cache_memory, 1, kMaxMemory,
              "Memory of pages, as 512MiB or 4GiB (default: a quarter of the memory, at most 4GiB; on a GPU what is left)"));
  if (serving) {
    in(c.add_flag("--no-enable-prefix-caching", no_enable_prefix_caching, "Share nothing between requests"));
    in(add_real(c, "--cache-ttl-chat", cache_ttl_chat, 0, kMaxTtl, "Seconds that unused pages of chats stay (default: 600)",
                "S"));
    in(add_real(c, "--cache-ttl-agent", cache_ttl_agent, 0, kMaxTtl, "The same for agents (default: 3600)", "S"));
  }
  if (use != EngineUse::kPrompt) {
    const std::string memory = serving ? "256MiB" : "0";
    in(add_size(c, "--window-snapshot-memory", window_snapshot_memory, 0, kMaxMemory,
                "Memory of window snapshots; 0: every hit is replayed (default: " + memory + ")"));
  }
  if (serving) {
    in(add_real(c, "--window-snapshot-ttl", window_snapshot_ttl, 0, kMaxTtl, "Seconds that snapshots stay (default: 300)", "S"));
  }
  const std::string mode = serving ? "bounded" : "exact";
  in(add_choice(c, "--replay", replay, {"bounded", "exact"},
                "bounded, or exact: bitwise as if nothing were cached (default: " + mode + ")"));
  in(add_choice(c, "--decoder-replay", decoder_replay, {"compact", "off"},
                "In bounded mode; compact: decoder layers run for the end of the prompt only; or off (default: compact)"));
  in(add_whole(c, "--decoder-keep-tokens", decoder_keep_tokens, 1, kMaxTokens,
               "That end, in tokens (default: the window and two draft blocks)"));
}

void EngineFlags::add_tier_flags(CLI::App& c, EngineUse use) {
  const auto in = [](CLI::Option* option) { option->group("Cache tiers"); };
  const auto seconds = [&](const char* flag, std::optional<double>& target, double low, double high, const char* what) {
    in(add_real(c, flag, target, low, high, what, "S"));
  };
  if (use != EngineUse::kPrompt) {
    in(add_size(c, "--kv-host-bytes", kv_host_bytes, 0, kMaxMemory,
                "Memory of prefixes that the cache has no room for; 0: none (default: 0)"));
  }
  in(c.add_option("--kv-store", kv_store, "Folder of a database of prefixes, which outlives the process (default: none)")
         ->type_name("DIR"));
  in(add_size(c, "--kv-store-bytes", kv_store_bytes, kMinStore, kMaxMemory, "What it may take (default: 64GiB)"));
  in(c.add_option("--kv-shared", kv_shared,
                  "Folder of prefixes that machines share, on a file system they all mount (default: none)")
         ->type_name("DIR"));
  in(add_size(c, "--kv-shared-bytes", kv_shared_bytes, 0, kMaxMemory,
              "What it may take, for all models together; 0: no limit (default: 0)"));
  in(c.add_option("--kv-directory", kv_directory,
                  "Redis that knows what the shared folder holds: redis://[USER:PASSWORD@]HOST[:PORT][/DB] or unix://PATH "
                  "(default: none)")
         ->type_name("URL"));
  in(c.add_option("--kv-secret-file", kv_secret_file,
                  "32 secret bytes under which prefixes are stored (default: secret in the shared folder or in the store, made "
                  "if it isn't there)")
         ->type_name("FILE"));
  in(add_choice(c, "--kv-weights-check", kv_weights_check, {"sample", "full"},
                "What stores tell checkpoints by: bytes of every tensor, or full: all bytes, read at start (default: sample)"));
  if (use == EngineUse::kServing) {
    seconds("--kv-ttl-chat", kv_ttl_chat, 0, kMaxStoreTtl,
            "Seconds that stores keep unused pages of chats; 0: they don't get them (default: 86400)");
    seconds("--kv-ttl-agent", kv_ttl_agent, 0, kMaxStoreTtl, "The same for agents (default: 259200)");
    seconds("--kv-ttl-pinned", kv_ttl_pinned, 0, kMaxStoreTtl, "The same for pinned pages (default: 2592000)");
    in(c.add_option("--kv-intervals", kv_intervals,
                    "Record here when prompts come back, for `deepinfer cache plan --intervals` (default: none)")
           ->type_name("FILE"));
  }
  seconds("--kv-match-limit", kv_match_limit, kLeastLimit, 60,
          "Seconds after which a prompt counts as not stored (default: 0.05)");
  seconds("--kv-pull-limit", kv_pull_limit, kLeastLimit, 3600, "Seconds after which its pages are computed (default: 5)");
  in(c.add_flag("--no-kv-cut-over", no_kv_cut_over, "Fetch what is stored even where computing it is faster"));
}

void EngineFlags::take_tiers(KvTierOptions& t) const {
  take(kv_host_bytes, t.host_bytes);
  take(kv_store, t.store);
  take(kv_store_bytes, t.store_bytes);
  take(kv_shared, t.shared);
  take(kv_shared_bytes, t.shared_bytes);
  take(kv_directory, t.directory);
  take(kv_secret_file, t.secret_file);
  take(kv_weights_check, t.weights_check);
  take(kv_intervals, t.intervals);
  take(kv_ttl_chat, t.ttl_chat);
  take(kv_ttl_agent, t.ttl_agent);
  take(kv_ttl_pinned, t.ttl_pinned);
  take(kv_match_limit, t.match_limit);
  take(kv_pull_limit, t.pull_limit);
  if (no_kv_cut_over) t.cut_over = false;
}

EngineOptions EngineFlags::to_options(EngineOptions base) const {
  EngineOptions o = std::move(base);
  o.model = model;
  take(backend, o.backend);
  take(threads, o.threads);
  take(max_num_seqs, o.max_num_seqs);
  take(max_num_batched_tokens, o.max_num_batched_tokens);
  take(max_model_len, o.max_model_len);
  take(kv_cache_memory, o.kv_cache_memory);
  take(gpu_memory_utilization, o.gpu_memory_utilization);
  take(engram_memory, o.engram_memory);
  take(cuda_features, o.cuda_features);
  if (no_cuda_graphs) o.cuda_graphs = false;
  if (no_enable_prefix_caching) o.enable_prefix_caching = false;
  take(cache_ttl_chat, o.cache_ttl_chat);
  take(cache_ttl_agent, o.cache_ttl_agent);
  take(window_snapshot_memory, o.window_snapshot_memory);
  take(window_snapshot_ttl, o.window_snapshot_ttl);
  take_tiers(o.kv_tiers);
  if (replay.has_value()) o.replay = parse_replay_mode(*replay).value_or(o.replay);
  if (decoder_replay.has_value()) o.decoder_replay = parse_decoder_replay(*decoder_replay).value_or(o.decoder_replay);
  take(decoder_keep_tokens, o.decoder_keep_tokens);
  if (speculative_config.has_value()) (void)o.apply_speculative_config(*speculative_config);  // checked when it was parsed
  if (no_async) o.async_scheduling = false;
  take(max_queued_requests, o.max_queued_requests);
  return o;
}

}  // namespace deepinfer::cli
