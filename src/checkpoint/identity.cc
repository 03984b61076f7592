#include "checkpoint/identity.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "base/mapped_file.h"

namespace deepinfer {
namespace {

constexpr int64_t kChunkBytes = int64_t{16} << 20;

struct Chunk {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};

std::string hex(const XXH128_hash_t& hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

Result<std::string> checkpoint_identity(const Checkpoint& checkpoint, ThreadPool& pool) {
  std::string text;
  for (const char* name : {"config.json", "tokenizer.json"}) {
    DI_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(checkpoint.directory() + "/" + name));
    text += fmt::format("{} {}\n", name, hex(XXH3_128bits(file.data(), static_cast<size_t>(file.size()))));
  }
  std::vector<Chunk> chunks;
  for (const CatalogueEntry& entry : make_catalogue(checkpoint.config())) {
    const TensorView* tensor = checkpoint.find(entry.name);
    if (tensor == nullptr) continue;
    text += fmt::format("{} {} [{}] {}\n", entry.name, dtype_name(tensor->dtype), fmt::join(tensor->shape, ","), tensor->bytes);
    for (int64_t at = 0; at < tensor->bytes; at += kChunkBytes)
      chunks.push_back({tensor->data + at, std::min(kChunkBytes, tensor->bytes - at)});
  }
  std::vector<XXH128_hash_t> hashes(chunks.size());
  pool.run(static_cast<int64_t>(chunks.size()), [&](int64_t i, int) {
    const Chunk& chunk = chunks[static_cast<size_t>(i)];
    hashes[static_cast<size_t>(i)] = XXH3_128bits(chunk.data, static_cast<size_t>(chunk.bytes));
  });
  for (const XXH128_hash_t& hash : hashes) text += hex(hash);
  return hex(XXH3_128bits(text.data(), text.size()));
}

}  // namespace deepinfer
