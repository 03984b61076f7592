#pragma once

#include <memory>

#include "ops/ops.h"
#include "telemetry/trace_recorder.h"

namespace deepinfer {

/// `inner` with a span for every operator (docs/reference/timeline.md, category `op`): the time of the call. On a device that
/// runs operators later, that is what the host needs to hand one over. The recorder outlives the backend.
std::unique_ptr<Backend> make_traced_backend(std::unique_ptr<Backend> inner, telemetry::TraceRecorder* recorder);

}  // namespace deepinfer
