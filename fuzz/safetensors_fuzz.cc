// The safetensors header: whatever comes back must lie inside the file and tile its payload.

#include <cstdlib>

#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = deepinfer::parse_safetensors({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
  if (!header) {
    if (header.error().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  int64_t at = -1;
  for (const auto& e : header->entries) {
    if (e.offset < 8 || e.bytes < 0 || e.offset > static_cast<int64_t>(size) || e.bytes > static_cast<int64_t>(size) - e.offset) {
      std::abort();
    }
    if (at >= 0 && e.offset != at) std::abort();
    at = e.offset + e.bytes;
  }
  if (at >= 0 && at != static_cast<int64_t>(size)) std::abort();
  return 0;
}
