#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/kv_store.h"
#include "cache/tiers/page_record.h"

namespace deepinfer {

// What lies in a shared directory. Whole pages only are ever seen under their names, and none of them changes, so nobody locks.
//
//   secret                                 of prefix keys (store_secret.h)
//   last_gc                                mtime: when somebody last began to collect garbage
//   generations/FINGERPRINT/last_open      mtime: when an engine of that model last said that it is there
//   generations/FINGERPRINT/abc/KEY.exact, KEY.bounded
//                                          the record of a page (page_record.h); abc: the first digits of the key
//   generations/FINGERPRINT/abc/temporary-*
//                                          a page being written; it gets its name when it is whole
//   trash/FINGERPRINT.*                    a dead generation, being removed
//
// A page's mtime says when it expires, to 4 seconds, and in the remainder which class it is of: a use is one utimensat, and a
// collection of garbage reads no file. Seconds alone count, as some file systems keep no more.

/// mtime of a page, and back. A remainder that is no class is kChat.
struct PageTime {
  double expiry = 0;
  CacheClass cache_class = CacheClass::kChat;
};
timespec to_file_time(const PageTime& time);
PageTime to_page_time(const timespec& time);

/// Names of the directory at `root`.
class SharedLayout {
 public:
  explicit SharedLayout(std::string root);

  const std::string& root() const { return root_; }
  std::string generations() const { return root_ + "/generations"; }
  std::string trash() const { return root_ + "/trash"; }
  std::string last_gc() const { return root_ + "/last_gc"; }
  std::string generation(const KvFingerprint& fingerprint) const;

 private:
  std::string root_;
};

inline constexpr std::string_view kLastOpenName = "last_open";
inline constexpr std::string_view kTemporaryPrefix = "temporary-";

/// "GENERATION/abc/KEY.exact" or "....bounded": 4,096 folders, of 20,000 pages each in a store of 10 TB.
std::string page_path(std::string_view generation, const PrefixKey& key, bool exact);
/// What a page's file name, without folders, says.
struct PageName {
  PrefixKey key;
  bool exact = true;
};
std::optional<PageName> parse_page_name(std::string_view name);
/// Of a generation's folder.
Result<KvFingerprint> parse_fingerprint(std::string_view name);
/// Whether it is three lower-case hexadecimal digits.
bool is_shard_name(std::string_view name);

/// Why a file could not be used.
KvStoreMiss miss_of_errno(int error);
Status file_failed(std::string_view path, std::string_view what, int error);

/// A number that no other process on any machine has, from the kernel; and names made of it.
class UniqueNames {
 public:
  UniqueNames();
  std::string next();

 private:
  uint64_t id_ = 0;
  std::atomic<uint64_t> count_{0};
};

/// The time that the file system gives to files now: that of the server on a network mount. Makes and removes a file in `folder`.
Result<double> file_system_time(const std::string& folder, UniqueNames& names);

}  // namespace deepinfer
