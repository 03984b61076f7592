#include "cache/tiers/store_secret.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace deepinfer {
namespace {
Status failed(const std::string& path, std::string_view what) {
  return Status::FailedPrecondition("secret {}: {}: {}", path, what, std::strerror(errno));
}
}  // namespace

Result<StoreSecret> read_store_secret(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    if (errno == ENOENT) return Err(Status::NotFound("secret {}: no such file", path));
    return Err(failed(path, "open"));
  }
  StoreSecret secret{};
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  const ssize_t got = known && S_ISREG(status.st_mode) ? ::read(file, secret.data(), secret.size()) : -1;
  ::close(file);
  if (got != static_cast<ssize_t>(secret.size()) || status.st_size != got) {
    return Err(Status::InvalidArgument("secret {}: must be a file of exactly {} bytes", path, secret.size()));
  }
  if ((status.st_mode & 077) != 0) {
    return Err(Status::InvalidArgument("secret {}: mode {:o}, must not be accessible to others (chmod 600)", path,
                                       status.st_mode & 0777U));
  }
  return secret;
}

Result<StoreSecret> load_or_create_store_secret(const std::string& path) {
  Result<StoreSecret> there = read_store_secret(path);
  if (there || there.error().code() != StatusCode::kNotFound) return there;
  StoreSecret secret{};
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) return Err(failed(path, "getrandom"));
  std::string name = path + ".XXXXXX";
  const int file = ::mkostemp(name.data(), O_CLOEXEC);  // O_EXCL, mode 0600
  if (file < 0) return Err(failed(path, "create"));
  const bool written = ::write(file, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()) && ::fsync(file) == 0;
  ::close(file);
  // A link, as a rename would take the place of a file that another process has made and read meanwhile.
  const bool linked = written && (::link(name.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const Status status = linked ? Status::Ok() : failed(path, "write");
  ::unlink(name.c_str());
  if (!status.ok()) return Err(status);
  return read_store_secret(path);
}

std::array<uint8_t, 32> store_secret_id(const StoreSecret& secret) {
  // The tag keeps it from being a hash of the same bytes that something else publishes.
  constexpr std::string_view kTag = "deepinfer kv store secret";
  std::array<uint8_t, kTag.size() + std::tuple_size_v<StoreSecret>> text{};
  std::memcpy(text.data(), kTag.data(), kTag.size());
  std::memcpy(text.data() + kTag.size(), secret.data(), secret.size());
  std::array<uint8_t, 32> id{};
  unsigned int size = 0;
  const bool ok = EVP_Digest(text.data(), text.size(), id.data(), &size, EVP_sha256(), nullptr) == 1;
  DI_CHECK(ok && size == id.size(), "libcrypto gave {} bytes of SHA-256", size);
  return id;
}

}  // namespace deepinfer
