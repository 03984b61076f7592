#include "trace_flags.h"

#include <algorithm>

#include "flag_values.h"

namespace deepinfer::cli {
namespace {

constexpr int64_t kMinMemory = int64_t{32} << 20;  ///< for what happens while the file is written

}  // namespace

void TraceFlags::add_to(CLI::App& c, const char* names) {
  const char* const group = "Telemetry";
  c.add_option(names, file, "Write what requests, engine and device do into this file, for ui.perfetto.dev")
      ->type_name("FILE")
      ->group(group);
  add_size(c, "--trace-size-limit", size_limit, 1 << 16, int64_t{1} << 40, "Of that file, which then ends (default: 1GiB)")
      ->group(group);
  c.add_flag("--trace-ops", ops, "Operators of the backend, too: large, and slows small models down")->group(group);
}

Result<Trace> Trace::Start(const TraceFlags& flags, int64_t memory, bool always) {
  Trace out;
  if (flags.file.empty() && memory == 0 && !always && !flags.ops) return out;
  if (!flags.file.empty() || always || flags.ops) memory = std::max(memory, kMinMemory);
  telemetry::TraceRecorder::Options options;
  options.memory = memory;
  options.ops = flags.ops;
  out.recorder_ = std::make_shared<telemetry::TraceRecorder>(options);
  if (flags.file.empty()) return out;
  auto file = telemetry::ChromeTrace::Create(out.recorder_, {.path = flags.file, .max_bytes = flags.size_limit});
  if (!file) return Err(file.error().with_context("--trace-file"));
  out.file_ = std::move(*file);
  return out;
}

Status Trace::finish() {
  if (file_ == nullptr) return Status::Ok();
  Status status = file_->close();
  return status.ok() ? status : status.with_context("--trace-file");
}

}  // namespace deepinfer::cli
