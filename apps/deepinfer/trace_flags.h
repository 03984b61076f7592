#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/status.h"
#include "telemetry/chrome_trace.h"

namespace deepinfer::cli {

/// Flags of commands that can write what their engine does into a file for Perfetto.
struct TraceFlags {
  std::string file;
  int64_t size_limit = int64_t{1} << 30;
  bool ops = false;

  /// The flags keep references to this object. `names` of the file's flag, because `--trace` means something else to some.
  void add_to(CLI::App& command, const char* names);
};

/// The recorder that the flags want, and the file it is written to.
class Trace {
 public:
  /// Without a file and with `memory` 0 there is no recorder, unless `always`. The file is made now: what cannot be written is
  /// known before a model is loaded.
  static Result<Trace> Start(const TraceFlags& flags, int64_t memory = 0, bool always = false);

  /// For EngineOptions::trace; may be null.
  std::shared_ptr<telemetry::TraceRecorder> recorder() const { return recorder_; }
  /// When nothing is recorded any more: completes the file.
  Status finish();

 private:
  std::shared_ptr<telemetry::TraceRecorder> recorder_;
  std::unique_ptr<telemetry::ChromeTrace> file_;
};

}  // namespace deepinfer::cli
