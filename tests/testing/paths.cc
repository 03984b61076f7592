#include "testing/paths.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

namespace deepinfer::testing {
namespace fs = std::filesystem;

std::string source_dir() { return DEEPINFER_SOURCE_DIR; }
std::string nano_dir() { return source_dir() + "/models/nano"; }
std::string program() { return std::string(DEEPINFER_BIN_DIR) + "/deepinfer"; }

std::string shared_dir() {
  const char* set = std::getenv("DEEPINFER_SHARED");
  const fs::path path = set != nullptr ? fs::path(set) : fs::path(source_dir()) / ".." / "shared";
  return fs::is_directory(path) ? path.string() : std::string();
}

std::string make_temp_dir(const std::string& name) {
  static std::atomic<int> counter{0};
  const fs::path path =
      fs::temp_directory_path() / ("deepinfer-" + name + "-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
  fs::remove_all(path);
  fs::create_directories(path);
  return path.string();
}

}  // namespace deepinfer::testing
