#include "cache/tiers/redis_url.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace deepinfer {
namespace {

constexpr int kMostDatabases = 65536;

template <typename T>
std::optional<T> number(std::string_view text, T most) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most || text.front() == '-') return std::nullopt;
  return value;
}

/// %XX as the byte it stands for.
std::optional<std::string> decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    unsigned value = 0;
    if (i + 2 >= text.size()) return std::nullopt;
    const auto [end, error] = std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16);
    if (error != std::errc() || end != text.data() + i + 3) return std::nullopt;
    decoded.push_back(static_cast<char>(value));
    i += 2;
  }
  return decoded;
}

Status wrong(std::string_view what) { return Status::InvalidArgument("directory_url: {}", what); }

/// Takes USER:PASSWORD@ off the front.
Status take_user(std::string_view& rest, RedisUrl& url) {
  // The last one before the path, as a careless password may contain another.
  const size_t at = rest.substr(0, rest.find('/')).rfind('@');
  if (at == std::string_view::npos) return Status::Ok();
  const std::string_view user = rest.substr(0, at);
  const size_t colon = user.find(':');
  const auto name = decode(user.substr(0, colon));
  const auto password = decode(colon == std::string_view::npos ? std::string_view() : user.substr(colon + 1));
  if (!name || !password) return wrong("user and password: % must be followed by two hexadecimal digits");
  url.user = *name;
  url.password = *password;
  rest.remove_prefix(at + 1);
  return Status::Ok();
}

Status take_database(std::string_view text, RedisUrl& url) {
  if (text.empty()) return Status::Ok();
  const auto database = number<int>(text, kMostDatabases - 1);
  if (!database) return Status::InvalidArgument("directory_url: database {}, must be from 0 to {}", text, kMostDatabases - 1);
  url.database = *database;
  return Status::Ok();
}

Result<RedisUrl> parse_unix(std::string_view rest) {
  RedisUrl url;
  DI_RETURN_IF_ERROR(take_user(rest, url));
  const size_t query = rest.find('?');
  if (query != std::string_view::npos) {
    const std::string_view parameter = rest.substr(query + 1);
    if (!parameter.starts_with("db=")) return Err(wrong("behind ? only db=NUMBER is known"));
    DI_RETURN_IF_ERROR(take_database(parameter.substr(3), url));
  }
  const auto path = decode(rest.substr(0, query));
  if (!path || path->empty() || path->front() != '/') return Err(wrong("unix:// must be followed by an absolute path"));
  constexpr size_t kMostPath = 107;  // sockaddr_un
  if (path->size() > kMostPath) {
    return Err(Status::OutOfRange("directory_url: a socket path of {} bytes, the limit is {}", path->size(), kMostPath));
  }
  url.socket_path = *path;
  return url;
}

}  // namespace

std::string RedisUrl::text() const {
  if (host.empty()) return fmt::format("unix://{}?db={}", socket_path, database);
  const bool ipv6 = host.find(':') != std::string::npos;
  return fmt::format("redis://{}{}{}:{}/{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port, database);
}

Result<RedisUrl> parse_redis_url(std::string_view text) {
  constexpr std::string_view kRedis = "redis://", kUnix = "unix://";
  if (text.starts_with(kUnix)) return parse_unix(text.substr(kUnix.size()));
  if (text.starts_with("rediss://")) return Err(wrong("TLS is not supported, use a tunnel and redis://"));
  if (!text.starts_with(kRedis)) return Err(wrong("must begin with redis:// or unix://"));
  RedisUrl url;
  std::string_view rest = text.substr(kRedis.size());
  DI_RETURN_IF_ERROR(take_user(rest, url));
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) DI_RETURN_IF_ERROR(take_database(rest.substr(slash + 1), url));
  std::string_view host = rest.substr(0, slash);
  std::string_view port;
  bool has_port = false;
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return Err(wrong("[ without ]"));
    port = host.substr(end + 1);
    host = host.substr(1, end - 1);
    if (!port.empty() && port.front() != ':') return Err(wrong("after ] comes : or /"));
  } else if (const size_t colon = host.find(':'); colon != std::string_view::npos) {
    port = host.substr(colon);
    host = host.substr(0, colon);
  }
  has_port = !port.empty();
  if (has_port) port.remove_prefix(1);
  if (host.empty()) return Err(wrong("no host"));
  constexpr size_t kMostHost = 253;
  if (host.size() > kMostHost) {
    return Err(Status::OutOfRange("directory_url: a host of {} bytes, the limit is {}", host.size(), kMostHost));
  }
  url.host = host;
  if (has_port) {
    const auto value = port.empty() ? std::nullopt : number<uint32_t>(port, 65535);
    if (!value || *value == 0) return Err(Status::InvalidArgument("directory_url: port {}, must be from 1 to 65535", port));
    url.port = static_cast<uint16_t>(*value);
  }
  return url;
}

}  // namespace deepinfer
