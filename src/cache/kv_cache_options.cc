#include "cache/kv_cache_options.h"

#include "base/json_line.h"

namespace deepinfer {
namespace {
constexpr std::array<std::string_view, kCacheClassCount> kClassNames = {"chat", "agent", "pinned"};
constexpr std::array<std::string_view, 5> kReasonNames = {"none", "too_short", "not_cached", "inexact", "disabled"};
}  // namespace

Result<CacheClass> parse_cache_class(std::string_view name) {
  for (size_t i = 0; i < kCacheClassCount; ++i) {
    if (name == kClassNames[i]) return static_cast<CacheClass>(i);
  }
  // The name comes from a request: quoted and cut, so that a message stays one readable line.
  return Err(Status::InvalidArgument("cache class: {}, must be chat, agent or pinned", json_quote(name.substr(0, 32))));
}

std::string_view cache_class_name(CacheClass cache_class) { return kClassNames[static_cast<size_t>(cache_class)]; }

std::string_view miss_reason_name(MissReason reason) { return kReasonNames[static_cast<size_t>(reason)]; }

Status KvCacheOptions::validate() const {
  // Written so that a NaN is refused.
  if (!(chat_ttl_seconds >= 0)) return Status::OutOfRange("chat_ttl_seconds: {}, must be at least 0", chat_ttl_seconds);
  if (!(agent_ttl_seconds >= chat_ttl_seconds)) {
    return Status::OutOfRange("agent_ttl_seconds: {}, must be at least chat_ttl_seconds, {}", agent_ttl_seconds,
                              chat_ttl_seconds);
  }
  if (!(max_pinned_fraction >= 0 && max_pinned_fraction <= 1)) {
    return Status::OutOfRange("max_pinned_fraction: {}, must be from 0 to 1", max_pinned_fraction);
  }
  return Status::Ok();
}

}  // namespace deepinfer
