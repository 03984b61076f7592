#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

/// Where a Redis server is: redis://[[USER][:PASSWORD]@]HOST[:PORT][/DATABASE] or unix://[[USER][:PASSWORD]@]/PATH[?db=DATABASE].
/// No TLS (rediss://): prefix keys say nothing of prompts and what Redis answers is checked against the files, so a private
/// network or a tunnel is enough.
struct RedisUrl {
  std::string host{};  ///< without the brackets of an IPv6 address; empty: `socket_path`
  uint16_t port = 6379;
  std::string socket_path{};
  std::string user{}, password{};
  int database = 0;

  /// For messages: no password in it.
  std::string text() const;
};

/// Errors say what is wrong without repeating the password.
Result<RedisUrl> parse_redis_url(std::string_view url);

}  // namespace deepinfer
