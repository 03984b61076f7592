#include "serve/endpoint.h"

#include <algorithm>
#include <string_view>

#include "flag_values.h"
#include "terminal.h"

namespace deepinfer::bench {
namespace {

/// What would end the request line or a header field, and the parts of a URL that mean nothing here.
bool harmful(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '?' || c == '#' || c == '@' || c == '\\';
  });
}

/// HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT; false: none of them. The port is left alone where there is none.
bool split_place(std::string_view place, std::string& host, std::string& port) {
  size_t host_end = place.find(':');
  if (place.starts_with('[')) {
    const size_t close = place.find(']');
    if (close == std::string_view::npos) return false;
    host = place.substr(1, close - 1);
    host_end = close + 1;
  } else {
    host = place.substr(0, host_end);
    host_end = std::min(host_end, place.size());
  }
  if (host.empty()) return false;
  if (host_end == place.size()) return true;
  if (place[host_end] != ':') return false;
  port = place.substr(host_end + 1);
  return cli::parse_whole(port, 1, 65535).has_value();
}

}  // namespace

Result<Endpoint> Endpoint::Parse(const char* flag, const std::string& url, const std::string& path) {
  const auto wrong = [&] {
    return Err(Status::InvalidArgument("{} is \"{}\", must be http[s]://HOST[:PORT][/PREFIX]", flag, cli::one_line(url)));
  };
  if (harmful(url)) return wrong();
  if (!path.starts_with('/') || harmful(path))
    return Err(Status::InvalidArgument("--endpoint is \"{}\", must be a path such as /v1/completions", cli::one_line(path)));
  Endpoint out;
  std::string_view rest = url;
  out.tls = rest.starts_with("https://");
  if (!out.tls && !rest.starts_with("http://")) return wrong();
  rest.remove_prefix(out.tls ? 8 : 7);
  const size_t slash = std::min(rest.find('/'), rest.size());
  out.port = out.tls ? "443" : "80";
  if (!split_place(rest.substr(0, slash), out.host, out.port)) return wrong();
  out.path = rest.substr(slash);
  while (out.path.ends_with('/')) out.path.pop_back();
  if (out.path.ends_with("/v1") && path.starts_with("/v1/")) out.path.resize(out.path.size() - 3);
  out.path += path;
  return out;
}

std::string Endpoint::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (tls ? "443" : "80") ? name : name + ":" + port;
}

}  // namespace deepinfer::bench
