#pragma once

#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"

namespace deepinfer {

/// 32 hexadecimal digits that say which checkpoint this is, wherever it lies: of config.json, tokenizer.json (Engram rows depend
/// on it) and name, type, shape and every byte of each tensor that the config implies. Reads all weights once, at memory speed.
/// Guards against mix-ups, not against forgery.
Result<std::string> checkpoint_identity(const Checkpoint& checkpoint, ThreadPool& pool);

}  // namespace deepinfer
