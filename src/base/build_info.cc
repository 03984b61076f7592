#include "base/build_info.h"

#include "commit.h"

namespace deepinfer {

std::string_view build_version() { return DEEPINFER_VERSION; }
std::string_view build_commit() { return DEEPINFER_COMMIT; }

}  // namespace deepinfer
