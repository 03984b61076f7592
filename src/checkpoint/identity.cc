#include "checkpoint/identity.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>

#include "base/mapped_file.h"

namespace deepinfer {
namespace {

constexpr int64_t kChunkBytes = int64_t{16} << 20;
// A sample's blocks are what a disk reads at once.
constexpr int64_t kBlockBytes = 4096;
constexpr int64_t kLeastBlocks = 3;                                    // of every tensor
constexpr int64_t kSharedBlocks = (int64_t{256} << 20) / kBlockBytes;  // besides, by size

struct Chunk {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};

std::string hex(const XXH128_hash_t& hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

/// Keeps the kernel from reading around every block that is sampled, which would be most of a checkpoint of many tensors.
class RandomReads {
 public:
  explicit RandomReads(std::vector<Chunk> tensors) {
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    std::sort(tensors.begin(), tensors.end(), [](const Chunk& a, const Chunk& b) { return a.data < b.data; });
    for (const Chunk& tensor : tensors) {
      const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data) / page * page;
      const uintptr_t end =
          (reinterpret_cast<uintptr_t>(tensor.data) + static_cast<uintptr_t>(tensor.bytes) + page - 1) / page * page;
      if (!ranges_.empty() && begin <= ranges_.back().end) {
        ranges_.back().end = std::max(ranges_.back().end, end);
      } else {
        ranges_.push_back({begin, end});
      }
    }
    advise(MADV_RANDOM);
  }
  ~RandomReads() { advise(MADV_NORMAL); }
  RandomReads(const RandomReads&) = delete;
  RandomReads& operator=(const RandomReads&) = delete;

 private:
  struct Range {
    uintptr_t begin = 0;
    uintptr_t end = 0;
  };

  /// A refusal costs time only.
  void advise(int advice) const {
    for (const Range& range : ranges_) ::madvise(reinterpret_cast<void*>(range.begin), range.end - range.begin, advice);
  }

  std::vector<Range> ranges_;  ///< whole pages
};

}  // namespace

std::vector<SampledBytes> sample_of(std::string_view name, int64_t bytes, int64_t total_bytes) {
  const int64_t blocks =
      kLeastBlocks + static_cast<int64_t>(static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(total_bytes, 1)) *
                                          static_cast<double>(kSharedBlocks));
  if (bytes <= blocks * kBlockBytes) return {{0, bytes}};
  std::vector<SampledBytes> sample = {{0, kBlockBytes}};
  // Between begin and end a block in each of equal parts, where the name says: no two tensors are looked at in the same places.
  const int64_t parts = blocks - 2;
  const int64_t inner = bytes - 2 * kBlockBytes;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = inner / parts * i;
    const int64_t room = inner / parts - kBlockBytes + 1;
    const uint64_t random = XXH3_64bits_withSeed(name.data(), name.size(), static_cast<uint64_t>(i));
    sample.push_back({kBlockBytes + begin + static_cast<int64_t>(random % static_cast<uint64_t>(room)), kBlockBytes});
  }
  sample.push_back({bytes - kBlockBytes, kBlockBytes});
  return sample;
}

Result<std::string> checkpoint_identity(const Checkpoint& checkpoint, ThreadPool& pool, WeightsCheck check) {
  const bool full = check == WeightsCheck::kFull;
  std::string text = full ? "full\n" : "sample 1\n";
  for (const char* name : {"config.json", "tokenizer.json"}) {
    DI_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(checkpoint.directory() + "/" + name));
    text += fmt::format("{} {}\n", name, hex(XXH3_128bits(file.data(), static_cast<size_t>(file.size()))));
  }
  std::vector<Chunk> tensors, chunks;
  for (const CatalogueEntry& entry : make_catalogue(checkpoint.config())) {
    const TensorView* tensor = checkpoint.find(entry.name);
    if (tensor == nullptr) continue;
    text += fmt::format("{} {} [{}] {}\n", entry.name, dtype_name(tensor->dtype), fmt::join(tensor->shape, ","), tensor->bytes);
    tensors.push_back({tensor->data, tensor->bytes});
    if (full) {
      for (int64_t at = 0; at < tensor->bytes; at += kChunkBytes)
        chunks.push_back({tensor->data + at, std::min(kChunkBytes, tensor->bytes - at)});
    } else {
      for (const SampledBytes& part : sample_of(entry.name, tensor->bytes, checkpoint.total_bytes()))
        chunks.push_back({tensor->data + part.offset, part.bytes});
    }
  }
  std::vector<XXH128_hash_t> hashes(chunks.size());
  const RandomReads reads(full ? std::vector<Chunk>() : std::move(tensors));
  pool.run(static_cast<int64_t>(chunks.size()), [&](int64_t i, int) {
    const Chunk& chunk = chunks[static_cast<size_t>(i)];
    hashes[static_cast<size_t>(i)] = XXH3_128bits(chunk.data, static_cast<size_t>(chunk.bytes));
  });
  for (const XXH128_hash_t& hash : hashes) text += hex(hash);
  return hex(XXH3_128bits(text.data(), text.size()));
}

}  // namespace deepinfer
