// Exports of a KV store and the page records in them. What is accepted must be, byte for byte, what the encoders make of the
// values that were read. The first byte says what the others are: an export, a record, or an export whose checksums are made
// right first, so that lengths and values behind them are reached.

#include <xxhash.h>

#include <cstdlib>
#include <cstring>

#include "cache/tiers/page_export.h"

namespace {

using namespace deepinfer;
using Bytes = std::vector<uint8_t>;

void require(bool condition) {
  if (!condition) std::abort();
}

template <typename T>
T field(std::span<const uint8_t> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

void put(std::span<uint8_t> bytes, size_t at, uint64_t value) { std::memcpy(bytes.data() + at, &value, sizeof(value)); }

Bytes remade(const ParsedRecord& record) {
  Bytes out;
  append_header(record.header, out);
  for (size_t group = 0; group < record.groups.size(); ++group) {
    const PageHeader& h = record.header;
    append_group(record.groups[group], group_seed(h.fingerprint, h.key, h.exact, static_cast<int64_t>(group)), out);
  }
  return out;
}

void check_record(std::span<const uint8_t> bytes) {
  KvStoreMiss why = KvStoreMiss::kNone;
  const auto record = parse_record(bytes, why);
  if (!record) {
    require(why != KvStoreMiss::kNone);
    return;
  }
  const Bytes again = remade(*record);
  require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
}

void check_export(std::span<const uint8_t> bytes) {
  auto reader = PageExportReader::Open("fuzz", static_cast<int64_t>(bytes.size()),
                                       [bytes](int64_t offset, std::span<uint8_t> into) -> Result<size_t> {
                                         // The reader asks for nothing that is not there.
                                         require(offset >= 0 && static_cast<size_t>(offset) <= bytes.size());
                                         require(into.size() <= bytes.size() - static_cast<size_t>(offset));
                                         std::memcpy(into.data(), bytes.data() + offset, into.size());
                                         return into.size();
                                       });
  if (!reader) {
    require(reader.error().message().find('\n') == std::string::npos);
    return;
  }
  PageExportEncoder encoder;
  Bytes again = encoder.header(reader->header());
  for (;;) {
    const auto entry = reader->next();
    if (!entry) return;
    const auto head = *entry ? encoder.entry((*entry)->page) : encoder.end();
    again.insert(again.end(), head.begin(), head.end());
    if (!*entry) break;
    check_record((*entry)->page.record);
    again.insert(again.end(), (*entry)->page.record.begin(), (*entry)->page.record.end());
  }
  require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
}

void repair_record(std::span<uint8_t> record) {
  if (record.size() < 16) return;
  const auto head = field<uint32_t>(record, 12);
  if (head < 16 || head > record.size() || head > header_bytes(kMaxKvGroups)) return;
  put(record, head - 8, XXH3_64bits(record.data(), head - 8));
  KvStoreMiss why = KvStoreMiss::kNone;
  const auto header = parse_header(record, why);
  if (!header) return;
  std::span<uint8_t> rest = record.subspan(head);
  for (size_t group = 0; group < header->group_bytes.size(); ++group) {
    const auto rows = static_cast<size_t>(header->group_bytes[group]);
    if (rest.size() < rows + kGroupChecksumBytes) return;
    const uint64_t seed = group_seed(header->fingerprint, header->key, header->exact, static_cast<int64_t>(group));
    put(rest, rows, group_checksum(rest.first(rows), seed));
    rest = rest.subspan(rows + kGroupChecksumBytes);
  }
}

void repair(std::span<uint8_t> bytes) {
  if (bytes.size() < kExportHeaderBytes) return;
  const uint64_t header = XXH3_64bits(bytes.data(), kExportHeaderBytes - 8);
  put(bytes, kExportHeaderBytes - 8, header);
  size_t at = kExportHeaderBytes;
  for (uint64_t number = 0; bytes.size() - at >= kExportEntryBytes; ++number) {
    put(bytes, at + kExportEntryBytes - 8, XXH3_64bits_withSeed(bytes.data() + at, kExportEntryBytes - 8, header + number));
    const auto record = field<uint64_t>(bytes, at);
    at += kExportEntryBytes;
    if (record == 0 || record > bytes.size() - at) return;
    repair_record(bytes.subspan(at, record));
    at += record;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  if (data[0] % 3 == 0) {
    check_export(bytes);
  } else if (data[0] % 3 == 1) {
    check_record(bytes);
  } else {
    Bytes repaired(bytes.begin(), bytes.end());
    repair(repaired);
    check_export(repaired);
  }
  return 0;
}
