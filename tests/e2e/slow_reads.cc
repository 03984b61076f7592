// A disk that has become slow, for LD_PRELOAD: while the file $DEEPINFER_SLOW_DIR.slow is there, every positioned read of a file
// below $DEEPINFER_SLOW_DIR takes as many milliseconds longer as that file says.

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace {

void delay(int file) {
  const char* const directory = std::getenv("DEEPINFER_SLOW_DIR");
  if (directory == nullptr) return;
  char path[PATH_MAX];
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof(path));
  if (length <= 0 || !std::string(path, static_cast<size_t>(length)).starts_with(std::string(directory) + "/")) return;
  std::ifstream slow(std::string(directory) + ".slow");
  int milliseconds = 0;
  if (slow >> milliseconds) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t pread(int file, void* buffer, size_t bytes, off_t offset) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  delay(file);
  return real(file, buffer, bytes, offset);
}

ssize_t pread64(int file, void* buffer, size_t bytes, off64_t offset) {
  static auto* const real = next<ssize_t(int, void*, size_t, off64_t)>("pread64");
  delay(file);
  return real(file, buffer, bytes, offset);
}

ssize_t preadv(int file, const iovec* parts, int count, off_t offset) {
  static auto* const real = next<ssize_t(int, const iovec*, int, off_t)>("preadv");
  delay(file);
  return real(file, parts, count, offset);
}

ssize_t preadv64(int file, const iovec* parts, int count, off64_t offset) {
  static auto* const real = next<ssize_t(int, const iovec*, int, off64_t)>("preadv64");
  delay(file);
  return real(file, parts, count, offset);
}
}
