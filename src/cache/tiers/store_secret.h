#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace deepinfer {

using StoreSecret = std::array<uint8_t, 32>;

/// The secret of prefix keys that all processes on a store have in common. Exactly 32 bytes, readable by the owner alone.
Result<StoreSecret> read_store_secret(const std::string& path);
/// The same; makes one of the kernel's randomness if there is none. Of several that do so at once, one file is everybody's.
Result<StoreSecret> load_or_create_store_secret(const std::string& path);
/// Says which secret it is and nothing more about it: a hash.
std::array<uint8_t, 32> store_secret_id(const StoreSecret& secret);

}  // namespace deepinfer
