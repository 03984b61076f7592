#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"

namespace deepinfer::testing {

/// A golden file: named fp32, int32 and uint8 arrays that the reference implementation computed.
class GoldenFile {
 public:
  /// Throws std::runtime_error with the reason if the file cannot be read.
  explicit GoldenFile(const std::string& path);

  bool has(const std::string& name) const { return tensors_.contains(name); }
  std::span<const float> f32(const std::string& name) const;
  std::span<const int32_t> i32(const std::string& name) const;
  std::span<const uint8_t> u8(const std::string& name) const;
  /// An fp32 or bf16 array as floats.
  std::vector<float> values(const std::string& name) const;
  int64_t dim(const std::string& name, size_t axis) const;

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    DType dtype;
    const std::byte* data;
    int64_t bytes;
  };
  const Tensor& at(const std::string& name) const;

  MappedFile file_;
  std::deque<std::vector<std::byte>> aligned_;  ///< copies of tensors that lie at odd addresses in the file
  std::map<std::string, Tensor> tensors_;
};

/// |a - b| / |b|; 0 when both are zero.
double relative_l2(std::span<const float> a, std::span<const float> b);

}  // namespace deepinfer::testing
