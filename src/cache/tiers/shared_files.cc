#include "cache/tiers/shared_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace deepinfer {
namespace {

/// Somebody may take the generation for dead and move it away at any moment; the next attempt makes it anew.
constexpr int kTries = 3;

/// 0 or errno; a folder that is there is made.
int make_folder(const std::string& path) { return ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno; }

/// Sets mtime to the file system's own time, making the file if need be. 0 or errno.
int stamp(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  const int error = ::futimens(file, nullptr) == 0 ? 0 : errno;
  ::close(file);
  return error;
}

int write_all(int file, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written > 0) bytes = bytes.subspan(static_cast<size_t>(written));
    if (written == 0) return ENOSPC;
    if (written < 0 && errno != EINTR) return errno;
  }
  return 0;
}

/// The file and, where they are missing, the folders on the way to it.
int create(const SharedLayout& layout, const std::string& generation, const std::string& folder, const std::string& path) {
  for (int i = 0; i < kTries; ++i) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0 || errno != ENOENT) return file;
    int error = make_folder(folder);
    if (error == ENOENT && open_generation(layout, generation, false).ok()) error = make_folder(folder);
    if (error == 0) continue;
    errno = error;
    return -1;
  }
  errno = ENOENT;
  return -1;
}

/// 0 or errno. Also what a network file system says only when it is closed.
int write_file(int file, std::span<const uint8_t> bytes) {
  const int error = write_all(file, bytes);
  const int closed = ::close(file) == 0 ? 0 : errno;
  return error != 0 ? error : closed;
}

struct Failure {
  std::string_view what;
  int error = 0;
};

Failure try_to_store(const SharedLayout& layout, const std::string& generation, const std::string& path,
                     std::span<const uint8_t> record, const PageTime& time, UniqueNames& names) {
  const std::string folder = path.substr(0, path.rfind('/'));
  const std::string temporary = folder + "/" + names.next();
  const int file = create(layout, generation, folder, temporary);
  if (file < 0) return {.what = "create", .error = errno};
  Failure failure{.what = "write", .error = write_file(file, record)};
  // After the last write, which would set it to something else.
  if (failure.error == 0) failure = {.what = "set time", .error = set_page_time(temporary, time)};
  if (failure.error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) {
    failure = {.what = "rename", .error = errno};
    // A network file system that asks twice, as the first answer was lost, hears that there is nothing left to rename.
    struct stat status {};
    if (failure.error == ENOENT && ::stat(path.c_str(), &status) == 0) failure.error = 0;
  }
  if (failure.error != 0) ::unlink(temporary.c_str());
  return failure;
}

}  // namespace

int set_page_time(const std::string& path, const PageTime& time) {
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, to_file_time(time)};
  return ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
}

int open_page_file(const std::string& path) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  int file = ::open(path.c_str(), flags);
  if (file < 0 && errno == ESTALE) file = ::open(path.c_str(), flags);  // replaced on another machine: look it up anew
  return file;
}

Status open_generation(const SharedLayout& layout, const std::string& generation, bool new_store) {
  struct stat status {};
  if (!new_store && ::stat(layout.generations().c_str(), &status) != 0) {
    return file_failed(layout.generations(), "the store is gone", errno);
  }
  const std::string stamp_path = generation + "/" + std::string(kLastOpenName);
  int error = 0;
  for (int i = 0; i < kTries; ++i) {
    for (const std::string& folder : {layout.generations(), generation}) {
      error = make_folder(folder);
      if (error != 0) return file_failed(folder, "make folder", error);
    }
    error = stamp(stamp_path);
    if (error != ENOENT) break;
  }
  return error == 0 ? Status::Ok() : file_failed(stamp_path, "stamp", error);
}

Status store_page_file(const SharedLayout& layout, const std::string& generation, const PageName& page,
                       std::span<const uint8_t> record, const PageTime& time, UniqueNames& names) {
  const std::string path = page_path(generation, page.key, page.exact);
  Failure failure;
  for (int i = 0; i < kTries; ++i) {
    failure = try_to_store(layout, generation, path, record, time, names);
    if (failure.error == 0) return Status::Ok();
    if (failure.error != ENOENT) break;
  }
  return file_failed(path, fmt::format("{} ({} bytes)", failure.what, record.size()), failure.error);
}

}  // namespace deepinfer
