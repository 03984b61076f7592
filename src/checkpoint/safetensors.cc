#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/unordered/unordered_flat_set.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "checkpoint/text_util.h"

namespace deepinfer {
namespace {

using internal::printable;
namespace dom = simdjson::dom;

constexpr int64_t kPrefixBytes = 8;
constexpr size_t kMaxDepth = 8;
constexpr int64_t kWriteChunk = int64_t{4} << 20;

struct DTypeInfo {
  std::string_view name;
  int64_t bytes;
};
// Indexed by DType.
constexpr std::array<DTypeInfo, 10> kDTypes = {{{"BF16", 2},
                                                {"F32", 4},
                                                {"F16", 2},
                                                {"F8_E4M3", 1},
                                                {"F8_E8M0", 1},
                                                {"I8", 1},
                                                {"U8", 1},
                                                {"I32", 4},
                                                {"I64", 8},
                                                {"BOOL", 1}}};

std::optional<DType> dtype_of(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::string short_json(const dom::element& value) { return printable(simdjson::to_string(value)); }

Status read_shape(const dom::element& value, std::vector<int64_t>* shape) {
  dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS)
    return Status::InvalidArgument("shape is {}, not a list", short_json(value));
  for (const dom::element dim : array) {
    if (static_cast<int64_t>(shape->size()) == kMaxTensorDims) {
      return Status::OutOfRange("shape has more than {} dimensions", kMaxTensorDims);
    }
    int64_t n = 0;
    if (dim.get_int64().get(n) != simdjson::SUCCESS || n < 0) {
      return Status::InvalidArgument("shape[{}] is {}, not a length >= 0", shape->size(), short_json(dim));
    }
    shape->push_back(n);
  }
  return Status::Ok();
}

/// data_offsets [begin, end), relative to the payload.
Status read_offsets(const dom::element& value, int64_t payload, int64_t* begin, int64_t* end) {
  dom::array array;
  if (value.get_array().get(array) != simdjson::SUCCESS || array.size() != 2) {
    return Status::InvalidArgument("data_offsets is {}, not a pair", short_json(value));
  }
  if (array.at(0).get_int64().get(*begin) != simdjson::SUCCESS || array.at(1).get_int64().get(*end) != simdjson::SUCCESS) {
    return Status::InvalidArgument("data_offsets is {}, not two integers", short_json(value));
  }
  if (*begin < 0 || *end < *begin || *end > payload) {
    return Status::OutOfRange("data_offsets is [{}, {}], it must ascend within the payload of {} bytes", *begin, *end, payload);
  }
  return Status::Ok();
}

Status read_entry(const dom::element& value, int64_t payload, SafetensorsEntry* entry) {
  dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) {
    return Status::InvalidArgument("the entry is {}, not an object", short_json(value));
  }
  int64_t begin = 0, end = 0;
  unsigned seen = 0;
  for (const dom::key_value_pair field : object) {
    unsigned bit = 0;
    if (field.key == "dtype") {
      bit = 1;
      std::string_view name;
      if (field.value.get_string().get(name) != simdjson::SUCCESS) {
        return Status::InvalidArgument("dtype is {}, not a string", short_json(field.value));
      }
      const auto dtype = dtype_of(name);
      if (!dtype) return Status::InvalidArgument("dtype is \"{}\", which is unknown here", printable(name));
      entry->dtype = *dtype;
    } else if (field.key == "shape") {
      bit = 2;
      if ((seen & bit) == 0) DI_RETURN_IF_ERROR(read_shape(field.value, &entry->shape));
    } else if (field.key == "data_offsets") {
      bit = 4;
      DI_RETURN_IF_ERROR(read_offsets(field.value, payload, &begin, &end));
    } else {
      return Status::InvalidArgument("unknown field \"{}\"", printable(field.key));
    }
    if ((seen & bit) != 0) return Status::InvalidArgument("{} is given twice", field.key);
    seen |= bit;
  }
  if (seen != 7)
    return Status::InvalidArgument("{} is missing", (seen & 1) == 0 ? "dtype" : (seen & 2) == 0 ? "shape" : "data_offsets");

  // An empty tensor is legal whatever its other lengths are, as long as no product overflows.
  int64_t bytes = dtype_bytes(entry->dtype);
  for (const int64_t n : entry->shape) {
    if (__builtin_mul_overflow(bytes, n, &bytes)) {
      return Status::OutOfRange("shape [{}] overflows 64 bits", fmt::join(entry->shape, ", "));
    }
  }
  if (bytes != end - begin) {
    return Status::DataLoss("shape [{}] of {} needs {} bytes, data_offsets [{}, {}] span {}", fmt::join(entry->shape, ", "),
                            dtype_name(entry->dtype), bytes, begin, end, end - begin);
  }
  entry->offset = begin;
  entry->bytes = bytes;
  return Status::Ok();
}

Status read_metadata(const dom::element& value, SafetensorsHeader* header) {
  dom::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return Status::InvalidArgument("__metadata__ is not an object");
  for (const dom::key_value_pair field : object) {
    std::string_view text;
    if (field.value.get_string().get(text) != simdjson::SUCCESS) {
      return Status::InvalidArgument("__metadata__.{} is {}, not a string", printable(field.key), short_json(field.value));
    }
    header->metadata.emplace_back(field.key, text);
  }
  return Status::Ok();
}

/// Sorts by offset and checks that the tensors tile the payload; also that no name occurs twice.
Status check_layout(int64_t payload, std::vector<SafetensorsEntry>* entries) {
  std::sort(entries->begin(), entries->end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  boost::unordered_flat_set<std::string_view> names;
  names.reserve(entries->size());
  int64_t at = 0;
  for (const SafetensorsEntry& e : *entries) {
    if (!names.insert(e.name).second) return Status::DataLoss("tensor {}: the name occurs twice", printable(e.name));
    if (e.offset < at) {
      return Status::DataLoss("tensor {}: begins at payload byte {}, inside the tensor that ends at {}", printable(e.name),
                              e.offset, at);
    }
    if (e.offset > at) {
      return Status::DataLoss("tensor {}: begins at payload byte {}, a hole after byte {}", printable(e.name), e.offset, at);
    }
    at = e.offset + e.bytes;
  }
  if (at != payload) return Status::DataLoss("the tensors end at payload byte {}, the payload has {} bytes", at, payload);
  return Status::Ok();
}

Status read_header(std::span<const std::byte> file, SafetensorsHeader* header) {
  const auto size = static_cast<int64_t>(file.size());
  if (size < kPrefixBytes) return Status::DataLoss("the file has {} bytes, the header length alone needs {}", size, kPrefixBytes);
  uint64_t length = 0;
  for (size_t i = 0; i < kPrefixBytes; ++i) length |= static_cast<uint64_t>(file[i]) << (8 * i);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    return Status::OutOfRange("the header length is {}, the limit is {}", length, kMaxSafetensorsHeader);
  }
  const auto json_bytes = static_cast<int64_t>(length);
  if (json_bytes > size - kPrefixBytes) {
    return Status::DataLoss("the header length is {}, the file has {} bytes after it", json_bytes, size - kPrefixBytes);
  }
  const int64_t payload = size - kPrefixBytes - json_bytes;

  dom::parser parser;
  const simdjson::padded_string json(reinterpret_cast<const char*>(file.data()) + kPrefixBytes, static_cast<size_t>(json_bytes));
  if (parser.allocate(static_cast<size_t>(json_bytes) + 64, kMaxDepth) != simdjson::SUCCESS) {
    return Status::ResourceExhausted("no memory to parse a header of {} bytes", json_bytes);
  }
  dom::element document;
  if (const auto error = parser.parse(json).get(document)) {
    return Status::DataLoss("the header is not valid JSON (nesting limit {}): {}", kMaxDepth, simdjson::error_message(error));
  }
  dom::object root;
  if (document.get_object().get(root) != simdjson::SUCCESS) return Status::DataLoss("the header is not a JSON object");

  header->entries.reserve(root.size());
  for (const dom::key_value_pair field : root) {
    if (field.key == "__metadata__") {
      DI_RETURN_IF_ERROR(read_metadata(field.value, header));
      continue;
    }
    if (field.key.size() > kMaxTensorName) {
      return Status::OutOfRange("tensor {}: the name has {} bytes, the limit is {}", printable(field.key), field.key.size(),
                                kMaxTensorName);
    }
    SafetensorsEntry entry;
    entry.name = field.key;
    if (const Status status = read_entry(field.value, payload, &entry); !status.ok()) {
      return status.with_context("tensor " + printable(field.key));
    }
    header->entries.push_back(std::move(entry));
  }
  DI_RETURN_IF_ERROR(check_layout(payload, &header->entries));
  for (SafetensorsEntry& e : header->entries) e.offset += kPrefixBytes + json_bytes;
  return Status::Ok();
}

// ---- writing ----

void append_json_string(std::string_view text, std::string* out) {
  *out += '"';
  for (const char ch : text) {
    if (ch == '"' || ch == '\\') {
      *out += '\\';
      *out += ch;
    } else if (static_cast<unsigned char>(ch) < 0x20) {
      *out += fmt::format("\\u{:04x}", static_cast<unsigned>(ch));
    } else {
      *out += ch;
    }
  }
  *out += '"';
}

Result<std::string> header_json(std::span<const SafetensorsWrite> tensors,
                                std::span<const std::pair<std::string, std::string>> metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (size_t i = 0; i < metadata.size(); ++i) {
      if (i > 0) json += ',';
      append_json_string(metadata[i].first, &json);
      json += ':';
      append_json_string(metadata[i].second, &json);
    }
    json += tensors.empty() ? "}" : "},";
  }
  int64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const SafetensorsWrite& t = tensors[i];
    int64_t end = dtype_bytes(t.dtype);
    for (const int64_t n : t.shape) {
      if (n < 0 || __builtin_mul_overflow(end, n, &end))
        return Err(Status::OutOfRange("tensor {}: the shape overflows", printable(t.name)));
    }
    if (__builtin_add_overflow(end, at, &end)) return Err(Status::OutOfRange("tensor {}: the file overflows", printable(t.name)));
    if (i > 0) json += ',';
    append_json_string(t.name, &json);
    json += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", dtype_name(t.dtype),
                        fmt::join(t.shape, ","), at, end);
    at = end;
  }
  json += '}';
  // The payload starts at a multiple of 64 bytes: aligned for any dtype as long as the tensors before are.
  while ((json.size() + kPrefixBytes) % 64 != 0) json += ' ';
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeader) {
    return Err(Status::OutOfRange("the header has {} bytes, the limit is {}", json.size(), kMaxSafetensorsHeader));
  }
  return json;
}

Status write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::ResourceExhausted("cannot write: {}", std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return Status::Ok();
}

Status write_payload(int fd, std::span<const SafetensorsWrite> tensors) {
  // Small tensors are gathered; a chunk goes out when it is full.
  const auto buffer = std::make_unique<std::byte[]>(static_cast<size_t>(kWriteChunk));
  int64_t used = 0;
  const auto flush = [&] {
    const Status status = write_all(fd, {buffer.get(), static_cast<size_t>(used)});
    used = 0;
    return status;
  };
  for (const SafetensorsWrite& t : tensors) {
    int64_t bytes = dtype_bytes(t.dtype);
    for (const int64_t n : t.shape) bytes *= n;
    for (int64_t at = 0; at < bytes;) {
      int64_t room = kWriteChunk - used;
      if (room < 64) {
        DI_RETURN_IF_ERROR(flush());
        room = kWriteChunk;
      }
      const int64_t n = std::min(bytes - at, room / 64 * 64);
      if (Status status = t.fill(at, {buffer.get() + used, static_cast<size_t>(n)}); !status.ok()) {
        return status.with_context("tensor " + printable(t.name));
      }
      used += n;
      at += n;
    }
  }
  return flush();
}

}  // namespace

std::string_view dtype_name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }
int64_t dtype_bytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }

int64_t TensorView::elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  SafetensorsHeader header;
  if (const Status status = read_header(file, &header); !status.ok())
    return Err(status.with_context(internal::printable_path(source)));
  return header;
}

Status write_safetensors(const std::string& path, std::span<const SafetensorsWrite> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata) {
  const auto json = header_json(tensors, metadata);
  if (!json) return json.error().with_context(path);
  const std::string temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Status::InvalidArgument("{}: cannot create: {}", temporary, std::strerror(errno));
  std::array<std::byte, kPrefixBytes> prefix;
  for (size_t i = 0; i < prefix.size(); ++i) prefix[i] = static_cast<std::byte>(json->size() >> (8 * i));
  Status status = write_all(fd, prefix);
  if (status.ok()) status = write_all(fd, std::as_bytes(std::span(*json)));
  if (status.ok()) status = write_payload(fd, tensors);
  if (::close(fd) != 0 && status.ok()) status = Status::ResourceExhausted("cannot close: {}", std::strerror(errno));
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = Status::InvalidArgument("cannot rename from {}: {}", temporary, std::strerror(errno));
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status.with_context(path);
}

}  // namespace deepinfer
