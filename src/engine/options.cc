#include "deepinfer/options.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/status.h"
#include "cache/tiers/kv_retention.h"
#include "ops/cuda/cuda_features.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMaxTokens = int64_t{1} << 40;
constexpr int64_t kMinStoreBytes = int64_t{1} << 20;

Status check_count(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::Ok();
  return Status::OutOfRange("{} is {}, must be from {} to {}", name, value, least, most);
}

Status check_number(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return Status::Ok();  // false for NaN
  return Status::OutOfRange("{} is {}, must be from {} to {}", name, value, least, most);
}

Result<int64_t> read_count(const char* name, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return Err(Status::InvalidArgument("{} is \"{}\", must be a whole number", name, text));
}

}  // namespace

Status KvTierOptions::validate() const {
  DI_RETURN_IF_ERROR(check_count("kv_tiers.host_bytes", host_bytes, 0, kMaxBytes));
  DI_RETURN_IF_ERROR(check_count("kv_tiers.store_bytes", store_bytes, kMinStoreBytes, kMaxBytes));
  DI_RETURN_IF_ERROR(check_count("kv_tiers.shared_bytes", shared_bytes, 0, kMaxBytes));
  DI_RETURN_IF_ERROR(check_number("kv_tiers.ttl_chat", ttl_chat, 0, kMaxKvTtlSeconds));
  DI_RETURN_IF_ERROR(check_number("kv_tiers.ttl_agent", ttl_agent, 0, kMaxKvTtlSeconds));
  DI_RETURN_IF_ERROR(check_number("kv_tiers.ttl_pinned", ttl_pinned, 0, kMaxKvTtlSeconds));
  DI_RETURN_IF_ERROR(check_number("kv_tiers.match_limit", match_limit, 1e-4, 60));
  DI_RETURN_IF_ERROR(check_number("kv_tiers.pull_limit", pull_limit, 1e-4, 3600));
  if (!directory.empty() && shared.empty())
    return Status::InvalidArgument("kv_tiers.directory is set, which says what kv_tiers.shared holds, and that is empty");
  if (!secret_file.empty() && !persistent())
    return Status::InvalidArgument("kv_tiers.secret_file is \"{}\", which names pages of a store, and there is none",
                                   secret_file);
  if (weights_check != "sample" && weights_check != "full")
    return Status::InvalidArgument("kv_tiers.weights_check is \"{}\", must be sample or full", weights_check);
  return Status::Ok();
}

Status EngineOptions::validate() const {
  if (model.empty()) return Status::InvalidArgument("model: no checkpoint folder given");
  if (backend != "cpu" && backend != "reference" && backend != "cuda" && backend != "auto")
    return Status::InvalidArgument("backend is \"{}\", must be cpu, reference, cuda or auto", backend);
  DI_RETURN_IF_ERROR(check_count("threads", threads, 0, 1024));
  DI_RETURN_IF_ERROR(check_count("max_num_seqs", max_num_seqs, 1, 65536));
  DI_RETURN_IF_ERROR(check_count("max_num_batched_tokens", max_num_batched_tokens, 0, int64_t{1} << 20));
  if (max_num_batched_tokens > 0 && max_num_batched_tokens < max_num_seqs) {
    return Status::OutOfRange("max_num_batched_tokens is {}, must be at least max_num_seqs, {}", max_num_batched_tokens,
                              max_num_seqs);
  }
  DI_RETURN_IF_ERROR(check_count("max_model_len", max_model_len, 0, kMaxTokens));
  DI_RETURN_IF_ERROR(check_count("kv_cache_memory", kv_cache_memory, 0, kMaxBytes));
  DI_RETURN_IF_ERROR(check_number("gpu_memory_utilization", gpu_memory_utilization, 0.01, 1));
  if (const auto features = parse_cuda_features(cuda_features); !features) return features.error();
  if (engram_memory != "auto" && engram_memory != "device" && engram_memory != "host")
    return Status::InvalidArgument("engram_memory is \"{}\", must be auto, device or host", engram_memory);
  DI_RETURN_IF_ERROR(check_number("cache_ttl_chat", cache_ttl_chat, 0, 1e9));
  DI_RETURN_IF_ERROR(check_number("cache_ttl_agent", cache_ttl_agent, cache_ttl_chat, 1e9));
  DI_RETURN_IF_ERROR(check_number("cache_max_pinned_fraction", cache_max_pinned_fraction, 0, 1));
  DI_RETURN_IF_ERROR(check_count("window_snapshot_memory", window_snapshot_memory, 0, kMaxBytes));
  DI_RETURN_IF_ERROR(check_number("window_snapshot_ttl", window_snapshot_ttl, 0, 1e9));
  DI_RETURN_IF_ERROR(kv_tiers.validate());
  if (kv_tiers.any() && !enable_prefix_caching)
    return Status::InvalidArgument("enable_prefix_caching is false, kv_tiers need it: they keep what the prefix cache names");
  if (!kv_tiers.intervals.empty() && !enable_prefix_caching)
    return Status::InvalidArgument(
        "enable_prefix_caching is false, kv_tiers.intervals needs it: it records what the cache names");
  if (time_skipped != nullptr && trace != nullptr)
    return Status::InvalidArgument("time_skipped: a trace would show moments of two clocks, leave out one of them");
  DI_RETURN_IF_ERROR(check_count("decoder_keep_tokens", decoder_keep_tokens, 0, kMaxTokens));
  DI_RETURN_IF_ERROR(check_count("num_speculative_tokens", num_speculative_tokens, -1, kMaxDraftTokens));
  DI_RETURN_IF_ERROR(check_count("max_queued_requests", max_queued_requests, 1, 10'000'000));
  return check_number("priority_interval", priority_interval, 0, 1e6);
}

Status EngineOptions::apply_environment() {
  if (const char* text = std::getenv("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE"); text != nullptr) {
    const auto mode = parse_decoder_replay(text);
    if (!mode) return mode.error().with_context("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE");
    decoder_replay = *mode;
  }
  const auto count = [](const char* name, int64_t& field, int64_t most) -> Status {
    const char* text = std::getenv(name);
    if (text == nullptr) return Status::Ok();
    const auto value = read_count(name, text);
    if (!value) return value.error();
    DI_RETURN_IF_ERROR(check_count(name, *value, 0, most));
    field = *value;
    return Status::Ok();
  };
  DI_RETURN_IF_ERROR(count("DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", decoder_keep_tokens, kMaxTokens));
  DI_RETURN_IF_ERROR(count("DEEPINFER_USE_NEXTN_DECODE", num_speculative_tokens, kMaxDraftTokens));
  if (const char* text = std::getenv("DEEPINFER_ENABLE_MTP_VARLEN"); text != nullptr) {
    const std::string_view value = text;
    if (value != "0" && value != "1")
      return Status::InvalidArgument("DEEPINFER_ENABLE_MTP_VARLEN is \"{}\", must be 0 or 1", value);
    speculation = value == "1" ? SpeculationMode::kVariable : SpeculationMode::kOff;
  }
  return Status::Ok();
}

}  // namespace deepinfer
