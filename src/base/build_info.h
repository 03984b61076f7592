#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

/// Version of the project, "major.minor.patch".
std::string_view build_version();

/// Short commit the binary was built from; "+changes" is appended when the tree was not clean.
std::string_view build_commit();

/// What single results of floating-point code may depend on besides the source: the compiler, with its version, and the C library
/// that the process runs with, "gcc 12.2.0, glibc 2.36".
std::string build_toolchain();

}  // namespace deepinfer
