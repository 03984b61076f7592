#include "server/server_options.h"

#include <algorithm>

#include "base/mapped_file.h"

namespace deepinfer::server {
namespace {

constexpr int64_t kMaxKeyFileBytes = 1 << 20;
constexpr size_t kMaxKeyBytes = 1024;

template <typename T>
Status check(const char* name, T value, T least, T most) {
  if (value >= least && value <= most) return Status::Ok();  // false for NaN
  return Status::OutOfRange("{} is {}, must be from {} to {}", name, value, least, most);
}

Status check_key(size_t number, const std::string& key) {
  if (key.empty() || key.size() > kMaxKeyBytes)
    return Status::OutOfRange("API key {} has {} bytes, must have from 1 to {}", number + 1, key.size(), kMaxKeyBytes);
  for (const char c : key) {
    if (c <= ' ' || c > '~')
      return Status::InvalidArgument("API key {}: only printable ASCII without spaces is allowed", number + 1);
  }
  return Status::Ok();
}

/// What no browser ever sends would let nobody in, and nobody would know why.
Status check_origin(const std::string& origin) {
  const size_t scheme = origin.find("://");
  const bool sent = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                    origin.find_first_of("/?#@ ", scheme + 3) == std::string::npos &&
                    std::none_of(origin.begin(), origin.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  if (sent || origin == "*" || origin == "null") return Status::Ok();
  return Status::InvalidArgument(
      "--allowed-origins: \"{}\" is no origin as browsers send it: *, or scheme://host[:port] in lower case with nothing behind",
      origin);
}

}  // namespace

Status ServerOptions::validate() const {
  DI_RETURN_IF_ERROR(check("port", port, 0, 65535));
  DI_RETURN_IF_ERROR(check("admin_port", admin_port, -1, 65535));
  DI_RETURN_IF_ERROR(check("threads", threads, 1, 256));
  if (ssl_certfile.empty() != ssl_keyfile.empty())
    return Status::InvalidArgument("--ssl-certfile and --ssl-keyfile go together, only one is given");
  for (size_t i = 0; i < api_keys.size(); ++i) DI_RETURN_IF_ERROR(check_key(i, api_keys[i]));
  for (const std::string& origin : allowed_origins) DI_RETURN_IF_ERROR(check_origin(origin));
  DI_RETURN_IF_ERROR(check("max_body_bytes", max_body_bytes, int64_t{1}, int64_t{1} << 32));
  DI_RETURN_IF_ERROR(check("max_buffered_bytes", max_buffered_bytes, max_body_bytes, int64_t{1} << 40));
  DI_RETURN_IF_ERROR(check("max_header_bytes", max_header_bytes, int64_t{256}, int64_t{1} << 20));
  DI_RETURN_IF_ERROR(check("max_headers", max_headers, int64_t{8}, int64_t{10'000}));
  DI_RETURN_IF_ERROR(check("max_connections", max_connections, int64_t{1}, int64_t{1'000'000}));
  DI_RETURN_IF_ERROR(check("max_concurrent_requests", max_concurrent_requests, int64_t{0}, int64_t{10'000'000}));
  for (const auto& [name, value] : {std::pair{"header_timeout", header_timeout}, std::pair{"body_timeout", body_timeout},
                                    std::pair{"idle_timeout", idle_timeout}, std::pair{"write_timeout", write_timeout},
                                    std::pair{"ping_interval", ping_interval}}) {
    DI_RETURN_IF_ERROR(check(name, value, 0.01, 1e6));
  }
  DI_RETURN_IF_ERROR(check("drain_timeout", drain_timeout, 0.0, 1e6));
  DI_RETURN_IF_ERROR(check("response_store_entries", response_store_entries, int64_t{0}, int64_t{1'000'000}));
  return check("response_store_bytes", response_store_bytes, int64_t{0}, int64_t{1} << 40);
}

Result<std::vector<std::string>> read_key_file(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxKeyFileBytes));
  std::vector<std::string> keys;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(std::move(line));
    at = end + 1;
  }
  if (keys.empty()) return Err(Status::InvalidArgument("{}: no API key in it", path));
  return keys;
}

}  // namespace deepinfer::server
