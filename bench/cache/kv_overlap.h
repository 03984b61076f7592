#pragma once

#include <string>

#include "cache/kv_store_rig.h"
#include "svg_plot.h"

namespace deepinfer::bench {

/// A pull of pages of true size beside a step of the model they are of: each layer takes `layer_ms`, in which this thread sleeps
/// as the host does while a device works, and the layer that is a KV source first waits for its group. Prints how much of the
/// pull the step hides. `plot`: gets when each layer began and when each group was there, of the last repeat of the longest
/// prefix.
void bench_overlap(const std::string& name, const StoreBenchSetting& setting, Plot& plot);

}  // namespace deepinfer::bench
