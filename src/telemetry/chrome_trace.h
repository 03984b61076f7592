#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "telemetry/trace_recorder.h"

namespace deepinfer::telemetry {

/// Writes what is recorded into a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: the JSON array of trace
/// events. A thread of its own takes the spans over several times a second. Each piece is written over the end of the array and
/// ends it again, so the file is complete JSON whenever the process ends, whatever ends it.
class ChromeTrace {
 public:
  struct Options {
    std::string path;
    int64_t max_bytes = int64_t{1} << 30;  ///< then no more is written, and the last event says so
    std::string process_name = "deepinfer";
  };

  /// Makes the file, which replaces an older one. The error names it.
  static Result<std::unique_ptr<ChromeTrace>> Create(std::shared_ptr<TraceRecorder> recorder, const Options& options);
  /// Ends as `close` does.
  virtual ~ChromeTrace() = default;

  /// Takes over what is left and closes the file. The error is the first that writing met. Later calls do nothing.
  virtual Status close() = 0;
  virtual int64_t bytes() const = 0;

  ChromeTrace(const ChromeTrace&) = delete;
  ChromeTrace& operator=(const ChromeTrace&) = delete;

 protected:
  ChromeTrace() = default;
};

}  // namespace deepinfer::telemetry
