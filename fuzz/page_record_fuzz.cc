// Whatever lies in a store: records, file names, values of a directory's URL. What is accepted must be what it says it is.

#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "cache/tiers/page_record.h"
#include "cache/tiers/redis_url.h"
#include "cache/tiers/shared_layout.h"

namespace {

using namespace deepinfer;

/// Byte of the header at which the number of groups stands (page_record.h).
constexpr size_t kGroupsAt = 8 + 4 + 4 + 32 + 16 + 16 + 1 + 1;

void check_record(std::span<const uint8_t> bytes) {
  KvStoreMiss why = KvStoreMiss::kNone;
  const auto record = parse_record(bytes, why);
  if (!record) {
    if (why == KvStoreMiss::kNone || record.error().message().find('\n') != std::string::npos) std::abort();
    return;
  }
  std::vector<uint8_t> again;
  append_header(record->header, again);
  for (size_t group = 0; group < record->groups.size(); ++group) {
    if (static_cast<int64_t>(record->groups[group].size()) != record->header.group_bytes[group]) std::abort();
    append_group(record->groups[group],
                 group_seed(record->header.fingerprint, record->header.key, record->header.exact, static_cast<int64_t>(group)),
                 again);
  }
  if (!std::equal(bytes.begin(), bytes.end(), again.begin(), again.end())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> bytes(data, data + size);
  check_record(bytes);
  // With a right checksum, or nothing behind it would ever be reached.
  if (size >= kGroupsAt + 2) {
    uint16_t groups = 0;
    std::memcpy(&groups, data + kGroupsAt, sizeof(groups));
    const size_t header = header_bytes(groups);
    if (header <= size) {
      const uint64_t checksum = XXH3_64bits(bytes.data(), header - sizeof(checksum));
      std::memcpy(bytes.data() + header - sizeof(checksum), &checksum, sizeof(checksum));
      check_record(bytes);
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto name = parse_page_name(text)) {
    if (text != key_text(name->key) + (name->exact ? ".exact" : ".bounded")) std::abort();
  }
  if (const auto url = parse_redis_url(text)) {
    if (url->host.empty() == url->socket_path.empty() || url->port == 0 || url->database < 0) std::abort();
    // What a message shows can be read again, and is the same place without the password.
    const auto shown = parse_redis_url(url->text());
    if (url->text().find_first_of("%@?#") == std::string::npos && url->host.find_first_of("/:[]") == std::string::npos &&
        !url->host.empty() &&
        (!shown || shown->host != url->host || shown->port != url->port || shown->database != url->database)) {
      std::abort();
    }
  }
  return 0;
}
