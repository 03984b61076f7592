#include "cuda/sparse_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/random_checkpoint.h"

namespace deepinfer::bench {
namespace {

namespace fs = std::filesystem;

bool is_table(const CatalogueEntry& e) { return e.name.find("engram.embed.") != std::string::npos; }

std::string kind_of(const CatalogueEntry& e) {
  std::string name = e.name;
  std::erase_if(name, [](char ch) { return ch >= '0' && ch <= '9'; });
  return fmt::format("{} {} {}", dtype_name(e.dtype), e.shape.back(), name);
}

}  // namespace

Status write_sparse_checkpoint(const ModelConfig& config, const std::string& config_text, const std::string& directory) {
  std::vector<CatalogueEntry> catalogue = make_catalogue(config);
  // Wide elements first, so that every tensor is aligned to its element type.
  std::stable_sort(catalogue.begin(), catalogue.end(),
                   [](const auto& a, const auto& b) { return dtype_bytes(a.dtype) > dtype_bytes(b.dtype); });
  std::string header = "{";
  int64_t offset = 0;
  for (const CatalogueEntry& e : catalogue) {
    header += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header.size() > 1 ? "," : "",
                          e.name, dtype_name(e.dtype), fmt::join(e.shape, ","), offset, offset + e.bytes());
    offset += e.bytes();
  }
  header += "}";
  header.resize((header.size() + 255) / 256 * 256 + 248, ' ');  // the payload begins at a multiple of 256
  std::error_code error;
  fs::create_directories(directory, error);
  const std::string path = directory + "/" + internal::kSingleFile;
  {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    const auto length = static_cast<uint64_t>(header.size());
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    int64_t at = static_cast<int64_t>(sizeof(length) + header.size());
    for (const CatalogueEntry& e : catalogue) {
      if (is_table(e)) {
        DI_ASSIGN_OR_RETURN(const RandomFill fill, random_fill(config, e, 1));
        std::vector<std::byte> bytes(static_cast<size_t>(e.bytes()));
        DI_RETURN_IF_ERROR(fill(0, bytes));
        file.seekp(at);
        file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      }
      at += e.bytes();
    }
    file.close();
    if (!file) return Status::InvalidArgument("{}: cannot write", path);
    fs::resize_file(path, static_cast<uintmax_t>(at), error);
    if (error) return Status::InvalidArgument("{}: cannot grow to {} bytes: {}", path, at, error.message());
  }
  std::ofstream file(directory + "/config.json", std::ios::binary | std::ios::trunc);
  file << config_text;
  file.close();
  return file ? Status::Ok() : Status::InvalidArgument("{}/config.json: cannot write", directory);
}

DeviceFill::DeviceFill(const Checkpoint& checkpoint, DeviceMemory* memory)
    : config_(checkpoint.config()), memory_(memory), catalogue_(make_catalogue(checkpoint.config())) {
  for (const CatalogueEntry& e : catalogue_) {
    if (const TensorView* view = checkpoint.find(e.name); view != nullptr) tensors_[view->data] = &e;
  }
}

DeviceFill::~DeviceFill() {
  for (auto& [kind, block] : blocks_) memory_->free(block.data);
}

const DeviceFill::Block& DeviceFill::block(const CatalogueEntry& tensor) {
  // Large ones: not a multiple of any row. Small ones, whose entries have places (hyper-connections, norms), are taken as they
  // are.
  constexpr int64_t kLarge = int64_t{1} << 20;
  constexpr int64_t kBlockBytes = (int64_t{24} << 20) + 4096 + 64;
  Block& block = blocks_[kind_of(tensor)];
  if (block.data != nullptr) return block;
  block.bytes = tensor.bytes() < kLarge ? tensor.bytes() : kBlockBytes;
  std::vector<std::byte> host(static_cast<size_t>(block.bytes));
  auto fill = random_fill(config_, tensor, 1);
  DI_CHECK(fill && (*fill)(0, host).ok(), "{} cannot be filled", tensor.name);
  block.data = static_cast<uint8_t*>(memory_->allocate(block.bytes));
  memory_->upload(block.data, host.data(), block.bytes);
  return block;
}

bool DeviceFill::fill(void* to, const void* host, int64_t bytes) {
  const auto found = tensors_.find(host);
  if (found == tensors_.end() || found->second->bytes() != bytes) return false;
  const Block& from = block(*found->second);
  auto* out = static_cast<uint8_t*>(to);
  const int64_t start = bytes == from.bytes ? 0 : filled_++ * 4160 % (from.bytes / 2) / 64 * 64;
  for (int64_t done = 0; done < bytes;) {
    const int64_t begin = done == 0 ? start : 0;
    const int64_t piece = std::min(bytes - done, from.bytes - begin);
    memory_->copy(out + done, from.data + begin, piece);
    done += piece;
  }
  return true;
}

}  // namespace deepinfer::bench
