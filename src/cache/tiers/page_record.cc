#include "cache/tiers/page_record.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

namespace deepinfer {

// Fields are copied as they lie in memory; stores travel between machines.
static_assert(std::endian::native == std::endian::little);

namespace {

constexpr std::array<uint8_t, 8> kMagic = {'D', 'I', 'K', 'V', 'P', 'A', 'G', 'E'};
constexpr size_t kFixedBytes = 8 + 4 + 4 + 32 + 16 + 16 + 1 + 1 + 2 + 4 + 8;

template <typename T>
void put(std::vector<uint8_t>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

/// Reads fields one after the other; whoever uses it has checked that they are there.
class Fields {
 public:
  explicit Fields(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    DI_CHECK(bytes_.size() >= sizeof(T), "{} bytes left, a field takes {}", bytes_.size(), sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
};

Status corrupt(KvStoreMiss& why, std::string_view what) {
  why = KvStoreMiss::kCorrupt;
  return Status::DataLoss("page record: {}", what);
}

}  // namespace

KvFingerprint kv_fingerprint(std::string_view model, const KvPageShape& shape) {
  std::vector<uint8_t> text;
  put(text, static_cast<uint64_t>(model.size()));
  text.insert(text.end(), model.begin(), model.end());
  for (const int64_t bytes : shape.group_bytes) put(text, bytes);
  KvFingerprint fingerprint{};
  unsigned int size = 0;
  const bool ok = EVP_Digest(text.data(), text.size(), fingerprint.data(), &size, EVP_sha256(), nullptr) == 1;
  DI_CHECK(ok && size == fingerprint.size(), "libcrypto gave {} bytes of SHA-256", size);
  return fingerprint;
}

std::string hex_text(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

std::string key_text(const PrefixKey& key) { return fmt::format("{:016x}{:016x}", key.high, key.low); }

Result<PrefixKey> parse_key(std::string_view text) {
  PrefixKey key;
  const auto read = [](std::string_view part, uint64_t& value) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value, 16);
    return error == std::errc() && end == part.data() + part.size();
  };
  if (text.size() != 32 || !read(text.substr(0, 16), key.high) || !read(text.substr(16), key.low)) {
    return Err(Status::InvalidArgument("key: must be 32 hexadecimal digits"));
  }
  return key;
}

size_t header_bytes(size_t groups) { return kFixedBytes + 8 * groups + 8; }

int64_t record_group_offset(const KvPageShape& shape, int64_t group) {
  return static_cast<int64_t>(header_bytes(shape.group_bytes.size())) + shape.group_offset(group) +
         group * static_cast<int64_t>(kGroupChecksumBytes);
}

int64_t record_bytes(const KvPageShape& shape) {
  return record_group_offset(shape, static_cast<int64_t>(shape.group_bytes.size()));
}

PageHeader header_of(const KvStoreWrite& page, const KvFingerprint& fingerprint, const KvPageShape& shape, double created) {
  return {.fingerprint = fingerprint,
          .key = page.key,
          .parent = page.parent,
          .exact = page.exact,
          .cache_class = page.cache_class,
          .created = created,
          .group_bytes = shape.group_bytes};
}

void append_header(const PageHeader& header, std::vector<uint8_t>& out) {
  const size_t begin = out.size();
  out.insert(out.end(), kMagic.begin(), kMagic.end());
  put(out, kKvFormatVersion);
  put(out, static_cast<uint32_t>(header_bytes(header.group_bytes.size())));
  out.insert(out.end(), header.fingerprint.begin(), header.fingerprint.end());
  for (const uint64_t half : {header.key.high, header.key.low, header.parent.high, header.parent.low}) put(out, half);
  put(out, static_cast<uint8_t>(header.exact));
  put(out, static_cast<uint8_t>(header.cache_class));
  put(out, static_cast<uint16_t>(header.group_bytes.size()));
  put(out, uint32_t{0});
  put(out, header.created);
  for (const int64_t bytes : header.group_bytes) put(out, bytes);
  put(out, static_cast<uint64_t>(XXH3_64bits(out.data() + begin, out.size() - begin)));
}

Result<PageHeader> parse_header(std::span<const uint8_t> bytes, KvStoreMiss& why) {
  why = KvStoreMiss::kNone;
  if (bytes.size() < kFixedBytes) return Err(corrupt(why, "truncated header"));
  Fields fields(bytes);
  if (fields.take<std::array<uint8_t, 8>>() != kMagic) return Err(corrupt(why, "no magic number"));
  const auto version = fields.take<uint32_t>();
  if (version != kKvFormatVersion) {
    why = KvStoreMiss::kFormat;
    return Err(Status::InvalidArgument("page record: version {}, this program reads {}", version, kKvFormatVersion));
  }
  const auto size = fields.take<uint32_t>();
  PageHeader header;
  header.fingerprint = fields.take<KvFingerprint>();
  for (uint64_t* half : {&header.key.high, &header.key.low, &header.parent.high, &header.parent.low}) {
    *half = fields.take<uint64_t>();
  }
  const auto exact = fields.take<uint8_t>();
  const auto cache_class = fields.take<uint8_t>();
  const size_t groups = fields.take<uint16_t>();
  const auto zero = fields.take<uint32_t>();
  header.created = fields.take<double>();
  if (groups == 0 || groups > kMaxKvGroups || size != header_bytes(groups) || bytes.size() < size) {
    return Err(corrupt(why, "wrong header size"));
  }
  Fields sized(bytes.subspan(kFixedBytes));
  for (size_t i = 0; i < groups; ++i) header.group_bytes.push_back(sized.take<int64_t>());
  if (sized.take<uint64_t>() != XXH3_64bits(bytes.data(), size - 8)) return Err(corrupt(why, "wrong checksum of the header"));
  if (exact > 1 || cache_class >= kCacheClassCount || zero != 0 || !std::isfinite(header.created)) {
    return Err(corrupt(why, "a field of the header is out of range"));
  }
  for (const int64_t rows : header.group_bytes) {
    if (rows < 0 || rows > kMaxKvGroupBytes) return Err(corrupt(why, "a group's size is out of range"));
  }
  header.exact = exact == 1;
  header.cache_class = static_cast<CacheClass>(cache_class);
  return header;
}

KvStoreMiss check_header(const PageHeader& header, const KvFingerprint& fingerprint, const PrefixKey& key,
                         const KvPageShape& shape) {
  if (header.fingerprint != fingerprint || header.group_bytes != shape.group_bytes) return KvStoreMiss::kFingerprint;
  return header.key == key ? KvStoreMiss::kNone : KvStoreMiss::kCorrupt;
}

uint64_t group_seed(const KvFingerprint& fingerprint, const PrefixKey& key, bool exact, int64_t group) {
  std::array<uint8_t, 32 + 16 + 8 + 8 + 4> text{};
  uint8_t* at = text.data();
  const auto add = [&at](const auto& value) {
    std::memcpy(at, &value, sizeof(value));
    at += sizeof(value);
  };
  add(fingerprint);
  add(key.high);
  add(key.low);
  add(static_cast<uint64_t>(exact));
  add(group);
  add(kKvFormatVersion);
  return XXH3_64bits(text.data(), text.size());
}

uint64_t group_checksum(std::span<const uint8_t> rows, uint64_t seed) {
  return XXH3_64bits_withSeed(rows.data(), rows.size(), seed);
}

void append_group(std::span<const uint8_t> rows, uint64_t seed, std::vector<uint8_t>& out) {
  out.insert(out.end(), rows.begin(), rows.end());
  put(out, group_checksum(rows, seed));
}

bool group_is_right(std::span<const uint8_t> rows, std::span<const uint8_t, kGroupChecksumBytes> checksum, uint64_t seed) {
  uint64_t stored = 0;
  std::memcpy(&stored, checksum.data(), sizeof(stored));
  return stored == group_checksum(rows, seed);
}

std::vector<uint8_t> make_record(const KvStoreWrite& page, const KvFingerprint& fingerprint, const KvPageShape& shape,
                                 double created) {
  std::vector<uint8_t> record;
  record.reserve(static_cast<size_t>(record_bytes(shape)));
  append_header(header_of(page, fingerprint, shape, created), record);
  for (size_t group = 0; group < shape.group_bytes.size(); ++group) {
    const auto index = static_cast<int64_t>(group);
    append_group(page.page.subspan(static_cast<size_t>(shape.group_offset(index)), static_cast<size_t>(shape.group_bytes[group])),
                 group_seed(fingerprint, page.key, page.exact, index), record);
  }
  return record;
}

Result<ParsedRecord> parse_record(std::span<const uint8_t> bytes, KvStoreMiss& why) {
  ParsedRecord record;
  DI_ASSIGN_OR_RETURN(record.header, parse_header(bytes, why));
  const PageHeader& header = record.header;
  std::span<const uint8_t> rest = bytes.subspan(header_bytes(header.group_bytes.size()));
  for (size_t group = 0; group < header.group_bytes.size(); ++group) {
    const auto rows = static_cast<size_t>(header.group_bytes[group]);
    if (rest.size() < rows + kGroupChecksumBytes) return Err(corrupt(why, "truncated rows"));
    const uint64_t seed = group_seed(header.fingerprint, header.key, header.exact, static_cast<int64_t>(group));
    if (!group_is_right(rest.first(rows), rest.subspan(rows).first<kGroupChecksumBytes>(), seed)) {
      return Err(corrupt(why, "wrong checksum of rows"));
    }
    record.groups.push_back(rest.first(rows));
    rest = rest.subspan(rows + kGroupChecksumBytes);
  }
  if (!rest.empty()) return Err(corrupt(why, "bytes behind the last group"));
  return record;
}

}  // namespace deepinfer
