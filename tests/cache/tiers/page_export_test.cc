#include "cache/tiers/page_export.h"

#include <cstring>
#include <functional>
#include <limits>

#include "cache/tiers/store_fixture.h"

namespace deepinfer {
namespace {

using namespace store_testing;
using Bytes = std::vector<uint8_t>;

constexpr StoreSecretId kSecretId = {1, 2, 3};

Bytes record_of(uint64_t n, bool exact = true) {
  const Bytes page = page_of(n, exact);
  return make_record({.key = key(n), .parent = key(n - 1), .exact = exact, .page = page}, kv_fingerprint("model", kShape), kShape,
                     1000);
}

template <typename Range>
void append(Bytes& out, const Range& bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

Bytes export_of(uint64_t pages) {
  PageExportEncoder encoder;
  Bytes out = encoder.header({.secret_id = kSecretId, .created = 1234});
  for (uint64_t n = 1; n <= pages; ++n) {
    const Bytes record = record_of(n, n != 2);
    append(out, encoder.entry({.key = key(n), .cache_class = CacheClass::kAgent, .expiry = 5000.5, .record = record}));
    append(out, record);
  }
  append(out, encoder.end());
  return out;
}

Result<PageExportReader> open(const Bytes& bytes, int64_t size = -1) {
  return PageExportReader::Open("export", size < 0 ? static_cast<int64_t>(bytes.size()) : size,
                                [&bytes](int64_t offset, std::span<uint8_t> into) -> Result<size_t> {
                                  const size_t at = std::min(static_cast<size_t>(offset), bytes.size());
                                  const size_t n = std::min(into.size(), bytes.size() - at);
                                  std::memcpy(into.data(), bytes.data() + at, n);
                                  return n;
                                });
}

/// The error of reading all of it, or how many pages there were.
std::string read_all(const Bytes& bytes, int64_t size = -1) {
  auto reader = open(bytes, size);
  if (!reader) return reader.error().message();
  for (;;) {
    const auto entry = reader->next();
    if (!entry) return entry.error().message();
    if (!*entry) return fmt::format("{} pages", reader->pages());
  }
}

TEST(PageExport, ReadsWhatItWrote) {
  const Bytes bytes = export_of(3);
  auto reader = open(bytes);
  ASSERT_TRUE(reader.has_value()) << reader.error().message();
  EXPECT_EQ(reader->header().secret_id, kSecretId);
  EXPECT_EQ(reader->header().created, 1234);
  for (int round = 0; round < 2; ++round, reader->rewind()) {
    for (uint64_t n = 1; n <= 3; ++n) {
      const auto entry = reader->next();
      ASSERT_TRUE(entry.has_value()) << entry.error().message();
      ASSERT_TRUE(entry->has_value());
      EXPECT_EQ((*entry)->page.key, key(n));
      EXPECT_EQ((*entry)->page.cache_class, CacheClass::kAgent);
      EXPECT_EQ((*entry)->page.expiry, 5000.5);
      EXPECT_EQ((*entry)->header.exact, n != 2);
      const Bytes record = record_of(n, n != 2);
      EXPECT_TRUE(std::equal(record.begin(), record.end(), (*entry)->page.record.begin(), (*entry)->page.record.end()));
    }
    for (int more = 0; more < 2; ++more) {
      const auto end = reader->next();
      ASSERT_TRUE(end.has_value());
      EXPECT_FALSE(end->has_value());
    }
  }
  EXPECT_EQ(read_all(export_of(0)), "0 pages");
}

const size_t kRecordBytes = static_cast<size_t>(record_bytes(kShape));
const size_t kStride = kExportEntryBytes + kRecordBytes;

/// Writes an entry's head with these fields and a right checksum in place of entry `number` of three.
void put_head(Bytes& bytes, size_t number, uint64_t record_bytes, double expiry, uint64_t cache_class) {
  // The encoder knows no wrong lengths: one whose record has as many bytes makes the checksum right.
  PageExportEncoder encoder;
  (void)encoder.header({.secret_id = kSecretId, .created = 1234});
  std::array<uint8_t, kExportEntryBytes> head{};
  for (size_t n = 0; n <= number; ++n) {
    const uint8_t* anywhere = bytes.data();
    head = encoder.entry({.key = {},
                          .cache_class = static_cast<CacheClass>(cache_class),
                          .expiry = expiry,
                          .record = std::span(anywhere, n == number ? record_bytes : 1)});
  }
  std::copy(head.begin(), head.end(), bytes.begin() + static_cast<std::ptrdiff_t>(kExportHeaderBytes + number * kStride));
}

struct Hostile {
  const char* name;
  std::function<void(Bytes&)> harm;
  const char* says;
};

class HostileExport : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileExport, IsRefusedByName) {
  Bytes bytes = export_of(3);
  ASSERT_EQ(bytes.size(), kExportHeaderBytes + 3 * kStride + kExportEntryBytes);
  GetParam().harm(bytes);
  const std::string error = read_all(bytes);
  EXPECT_TRUE(error.starts_with("export: ")) << error;
  EXPECT_NE(error.find(GetParam().says), std::string::npos) << error;
}

const Hostile kHostile[] = {
    {"Empty", [](Bytes& b) { b.clear(); }, "truncated: the header takes 64 bytes, 0 are left"},
    {"HalfAHeader", [](Bytes& b) { b.resize(30); }, "truncated: the header"},
    {"HeaderAlone", [](Bytes& b) { b.resize(kExportHeaderBytes); }, "truncated: the head of an entry takes 32 bytes, 0 are left"},
    {"AnotherFile", [](Bytes& b) { b.assign(200, 'x'); }, "no export of a KV store"},
    {"AnotherVersion", [](Bytes& b) { b[8] = 9; }, "version 9, this program reads 1"},
    {"SecretIdChanged", [](Bytes& b) { b[20] ^= 1; }, "wrong checksum of the header"},
    {"HeadChanged", [](Bytes& b) { b[kExportHeaderBytes + 9] ^= 1; }, "entry 0: wrong checksum of its head"},
    {"EndsInARecord", [](Bytes& b) { b.resize(kExportHeaderBytes + kStride + 500); },
     "entry 1 has a record of 4952 bytes, 468 are left"},
    {"EndsBetweenRecords", [](Bytes& b) { b.resize(kExportHeaderBytes + 2 * kStride); }, "truncated: the head of an entry"},
    {"NoEnd", [](Bytes& b) { b.resize(b.size() - 1); }, "truncated"},
    {"BytesBehindTheEnd", [](Bytes& b) { b.push_back(0); }, "1 bytes behind the end"},
    {"TwoExports", [](Bytes& b) { append(b, export_of(3)); }, "bytes behind the end"},
    {"EntryTakenOut",
     [](Bytes& b) {
       const auto first = b.begin() + static_cast<std::ptrdiff_t>(kExportHeaderBytes);
       b.erase(first, first + static_cast<std::ptrdiff_t>(kStride));
     },
     "entry 0: wrong checksum of its head"},
    {"LastEntryTakenOut",
     [](Bytes& b) {
       const auto last = b.begin() + static_cast<std::ptrdiff_t>(kExportHeaderBytes + 2 * kStride);
       b.erase(last, last + static_cast<std::ptrdiff_t>(kStride));
     },
     "entry 2: wrong checksum of its head"},
    {"EntriesExchanged",
     [](Bytes& b) {
       const auto first = b.begin() + static_cast<std::ptrdiff_t>(kExportHeaderBytes);
       std::swap_ranges(first, first + static_cast<std::ptrdiff_t>(kStride), first + static_cast<std::ptrdiff_t>(kStride));
     },
     "entry 0: wrong checksum of its head"},
    {"RowsChanged", [](Bytes& b) { b[kExportHeaderBytes + kStride + kExportEntryBytes + 900] ^= 4; },
     "entry 1: page record: wrong checksum of rows"},
    {"RecordHeaderChanged", [](Bytes& b) { b[kExportHeaderBytes + kExportEntryBytes + 20] ^= 4; },
     "entry 0: page record: wrong checksum of the header"},
    {"RecordOfAnotherVersion", [](Bytes& b) { b[kExportHeaderBytes + kExportEntryBytes + 8] = 7; },
     "entry 0: page record: version 7"},
    {"RecordsExchangedUnderTheirHeads",
     [](Bytes& b) {
       const auto rows = b.begin() + static_cast<std::ptrdiff_t>(kExportHeaderBytes + kExportEntryBytes + kRecordBytes - 816);
       std::swap_ranges(rows, rows + 816, rows + static_cast<std::ptrdiff_t>(kStride));
     },
     "wrong checksum of rows"},
    {"LengthBeyondTheFile", [](Bytes& b) { put_head(b, 1, 1 << 20, 5000, 1); },
     "truncated: entry 1 has a record of 1048576 bytes"},
    {"LengthBeyondTheLimit", [](Bytes& b) { put_head(b, 1, uint64_t{1} << 62, 5000, 1); },
     "record_bytes: is 4611686018427387904, must be at most 268435456"},
    {"LengthOfMinusOne", [](Bytes& b) { put_head(b, 0, ~uint64_t{0}, 5000, 1); },
     "entry 0: record_bytes: is 18446744073709551615"},
    {"LengthTooShort", [](Bytes& b) { put_head(b, 0, kRecordBytes - 8, 5000, 1); }, "the page's header says 4952"},
    {"LengthTooLong", [](Bytes& b) { put_head(b, 0, kRecordBytes + 8, 5000, 1); }, "the page's header says 4952"},
    {"LengthOfOneByte", [](Bytes& b) { put_head(b, 0, 1, 5000, 1); }, "entry 0: page record: truncated header"},
    {"EndTooEarly", [](Bytes& b) { put_head(b, 1, 0, 5000, 1); }, "the end says"},
    {"ExpiryOfNoNumber", [](Bytes& b) { put_head(b, 0, kRecordBytes, std::numeric_limits<double>::quiet_NaN(), 1); },
     "entry 0: expiry nan"},
    {"NoSuchClass", [](Bytes& b) { put_head(b, 0, kRecordBytes, 5000, 200); }, "class 200: out of range"},
};
INSTANTIATE_TEST_SUITE_P(All, HostileExport, ::testing::ValuesIn(kHostile), [](const auto& param) { return param.param.name; });

TEST(PageExport, EveryPrefixIsRefusedAndNothingBehindItIsGivenOut) {
  const Bytes bytes = export_of(2);
  for (size_t n = 0; n < bytes.size(); n += n < 200 ? 1 : 97) {
    const Bytes part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_NE(read_all(part).find("truncated"), std::string::npos) << n << " bytes: " << read_all(part);
  }
}

TEST(PageExport, EveryChangedByteIsNoticed) {
  const Bytes bytes = export_of(1);
  for (size_t n = 0; n < bytes.size(); ++n) {
    Bytes changed = bytes;
    changed[n] ^= 0x10;
    EXPECT_TRUE(read_all(changed).starts_with("export: ")) << "byte " << n;
  }
}

TEST(PageExport, AFileThatShrinksWhileItIsReadIsNoticed) {
  const Bytes bytes = export_of(2);
  const Bytes shorter(bytes.begin(), bytes.begin() + 3000);
  EXPECT_NE(read_all(shorter, static_cast<int64_t>(bytes.size())).find("could be read"), std::string::npos);
}

TEST(PageExport, NoMemoryIsTakenForALengthThatItsPageDoesNotHave) {
  // A sparse file may be as large as it likes: the page's own header decides.
  Bytes bytes = export_of(1);
  put_head(bytes, 0, uint64_t{200} << 20, 5000, 1);
  size_t largest = 0;
  auto reader =
      PageExportReader::Open("export", int64_t{1} << 40, [&](int64_t offset, std::span<uint8_t> into) -> Result<size_t> {
        largest = std::max(largest, into.size());
        for (size_t i = 0; i < into.size(); ++i) {
          const size_t at = static_cast<size_t>(offset) + i;
          into[i] = at < bytes.size() ? bytes[at] : 0;
        }
        return into.size();
      });
  ASSERT_TRUE(reader.has_value());
  const auto entry = reader->next();
  ASSERT_FALSE(entry.has_value());
  EXPECT_NE(entry.error().message().find("record_bytes: is 209715200, the page's header says 4952"), std::string::npos)
      << entry.error().message();
  EXPECT_LE(largest, header_bytes(kMaxKvGroups));
}

}  // namespace
}  // namespace deepinfer
