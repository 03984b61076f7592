#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer::server {

/// How the server listens, whom it lets in and how much it takes. Times are seconds.
struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;      ///< 0: a free one
  int admin_port = -1;  ///< -1: no admin listener; 0: a free one
  std::string admin_host = "127.0.0.1";
  int threads = 2;  ///< that serve connections; as many more parse large requests

  std::vector<std::string> served_model_names;  ///< the first one is answered; empty: the model's own
  std::vector<std::string> api_keys;            ///< empty: everybody may do everything
  bool salt_per_key = true;                     ///< cached prefixes are not shared between keys
  std::vector<std::string> allowed_origins;     ///< of CORS; "*": any
  std::string ssl_certfile, ssl_keyfile;
  bool dashboard = true;  ///< the web app at "/"
  /// Whether the public listener has /debug/*, which tells every caller of everybody's requests (never their texts).
  enum class DebugEndpoints : uint8_t {
    kAuto,  ///< if it listens on a loopback address and has fewer than two keys: all callers are one party
    kOn,
    kOff,
  } debug_endpoints = DebugEndpoints::kAuto;

  int64_t max_body_bytes = int64_t{64} << 20;
  int64_t max_buffered_bytes = int64_t{1} << 30;  ///< bodies of all connections together
  int64_t max_header_bytes = 32 << 10;
  int64_t max_headers = 100;
  int64_t max_connections = 4096;
  int64_t max_concurrent_requests = 0;  ///< generations in progress; 0: the engine's queue decides
  double header_timeout = 10;           ///< from the first byte of a request to the end of its head
  double body_timeout = 120;            ///< for the whole body
  double idle_timeout = 75;             ///< between requests
  double write_timeout = 60;            ///< for the peer to take what was written
  double ping_interval = 15;            ///< of silence in a stream
  double drain_timeout = 30;            ///< then what still runs is cancelled

  int64_t response_store_entries = 1024;  ///< finished Responses that GET can find
  int64_t response_store_bytes = int64_t{64} << 20;

  /// The first field outside its limits; files and addresses are looked at when the server is made.
  Status validate() const;
  bool loopback() const { return host.starts_with("127.") || host == "::1" || host == "localhost"; }
  bool public_debug() const {
    return debug_endpoints == DebugEndpoints::kOn ||
           (debug_endpoints == DebugEndpoints::kAuto && loopback() && api_keys.size() < 2);
  }
};

/// One key a line; blank lines and lines that start with '#' are skipped.
Result<std::vector<std::string>> read_key_file(const std::string& path);

}  // namespace deepinfer::server
