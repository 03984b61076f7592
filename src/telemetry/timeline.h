#pragma once

#include <string>
#include <vector>

#include "telemetry/trace_recorder.h"

namespace deepinfer::telemetry {

/// The reply of /debug/timeline (docs/reference/timeline.md) for these requests. `spans`: with what they and the engine did;
/// the latest `max_spans` of them. `recorder` null: nothing is recorded, everything is empty.
std::string timeline_json(const TraceRecorder* recorder, const std::vector<RequestRecord>& requests, bool spans,
                          size_t max_spans = 20'000);

}  // namespace deepinfer::telemetry
