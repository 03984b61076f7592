#include "export_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cache/tiers/store_secret.h"

namespace deepinfer::cache {
namespace {

Status failed(const std::string& path, std::string_view what) {
  return Status::FailedPrecondition("{}: cannot {}: {}", path, what, std::strerror(errno));
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

Status exists_error(const std::string& path) {
  return Status::FailedPrecondition("{}: is there already (--replace takes its place)", path);
}

/// A file that is closed with the last reader.
struct OpenFile {
  int number = -1;
  ~OpenFile() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

Result<ExportFile> ExportFile::Create(const std::string& path, const PageExportHeader& header, bool replace) {
  if (!replace && exists(path)) return Err(exists_error(path));
  std::string temporary = path + ".XXXXXX";
  const int number = ::mkostemp(temporary.data(), O_CLOEXEC);  // mode 0600
  if (number < 0) return Err(failed(path, "create a file beside it"));
  ExportFile file(path, std::move(temporary), number);
  DI_RETURN_IF_ERROR(file.write(file.encoder_.header(header)));
  return file;
}

ExportFile::ExportFile(ExportFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::exchange(other.file_, -1)),
      encoder_(other.encoder_) {}

ExportFile::~ExportFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status ExportFile::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(path_, "write");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return Status::Ok();
}

Status ExportFile::add(const StoredPage& page) {
  DI_RETURN_IF_ERROR(write(encoder_.entry(page)));
  return write(page.record);
}

Status ExportFile::finish(bool replace) {
  DI_RETURN_IF_ERROR(write(encoder_.end()));
  if (::fsync(file_) != 0) return failed(path_, "write");
  // A link, unlike a rename, refuses a name that somebody has taken meanwhile.
  if (replace ? ::rename(temporary_.c_str(), path_.c_str()) != 0 : ::link(temporary_.c_str(), path_.c_str()) != 0)
    return !replace && errno == EEXIST ? exists_error(path_) : failed(path_, "give it its name");
  if (replace) temporary_.clear();
  return Status::Ok();
}

Result<PageExportReader> open_export(const std::string& path) {
  // A FIFO does not block, and an export is read twice: only a regular file can be.
  const auto file = std::make_shared<OpenFile>(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file->number < 0 && errno == ENOENT) return Err(Status::NotFound("{}: no such file", path));
  if (file->number < 0) return Err(failed(path, "open"));
  struct stat status {};
  if (::fstat(file->number, &status) != 0 || !S_ISREG(status.st_mode))
    return Err(Status::InvalidArgument("{}: is no regular file", path));
  return PageExportReader::Open(path, status.st_size, [file, path](int64_t offset, std::span<uint8_t> into) -> Result<size_t> {
    size_t got = 0;
    while (got < into.size()) {
      const ssize_t n =
          ::pread(file->number, into.data() + got, into.size() - got, static_cast<off_t>(offset) + static_cast<off_t>(got));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Err(failed(path, "read"));
      if (n == 0) break;
      got += static_cast<size_t>(n);
    }
    return got;
  });
}

Result<StoreSecretId> secret_id_of(const std::string& directory, const std::string& secret_file) {
  const Result<StoreSecret> secret = read_store_secret(secret_file.empty() ? directory + "/secret" : secret_file);
  if (secret) return store_secret_id(*secret);
  if (secret_file.empty() && secret.error().code() == StatusCode::kNotFound) return StoreSecretId{};
  return Err(secret.error());
}

}  // namespace deepinfer::cache
