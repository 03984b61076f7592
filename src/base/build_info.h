#pragma once

#include <string_view>

namespace deepinfer {

/// Version of the project, "major.minor.patch".
std::string_view build_version();

/// Short commit the binary was built from; "+changes" is appended when the tree was not clean.
std::string_view build_commit();

}  // namespace deepinfer
