#include "testing/golden_file.h"

#include <cmath>
#include <stdexcept>

#include "base/scalar_types.h"
#include "checkpoint/safetensors.h"

namespace deepinfer::testing {

GoldenFile::GoldenFile(const std::string& path) {
  auto file = MappedFile::Open(path);
  if (!file) throw std::runtime_error(file.error().message());
  file_ = std::move(*file);
  auto header = parse_safetensors(file_.bytes(), path);
  if (!header) throw std::runtime_error(header.error().message());
  for (const SafetensorsEntry& e : header->entries) {
    const std::byte* data = file_.data() + e.offset;
    // The format does not align tensors; spans of floats need it.
    if (reinterpret_cast<uintptr_t>(data) % alignof(float) != 0) data = aligned_.emplace_back(data, data + e.bytes).data();
    tensors_[e.name] = {e.shape, e.dtype, data, e.bytes};
  }
}

const GoldenFile::Tensor& GoldenFile::at(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw std::runtime_error("golden file has no " + name);
  return it->second;
}

std::span<const float> GoldenFile::f32(const std::string& name) const {
  const Tensor& t = at(name);
  return {reinterpret_cast<const float*>(t.data), static_cast<size_t>(t.bytes) / sizeof(float)};
}

std::span<const int32_t> GoldenFile::i32(const std::string& name) const {
  const Tensor& t = at(name);
  return {reinterpret_cast<const int32_t*>(t.data), static_cast<size_t>(t.bytes) / sizeof(int32_t)};
}

std::span<const uint8_t> GoldenFile::u8(const std::string& name) const {
  const Tensor& t = at(name);
  return {reinterpret_cast<const uint8_t*>(t.data), static_cast<size_t>(t.bytes)};
}

std::vector<float> GoldenFile::values(const std::string& name) const {
  const Tensor& t = at(name);
  if (t.dtype == DType::kF32) {
    const auto v = f32(name);
    return {v.begin(), v.end()};
  }
  if (t.dtype != DType::kBF16) throw std::runtime_error(name + " is neither fp32 nor bf16");
  std::vector<float> v;
  const auto* p = reinterpret_cast<const bf16*>(t.data);
  for (int64_t i = 0; i < t.bytes / 2; ++i) v.push_back(to_float(p[i]));
  return v;
}

int64_t GoldenFile::dim(const std::string& name, size_t axis) const { return at(name).shape.at(axis); }

double relative_l2(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::nan("");
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return error == 0 ? 0 : std::sqrt(error / norm);
}

}  // namespace deepinfer::testing
