#include "base/build_info.h"

#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include "commit.h"

namespace deepinfer {

std::string_view build_version() { return DEEPINFER_VERSION; }
std::string_view build_commit() { return DEEPINFER_COMMIT; }

std::string build_toolchain() {
#if defined(__clang__)
  std::string text = "clang " __clang_version__;
#elif defined(__GNUC__)
  std::string text = "gcc " __VERSION__;
#else
  std::string text = "unknown compiler";
#endif
#if defined(__GLIBC__)
  return text + ", glibc " + gnu_get_libc_version();
#else
  return text + ", unknown C library";
#endif
}

}  // namespace deepinfer
