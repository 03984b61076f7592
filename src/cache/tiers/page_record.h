#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cache/kv_store.h"

namespace deepinfer {

/// What a page's rows depend on besides its key: the model, its numerics, the shape of a page.
using KvFingerprint = std::array<uint8_t, 32>;

/// SHA-256 of `model` (config, weights' identity, numerics: whatever distinguishes rows) and the shape.
KvFingerprint kv_fingerprint(std::string_view model, const KvPageShape& shape);
/// As lower-case hexadecimal.
std::string hex_text(std::span<const uint8_t> bytes);
/// 32 hexadecimal digits, the high half first, and back.
std::string key_text(const PrefixKey& key);
Result<PrefixKey> parse_key(std::string_view text);

// A page as it is stored, in files and in the local database alike. Integers and doubles are little-endian.
//
//   header  magic[8] "DIKVPAGE", u32 version, u32 header bytes, fingerprint[32], key high, low u64, parent high, low u64,
//           u8 exact, u8 class, u16 groups, u32 zero, f64 created (seconds since 1970), u64 rows[groups], u64 XXH3 of all before
//   groups  rows[group] bytes, u64 XXH3 of them seeded with everything that says which rows they are (`group_seed`)
//
// The seed makes a group prove by itself that it is the right group of the right page: reading one needs no header, and a file
// under a wrong name, or whose groups were exchanged, doesn't pass. Only to say why a group is wrong does one look at the header.

inline constexpr uint32_t kKvFormatVersion = 1;
inline constexpr size_t kGroupChecksumBytes = 8;
inline constexpr size_t kMaxKvGroups = 256;
inline constexpr int64_t kMaxKvGroupBytes = int64_t{1} << 30;

struct PageHeader {
  KvFingerprint fingerprint{};
  PrefixKey key;
  PrefixKey parent;
  bool exact = true;
  CacheClass cache_class = CacheClass::kChat;
  double created = 0;
  std::vector<int64_t> group_bytes;
};

PageHeader header_of(const KvStoreWrite& page, const KvFingerprint& fingerprint, const KvPageShape& shape, double created);

/// Bytes of a header, and of a whole record.
size_t header_bytes(size_t groups);
int64_t record_bytes(const KvPageShape& shape);
/// Byte of the record at which the rows of `group` begin; their checksum follows them.
int64_t record_group_offset(const KvPageShape& shape, int64_t group);

void append_header(const PageHeader& header, std::vector<uint8_t>& out);
/// A header at the start of `bytes` (more may follow). kFormat: another version; kCorrupt: anything else that is wrong.
Result<PageHeader> parse_header(std::span<const uint8_t> bytes, KvStoreMiss& why);
/// Whether it is the header of the page looked for.
KvStoreMiss check_header(const PageHeader& header, const KvFingerprint& fingerprint, const PrefixKey& key,
                         const KvPageShape& shape);

uint64_t group_seed(const KvFingerprint& fingerprint, const PrefixKey& key, bool exact, int64_t group);
uint64_t group_checksum(std::span<const uint8_t> rows, uint64_t seed);
/// Rows, then the checksum.
void append_group(std::span<const uint8_t> rows, uint64_t seed, std::vector<uint8_t>& out);
bool group_is_right(std::span<const uint8_t> rows, std::span<const uint8_t, kGroupChecksumBytes> checksum, uint64_t seed);

/// The whole record.
std::vector<uint8_t> make_record(const KvStoreWrite& page, const KvFingerprint& fingerprint, const KvPageShape& shape,
                                 double created);
/// Reads a whole record, whatever model it is of, and checks every checksum. Views into `bytes`.
struct ParsedRecord {
  PageHeader header;
  std::vector<std::span<const uint8_t>> groups;
};
Result<ParsedRecord> parse_record(std::span<const uint8_t> bytes, KvStoreMiss& why);

}  // namespace deepinfer
