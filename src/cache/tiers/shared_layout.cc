#include "cache/tiers/shared_layout.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

namespace deepinfer {
namespace {

constexpr int64_t kExpirySeconds = 4;  ///< of precision
static_assert(kCacheClassCount <= kExpirySeconds);
constexpr size_t kShardDigits = 3;
constexpr double kLatestSeconds = 1e11;  ///< a file's time beyond that is some clock's mistake

bool is_hex_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

}  // namespace

timespec to_file_time(const PageTime& time) {
  const double steps = std::ceil(std::clamp(time.expiry, 0.0, kLatestSeconds) / kExpirySeconds);
  return {.tv_sec = static_cast<time_t>(steps) * kExpirySeconds + static_cast<time_t>(time.cache_class), .tv_nsec = 0};
}

PageTime to_page_time(const timespec& time) {
  const int64_t seconds = std::max<int64_t>(time.tv_sec, 0);
  const int64_t remainder = seconds % kExpirySeconds;
  PageTime page{.expiry = static_cast<double>(seconds - remainder)};
  if (remainder < static_cast<int64_t>(kCacheClassCount)) page.cache_class = static_cast<CacheClass>(remainder);
  return page;
}

SharedLayout::SharedLayout(std::string root) : root_(std::move(root)) {}

std::string SharedLayout::generation(const KvFingerprint& fingerprint) const {
  return generations() + "/" + hex_text(fingerprint);
}

std::string page_path(std::string_view generation, const PrefixKey& key, bool exact) {
  const std::string name = key_text(key);
  const std::string_view digits = name;
  std::string path;
  path.reserve(generation.size() + name.size() + 16);
  path.append(generation).append("/").append(digits.substr(0, kShardDigits));
  return path.append("/").append(name).append(exact ? ".exact" : ".bounded");
}

std::optional<PageName> parse_page_name(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot != 32) return std::nullopt;
  const std::string_view digits = name.substr(0, dot);
  const std::string_view kind = name.substr(dot);
  if (!std::all_of(digits.begin(), digits.end(), is_hex_digit) || (kind != ".exact" && kind != ".bounded")) return std::nullopt;
  const Result<PrefixKey> key = parse_key(digits);
  if (!key) return std::nullopt;
  return PageName{.key = *key, .exact = kind == ".exact"};
}

Result<KvFingerprint> parse_fingerprint(std::string_view name) {
  KvFingerprint fingerprint{};
  if (name.size() != 2 * fingerprint.size()) return Err(Status::InvalidArgument("fingerprint: {} digits", name.size()));
  for (size_t i = 0; i < fingerprint.size(); i += sizeof(PrefixKey)) {
    DI_ASSIGN_OR_RETURN(const PrefixKey part, parse_key(name.substr(2 * i, 2 * sizeof(PrefixKey))));
    for (size_t byte = 0; byte < 16; ++byte) {
      const uint64_t half = byte < 8 ? part.high : part.low;
      fingerprint[i + byte] = static_cast<uint8_t>(half >> (56 - 8 * (byte % 8)));
    }
  }
  return fingerprint;
}

bool is_shard_name(std::string_view name) {
  return name.size() == kShardDigits && std::all_of(name.begin(), name.end(), is_hex_digit);
}

KvStoreMiss miss_of_errno(int error) {
  switch (error) {
    case ENOENT:
      return KvStoreMiss::kNotStored;
    case ELOOP:
    case ENXIO:
    case EISDIR:
    case ESPIPE:
    case EINVAL:
      return KvStoreMiss::kCorrupt;  // no regular file
    default:
      return KvStoreMiss::kUnavailable;
  }
}

Status file_failed(std::string_view path, std::string_view what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return {full ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
          fmt::format("shared store: {}: {}: {}", path, what, std::strerror(error))};
}

UniqueNames::UniqueNames() {
  const bool got = ::getrandom(&id_, sizeof(id_), 0) == static_cast<ssize_t>(sizeof(id_));
  DI_CHECK(got, "the kernel gave no random number");
}

std::string UniqueNames::next() { return fmt::format("{}{:016x}-{}", kTemporaryPrefix, id_, ++count_); }

Result<double> file_system_time(const std::string& folder, UniqueNames& names) {
  const std::string path = folder + "/" + names.next();
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return Err(file_failed(path, "create", errno));
  struct stat status {};
  const int error = ::fstat(file, &status) == 0 ? 0 : errno;
  ::close(file);
  ::unlink(path.c_str());
  if (error != 0) return Err(file_failed(path, "stat", error));
  return static_cast<double>(status.st_mtim.tv_sec) + static_cast<double>(status.st_mtim.tv_nsec) * 1e-9;
}

}  // namespace deepinfer
