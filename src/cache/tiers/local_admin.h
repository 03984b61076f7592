#pragma once

#include <memory>
#include <string>

#include "cache/tiers/store_admin.h"

namespace deepinfer {

/// The keeper of a local store. NotFound if there is none in the directory. Unless `read_only`, no engine may have it open.
Result<std::unique_ptr<StoreAdmin>> open_local_admin(const StoreAdminOptions& options);

}  // namespace deepinfer
