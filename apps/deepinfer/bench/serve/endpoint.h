#pragma once

#include <string>

#include "base/status.h"

namespace deepinfer::bench {

/// An OpenAI-compatible server.
struct Endpoint {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string path = "/v1/completions";
  std::string api_key = {};
  bool tls = false;
  bool insecure = false;     ///< its certificate is not checked
  std::string ca_file = {};  ///< PEM; empty: the system's authorities

  /// http[s]://HOST[:PORT][/PREFIX]; the prefix comes before `path`. A host may be an IPv6 address in brackets. Errors name
  /// `flag`.
  static Result<Endpoint> Parse(const char* flag, const std::string& url, const std::string& path);

  /// HOST:PORT, without the port where the scheme implies it.
  std::string authority() const;
  std::string url() const { return (tls ? "https://" : "http://") + authority(); }
};

}  // namespace deepinfer::bench
