#pragma once

#include <sys/mount.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

namespace deepinfer::testing {

/// A small file system of its own on a folder, to be full, read-only or away: a real one, where the process may mount.
class Tmpfs {
 public:
  Tmpfs(std::string folder, int64_t bytes) : folder_(std::move(folder)) {
    const std::string options = "size=" + std::to_string(bytes) + ",mode=700";
    if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, options.c_str()) != 0) why_absent_ = std::strerror(errno);
  }
  ~Tmpfs() {
    if (why_absent_.empty()) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  Tmpfs(const Tmpfs&) = delete;
  Tmpfs& operator=(const Tmpfs&) = delete;

  /// Empty: it is there.
  const std::string& why_absent() const { return why_absent_; }
  /// False: somebody has a file open for writing.
  bool set_read_only(bool on) const {
    return ::mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | (on ? MS_RDONLY : 0), nullptr) == 0;
  }
  /// To another folder, with all that lies in it; what is left is the empty folder.
  bool move(const std::string& to) {
    if (::mount(folder_.c_str(), to.c_str(), nullptr, MS_MOVE, nullptr) != 0) return false;
    folder_ = to;
    return true;
  }
  /// Leaves about so much room; less than what is there is no size. Takes no memory.
  bool leave_room(int64_t bytes) const {
    struct statvfs room {};
    if (::statvfs(folder_.c_str(), &room) != 0) return false;
    const auto used = static_cast<int64_t>((room.f_blocks - room.f_bfree) * room.f_frsize);
    const std::string options = "size=" + std::to_string(used + bytes);
    return ::mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT, options.c_str()) == 0;
  }

 private:
  std::string folder_;
  std::string why_absent_;
};

}  // namespace deepinfer::testing
