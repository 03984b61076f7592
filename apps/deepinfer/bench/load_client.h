#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer::bench {

/// An OpenAI-compatible server.
struct Endpoint {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string path = "/v1/completions";
  std::string api_key;

  /// http://HOST[:PORT][/PREFIX]; the prefix comes before `path`. Errors name `flag`.
  static Result<Endpoint> Parse(const char* flag, const std::string& url, const std::string& path);
  std::string url() const { return "http://" + host + ":" + port; }
};

/// A streaming request, ready to be sent.
struct LoadRequest {
  double at = 0;  ///< seconds from the start; requests are in this order
  std::string body;
  int64_t input_tokens = 0;  ///< expected; the server's own count goes before
};

/// What became of it. Times are seconds from the start, NaN: never.
struct LoadRecord {
  double planned = 0;
  double sent = std::numeric_limits<double>::quiet_NaN();
  double first_token = std::numeric_limits<double>::quiet_NaN();
  double last_token = std::numeric_limits<double>::quiet_NaN();
  double finished = std::numeric_limits<double>::quiet_NaN();
  std::vector<float> gaps;  ///< seconds between the chunks that carried text
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;  ///< the server's count, or the number of chunks where it gave none
  bool counted_by_server = false;
  int64_t cached_tokens = 0;
  std::string error;  ///< empty: the answer came whole

  bool ok() const { return error.empty(); }
  double ttft() const { return first_token - sent; }
  double latency() const { return finished - sent; }
  /// Mean time of a token after the first; NaN for fewer than two tokens.
  double tpot() const {
    return output_tokens > 1 ? (last_token - first_token) / static_cast<double>(output_tokens - 1)
                             : std::numeric_limits<double>::quiet_NaN();
  }
};

struct LoadProgress {
  int64_t done = 0, total = 0, in_flight = 0, failed = 0;
};

struct LoadOptions {
  int64_t max_concurrency = 0;    ///< 0: any number
  double timeout = 600;           ///< seconds that a request may be silent
  double request_timeout = 3600;  ///< seconds that a whole answer may take, however lively it is
  std::function<bool()> stop;     ///< asked about ten times a second; true: nothing more is sent, and what runs is given up
  std::function<void(const LoadProgress&)> progress;
};

struct LoadRun {
  std::vector<LoadRecord> records;  ///< of the requests that were sent, in their order
  double seconds = 0;               ///< from the first request to the last answer
  bool stopped = false;
  int64_t peak_in_flight = 0;
  std::vector<double> lag;  ///< seconds by which a timer of the event loop was late, about a hundred times a second
  double cpu_seconds = 0;   ///< of this process
};

/// Sends the requests over HTTP/1.1 with connections that are kept, and reads their streams: one thread, the caller's. Whatever
/// the server does ends as a record with an error, never later than `timeout` after its last byte or `request_timeout` after it
/// was sent.
LoadRun run_load(const Endpoint& endpoint, const std::vector<LoadRequest>& requests, const LoadOptions& options);

/// GET of a small document, in `timeout` seconds at most; an error says what went wrong.
Result<std::string> http_get(const Endpoint& endpoint, const std::string& path, double timeout = 30);

}  // namespace deepinfer::bench
