#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "telemetry/trace_recorder.h"

namespace deepinfer::server {

/// Where a collector takes traces: http://HOST[:PORT]/PATH.
struct OtlpEndpoint {
  std::string host;
  std::string port = "80";
  std::string path = "/";
};
/// InvalidArgument says what is wrong with it. Only plain HTTP: the collector is beside the server.
Result<OtlpEndpoint> parse_otlp_endpoint(std::string_view url);

struct OtlpOptions {
  std::string endpoint;  ///< as it is: for most collectors it ends in /v1/traces
  std::string service_name = "deepinfer";
  size_t max_queued = 4096;  ///< requests that wait to be sent; more are dropped
  double interval = 1;       ///< seconds that spans are collected before they are sent
  double timeout = 5;        ///< of one exchange with the collector, seconds
  int attempts = 3;          ///< then a batch is dropped
};

/// Sends what was recorded of each request that has ended to a collector: OTLP over HTTP in its JSON encoding. A thread of its
/// own sends; whoever ends a request only queues it, and never waits. A request whose traceparent says that it is not sampled is
/// left out.
class OtlpExporter {
 public:
  /// Takes over the recorder's `on_closed`. Before the first request.
  static Result<std::unique_ptr<OtlpExporter>> Create(std::shared_ptr<telemetry::TraceRecorder> recorder,
                                                      const OtlpOptions& options);
  /// Ends as `close` does.
  virtual ~OtlpExporter() = default;

  /// Sends what is queued, with one attempt, and ends. Requests that end later are dropped.
  virtual void close() = 0;

  virtual int64_t exported() const = 0;  ///< spans that the collector took
  virtual int64_t dropped() const = 0;   ///< spans that were given up
  virtual int64_t failures() const = 0;  ///< exchanges that failed

  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

 protected:
  OtlpExporter() = default;
};

}  // namespace deepinfer::server
