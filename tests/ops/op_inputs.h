#pragma once

// Inputs and outputs of operator cases.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/op_cases.h"
#include "testing/random.h"

namespace deepinfer::testing {

inline const std::vector<int64_t> kManyCounts = {1, 2, 7, 8, 9, 11, 12, 13, 33, 64, 100};
inline const std::vector<int64_t> kFewCounts = {1, 2, 3, 8, 9, 13};

/// Rows as a model makes them, and rows that it may: group by group zeros, values below every floor, large values, negative
/// zeros; some rows are nothing else.
inline std::vector<bf16> activations(Random& random, int64_t rows, int64_t width, float scale = 1.0f) {
  std::vector<bf16> x(static_cast<size_t>(rows * width));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row_kind = r % 13;
    for (int64_t g = 0; g < width; g += 16) {
      const int64_t kind = row_kind == 5 ? 12 : row_kind == 7 ? 13 : row_kind == 10 ? 14 : random.below(40);
      for (int64_t i = g; i < std::min(width, g + 16); ++i) {
        float v = random.normal() * scale;
        if (kind == 12) v = (i & 1) != 0 ? -0.0f : 0.0f;
        if (kind == 13) v *= 1e-9f;
        if (kind == 14) v *= 300.0f;
        if (kind == 15) v *= 3e-5f;
        if (random.below(64) == 0) v = -0.0f;
        x[static_cast<size_t>(r * width + i)] = to_bf16(v);
      }
    }
  }
  return x;
}

inline std::vector<bf16> bf16_weights(Random& random, int64_t count, float scale) {
  std::vector<bf16> w(static_cast<size_t>(count));
  for (bf16& v : w) v = to_bf16(random.normal() * scale);
  return w;
}

inline std::vector<float> floats(Random& random, int64_t count, float scale) {
  std::vector<float> w(static_cast<size_t>(count));
  for (float& v : w) v = random.normal() * scale;
  return w;
}

/// E4M3 bytes of a normal distribution, zeros and subnormals among them.
inline void fill_e4m3(Random& random, std::vector<uint8_t>& bytes) {
  uint8_t table[256];
  for (int i = 0; i < 256; ++i) table[i] = float_to_e4m3(random.normal() * ((i & 7) == 0 ? 0.004f : 1.0f));
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t draw = random.bits();
    for (size_t b = 0; b < std::min<size_t>(8, bytes.size() - i); ++b) bytes[i + b] = table[draw >> (8 * b) & 255];
  }
}

inline void fill_bytes(Random& random, std::vector<uint8_t>& bytes) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t draw = random.bits();
    std::memcpy(bytes.data() + i, &draw, std::min<size_t>(8, bytes.size() - i));
  }
}

/// E8M0 bytes around 2^centre.
inline void fill_e8m0(Random& random, std::vector<uint8_t>& bytes, int centre) {
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(127 + centre + random.between(-1, 1));
}

struct Fp8Matrix {
  std::vector<uint8_t> values, scales;
  int64_t out = 0, in = 0;

  Fp8Matrix() = default;
  Fp8Matrix(Random& random, int64_t out_, int64_t in_) : out(out_), in(in_) {
    values.resize(static_cast<size_t>(out * in));
    scales.resize(static_cast<size_t>((out + 31) / 32 * (in / 32)));
    fill_e4m3(random, values);
    fill_e8m0(random, scales, -static_cast<int>(std::log2(static_cast<double>(in)) / 2));
  }
  Fp8Weight view() const { return {values.data(), scales.data(), out, in}; }
};

struct Fp4Matrix {
  std::vector<uint8_t> codes, scales;
  int64_t out = 0, in = 0;

  Fp4Matrix() = default;
  Fp4Matrix(Random& random, int64_t out_, int64_t in_) : out(out_), in(in_) {
    codes.resize(static_cast<size_t>(out * in / 2));
    scales.resize(static_cast<size_t>(out * (in / 32)));
    fill_bytes(random, codes);
    fill_e8m0(random, scales, -1 - static_cast<int>(std::log2(static_cast<double>(in)) / 2));
  }
  Fp4Weight view() const { return {codes.data(), scales.data(), out, in}; }
};

template <typename T>
Output output_of(std::string name, Compare compare, const std::vector<T>& values, int64_t width) {
  Output out;
  out.name = std::move(name);
  out.compare = compare;
  out.row_bytes = width * static_cast<int64_t>(sizeof(T));
  out.bytes.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
  return out;
}

/// A paged cache of its own.
struct PagedBuffer {
  std::vector<uint8_t> bytes;
  std::vector<uint8_t*> pages;
  PagedRows rows;

  PagedBuffer(int64_t count, int64_t rows_per_page, int64_t row_bytes, int64_t offset) {
    const int64_t page_count = (count + rows_per_page - 1) / rows_per_page;
    const int64_t page_bytes = offset + rows_per_page * row_bytes + 24;
    bytes.assign(static_cast<size_t>(page_count * page_bytes), 0xA5);
    for (int64_t p = 0; p < page_count; ++p) pages.push_back(bytes.data() + (page_count - 1 - p) * page_bytes);  // not in order
    rows = {pages.data(), rows_per_page, offset, row_bytes};
  }
  PagedBuffer(const PagedBuffer&) = delete;
};

/// The first `count` rows.
inline std::vector<uint8_t*> rows_of(const PagedBuffer& buffer, int64_t count) {
  std::vector<uint8_t*> rows;
  for (int64_t r = 0; r < count; ++r) rows.push_back(buffer.rows.row(r));
  return rows;
}

}  // namespace deepinfer::testing
