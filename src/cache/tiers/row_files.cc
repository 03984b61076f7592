#include "cache/tiers/row_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "cache/tiers/page_record.h"

namespace deepinfer {
namespace {

constexpr std::string_view kSuffix = ".rows";

Status failed(std::string_view path, std::string_view what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return {full ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
          fmt::format("local store: {}: {}: {}", path, what, std::strerror(error))};
}

/// The number in the name of a file of rows; 0: it is none.
uint64_t number_of(const std::filesystem::path& path) {
  const std::string name = path.filename();
  if (!name.ends_with(kSuffix)) return 0;
  uint64_t number = 0;
  const char* const end = name.data() + name.size() - kSuffix.size();
  const auto [read, error] = std::from_chars(name.data(), end, number);
  return error == std::errc() && read == end ? number : 0;
}

int64_t stride(const KvPageShape& shape, int64_t group) {
  return shape.group_bytes[static_cast<size_t>(group)] + static_cast<int64_t>(kGroupChecksumBytes);
}

/// Byte of a batch at which a group begins.
int64_t group_begin(const KvPageShape& shape, int64_t batch, int64_t group) {
  return batch * (shape.group_offset(group) + group * static_cast<int64_t>(kGroupChecksumBytes));
}

/// Who asks for a group wants that alone first: what the system reads ahead would be of the next group.
void expect_whole_reads(int file) { (void)::posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM); }

/// Transfers all parts, as many at a time as the system takes. 0, errno, or -1: the file ends before.
template <typename Transfer>
int transfer_all(std::span<iovec> parts, int64_t offset, Transfer transfer) {
  while (!parts.empty()) {
    if (parts.front().iov_len == 0) {
      parts = parts.subspan(1);
      continue;
    }
    ssize_t done = transfer(parts.data(), static_cast<int>(std::min<size_t>(parts.size(), IOV_MAX)), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    if (done == 0) return -1;
    offset += done;
    while (done > 0) {
      const auto part = std::min<size_t>(static_cast<size_t>(done), parts.front().iov_len);
      parts.front().iov_base = static_cast<uint8_t*>(parts.front().iov_base) + part;
      parts.front().iov_len -= part;
      done -= static_cast<ssize_t>(part);
      if (parts.front().iov_len == 0) parts = parts.subspan(1);
    }
  }
  return 0;
}

}  // namespace

struct RowFiles::File {
  std::string path;
  int file = -1;
  int64_t size = 0;  ///< what was appended after a failure to shorten it counts too
  int64_t held = 0;  ///< bytes of pages in use

  ~File() {
    if (file >= 0) ::close(file);
  }
};

Result<std::unique_ptr<RowFiles>> RowFiles::Open(std::string folder, int64_t file_bytes, bool read_only) {
  if (!read_only && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Err(failed(folder, "make folder", errno));
  std::unique_ptr<RowFiles> files(new RowFiles(std::move(folder), file_bytes, read_only));
  DI_RETURN_IF_ERROR(files->rescan());
  return files;
}

RowFiles::~RowFiles() = default;

Status RowFiles::rescan() {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder_, error);
  if (read_only_ && error == std::errc::no_such_file_or_directory) return Status::Ok();
  const std::lock_guard lock(mutex_);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const uint64_t number = number_of(entry->path());
    if (number == 0 || files_.contains(number)) continue;
    last_ = std::max(last_, number);
    auto file = std::make_shared<File>();
    file->path = entry->path();
    file->file = ::open(file->path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat status {};
    // What can't be opened is missed where a page of it is read.
    if (file->file < 0 || ::fstat(file->file, &status) != 0 || !S_ISREG(status.st_mode)) continue;
    expect_whole_reads(file->file);
    file->size = status.st_size;
    files_.emplace(number, std::move(file));
  }
  return error ? Status::Unavailable("local store: {}: {}", folder_, error.message()) : Status::Ok();
}

int64_t RowFiles::page_bytes(const KvPageShape& shape) {
  return group_begin(shape, 1, static_cast<int64_t>(shape.group_bytes.size()));
}

std::string RowFiles::path(uint64_t number) const { return fmt::format("{}/{:06}{}", folder_, number, kSuffix); }

std::shared_ptr<RowFiles::File> RowFiles::find(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(number);
  return found == files_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<RowFiles::File>> RowFiles::current() {
  const std::lock_guard lock(mutex_);
  if (const auto found = files_.find(appending_); found != files_.end() && found->second->size < file_bytes_)
    return found->second;
  const uint64_t before = appending_;
  auto file = std::make_shared<File>();
  file->path = path(last_ + 1);
  file->file = ::open(file->path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file->file < 0) return Err(failed(file->path, "create", errno));
  expect_whole_reads(file->file);
  appending_ = ++last_;
  files_.emplace(appending_, file);
  drop_if_unused(before);
  return file;
}

Result<std::vector<RowPlace>> RowFiles::append(const KvPageShape& shape, std::span<const RowPage> pages) {
  DI_CHECK(!read_only_, "{} is another process's", folder_);
  if (pages.empty()) return std::vector<RowPlace>();
  DI_ASSIGN_OR_RETURN(const std::shared_ptr<File> file, current());
  const auto groups = static_cast<int64_t>(shape.group_bytes.size());
  std::vector<iovec> parts;
  parts.reserve(pages.size() * shape.group_bytes.size() * 2);
  // Only read, whatever the type says.
  const auto part = [&parts](const void* bytes, size_t size) {
    parts.push_back({.iov_base = const_cast<void*>(bytes), .iov_len = size});
  };
  for (int64_t group = 0; group < groups; ++group) {
    for (const RowPage& page : pages) {
      part(page.page.data() + shape.group_offset(group), static_cast<size_t>(shape.group_bytes[static_cast<size_t>(group)]));
      part(&page.checksums[static_cast<size_t>(group)], kGroupChecksumBytes);
    }
  }
  const int64_t begin = file->size;
  const int error = transfer_all(std::span(parts), begin, [&](const iovec* from, int count, int64_t at) {
    return ::pwritev(file->file, from, count, static_cast<off_t>(at));
  });
  const int64_t bytes = page_bytes(shape) * static_cast<int64_t>(pages.size());
  const std::lock_guard lock(mutex_);
  if (error != 0) {
    // A part of the batch would be in the way of nobody but the disk.
    if (::ftruncate(file->file, static_cast<off_t>(begin)) != 0) file->size = begin + bytes;
    return Err(failed(file->path, "write", error < 0 ? ENOSPC : error));
  }
  file->size = begin + bytes;
  std::vector<RowPlace> places;
  for (size_t i = 0; i < pages.size(); ++i) {
    places.push_back({.file = appending_,
                      .offset = static_cast<uint64_t>(begin),
                      .batch = static_cast<uint32_t>(pages.size()),
                      .index = static_cast<uint32_t>(i)});
  }
  return places;
}

Status RowFiles::read(const KvPageShape& shape, const RowPlace& first, int64_t group, std::span<RowRead> pages) const {
  // The place comes from a file, too: no sum below may overflow.
  constexpr uint64_t kMostBytes = uint64_t{1} << 60;
  constexpr uint32_t kMostPages = 1 << 20;
  const std::shared_ptr<File> file = find(first.file);
  if (file == nullptr || first.offset > kMostBytes || first.batch > kMostPages || first.index >= first.batch)
    return Status::DataLoss("local store: no rows at {} of file {}", first.offset, first.file);
  std::vector<iovec> parts;
  parts.reserve(pages.size() * 2);
  for (RowRead& page : pages) {
    parts.push_back({.iov_base = page.into.data(), .iov_len = page.into.size()});
    parts.push_back({.iov_base = &page.checksum, .iov_len = kGroupChecksumBytes});
  }
  const int64_t at =
      static_cast<int64_t>(first.offset) + group_begin(shape, first.batch, group) + first.index * stride(shape, group);
  const int error = transfer_all(std::span(parts), at, [&](const iovec* into, int count, int64_t offset) {
    return ::preadv(file->file, into, count, static_cast<off_t>(offset));
  });
  if (error < 0) return Status::DataLoss("local store: {} ends before byte {}", file->path, at);
  return error == 0 ? Status::Ok() : failed(file->path, "read", error);
}

void RowFiles::hold(const RowPlace& place, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = files_.find(place.file); found != files_.end()) found->second->held += bytes;
}

void RowFiles::release(const RowPlace& place, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(place.file);
  if (found == files_.end()) return;
  found->second->held -= bytes;
  drop_if_unused(place.file);
}

void RowFiles::drop_if_unused(uint64_t number) {
  const auto found = files_.find(number);
  if (read_only_ || found == files_.end() || found->second->held > 0 || number == appending_) return;
  ::unlink(found->second->path.c_str());
  files_.erase(found);
}

void RowFiles::remove_unused() {
  const std::lock_guard lock(mutex_);
  std::vector<uint64_t> numbers;
  for (const auto& [number, file] : files_) numbers.push_back(number);
  for (const uint64_t number : numbers) drop_if_unused(number);
}

std::vector<uint64_t> RowFiles::sparse() const {
  struct Candidate {
    uint64_t number = 0;
    int64_t held = 0, size = 0;
  };
  const std::lock_guard lock(mutex_);
  int64_t held = 0, size = 0;
  std::vector<Candidate> candidates;
  for (const auto& [number, file] : files_) {
    held += file->held;
    size += file->size;
    // Less than a quarter gained isn't worth copying the rest.
    if (number != appending_ && file->held < file->size / 4 * 3) candidates.push_back({number, file->held, file->size});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return static_cast<double>(a.held) * static_cast<double>(b.size) < static_cast<double>(b.held) * static_cast<double>(a.size);
  });
  std::vector<uint64_t> numbers;
  for (const Candidate& file : candidates) {
    if (size <= held + held / 4 + 2 * file_bytes_) break;
    size -= file.size - file.held;
    numbers.push_back(file.number);
  }
  return numbers;
}

int64_t RowFiles::bytes() const {
  const std::lock_guard lock(mutex_);
  return std::accumulate(files_.begin(), files_.end(), int64_t{0},
                         [](int64_t sum, const auto& file) { return sum + file.second->size; });
}

}  // namespace deepinfer
