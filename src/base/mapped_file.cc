#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace deepinfer {
namespace {

// Files are opened with O_NONBLOCK: a named pipe in place of a file would otherwise hold the open for ever; here it is refused.

struct Fd {
  int fd = -1;
  explicit Fd(int f) : fd(f) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
};

Result<int64_t> regular_file_size(const Fd& file, const std::string& path) {
  if (file.fd < 0) {
    const int error = errno;
    if (error == ENOENT) return Err(Status::NotFound("{}: no such file", path));
    return Err(Status::InvalidArgument("{}: cannot open: {}", path, std::strerror(error)));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return Err(Status::InvalidArgument("{}: cannot stat: {}", path, std::strerror(errno)));
  if (!S_ISREG(info.st_mode)) return Err(Status::InvalidArgument("{}: not a regular file", path));
  return static_cast<int64_t>(info.st_size);
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  DI_ASSIGN_OR_RETURN(const int64_t size, regular_file_size(file, path));
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = size;
  if (size > 0) {
    void* p = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, file.fd, 0);
    if (p == MAP_FAILED) return Err(Status::ResourceExhausted("{}: cannot map {} bytes: {}", path, size, std::strerror(errno)));
    mapped.data_ = static_cast<const std::byte*>(p);
  }
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

Result<std::string> read_text_file(const std::string& path, int64_t limit) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  DI_ASSIGN_OR_RETURN(const int64_t size, regular_file_size(file, path));
  if (size > limit) return Err(Status::OutOfRange("{}: {} bytes, the limit is {}", path, size, limit));
  std::string text(static_cast<size_t>(size), '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = ::read(file.fd, text.data() + got, text.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Err(Status::DataLoss("{}: cannot read: {}", path, std::strerror(errno)));
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  return text;
}

}  // namespace deepinfer
