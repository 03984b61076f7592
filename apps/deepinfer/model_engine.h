#pragma once

#include <memory>

#include "deepinfer/engine.h"

namespace deepinfer::cli {

/// What commands that run prompts of their own start from: exact replay, and what the environment says.
Result<EngineOptions> exact_options();

/// Engine::Create with a line of progress on a terminal.
Result<std::unique_ptr<Engine>> create_engine(EngineOptions options);

}  // namespace deepinfer::cli
