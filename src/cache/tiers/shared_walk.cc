#include "cache/tiers/shared_walk.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

namespace deepinfer {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

Folder open_folder(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return nullptr;
  DIR* folder = ::fdopendir(file);
  if (folder == nullptr) ::close(file);
  return Folder(folder);
}

/// Names of the entries but "." and "..". The error if the folder could not be opened or read to its end.
Status list(const std::string& path, DIR* folder, FunctionRef<Status(const char* name)> entry) {
  for (;;) {
    errno = 0;
    const dirent* found = ::readdir(folder);
    if (found == nullptr) return errno == 0 ? Status::Ok() : file_failed(path, "list", errno);
    const std::string_view name = found->d_name;
    if (name != "." && name != "..") DI_RETURN_IF_ERROR(entry(found->d_name));
  }
}

/// The folders that pages lie in, in order.
Result<std::vector<std::string>> shards(const std::string& path) {
  std::vector<std::string> names;
  const Folder folder = open_folder(path);
  if (folder == nullptr) {
    if (errno == ENOENT) return names;
    return Err(file_failed(path, "open", errno));
  }
  DI_RETURN_IF_ERROR(list(path, folder.get(), [&](const char* name) {
    if (is_shard_name(name)) names.emplace_back(name);
    return Status::Ok();
  }));
  std::sort(names.begin(), names.end());
  return names;
}

Status walk_shard(const std::string& path, std::string_view digits, FunctionRef<Status(const SharedFile&)> visit,
                  const std::stop_token& stop) {
  const Folder folder = open_folder(path);
  if (folder == nullptr) return errno == ENOENT ? Status::Ok() : file_failed(path, "open", errno);
  return list(path, folder.get(), [&](const char* name) {
    if (stop.stop_requested()) return Status::Cancelled("shared store: cancelled");
    SharedFile file{.folder = ::dirfd(folder.get()), .folder_path = path, .name = name};
    if (::fstatat(file.folder, name, &file.status, AT_SYMLINK_NOFOLLOW) != 0) return Status::Ok();
    if (S_ISREG(file.status.st_mode)) {
      const std::string_view text = name;
      file.temporary = text.starts_with(kTemporaryPrefix);
      if (text.starts_with(digits)) file.page = parse_page_name(text);
    }
    return visit(file);
  });
}

}  // namespace

Status walk_generation(const std::string& path, FunctionRef<Status(const SharedFile& file)> visit, const std::stop_token& stop) {
  Status unreadable;
  Status ended;
  const auto visit_noting_end = [&](const SharedFile& file) {
    ended = visit(file);
    return ended;
  };
  const Result<std::vector<std::string>> folders = shards(path);
  if (!folders) return folders.error();
  for (const std::string& digits : *folders) {
    if (stop.stop_requested()) return Status::Cancelled("shared store: cancelled");
    Status walked = walk_shard(path + "/" + digits, digits, visit_noting_end, stop);
    if (!ended.ok()) return ended;
    if (!walked.ok() && unreadable.ok()) unreadable = std::move(walked);
  }
  return unreadable;
}

Result<std::vector<std::string>> list_generations(const SharedLayout& layout) {
  const std::string path = layout.generations();
  const Folder folder = open_folder(path);
  if (folder == nullptr) return Err(file_failed(path, "open", errno));
  std::vector<std::string> names;
  DI_RETURN_IF_ERROR(list(path, folder.get(), [&](const char* name) {
    const std::string_view text = name;
    if (text.size() == 2 * sizeof(KvFingerprint) && text.find_first_not_of("0123456789abcdef") == std::string_view::npos) {
      names.emplace_back(text);
    }
    return Status::Ok();
  }));
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<uint8_t>> read_file(int folder, const char* name, size_t limit) {
  const int file = ::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return Err(file_failed(name, "open", errno));
  struct stat status {};
  std::vector<uint8_t> bytes;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
    bytes.resize(std::min(limit, static_cast<size_t>(status.st_size)));
  }
  size_t got = 0;
  int error = 0;
  while (got < bytes.size() && error == 0) {
    const ssize_t more = ::pread(file, bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (more < 0 && errno != EINTR) error = errno;
    if (more == 0) break;
    if (more > 0) got += static_cast<size_t>(more);
  }
  ::close(file);
  if (error != 0) return Err(file_failed(name, "read", error));
  bytes.resize(got);
  return bytes;
}

}  // namespace deepinfer
