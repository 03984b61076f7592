#pragma once

// Comparing what backends give for one operator case (DESIGN §4).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "ops/op_cases.h"

namespace deepinfer::testing {

inline bool verbose() { return std::getenv("DEEPINFER_TEST_VERBOSE") != nullptr; }

template <typename T>
std::vector<T> values(const Output& o, int64_t rows) {
  std::vector<T> v(static_cast<size_t>(rows * o.row_bytes) / sizeof(T));
  std::memcpy(v.data(), o.bytes.data(), v.size() * sizeof(T));
  return v;
}

inline double relative_l2(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    error += d * d;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return error == 0 ? 0 : std::sqrt(error / norm);
}

// Distance in units in the last place; +0 and -0 are one value.
inline int64_t bf16_distance(bf16 a, bf16 b) {
  const auto line = [](bf16 v) {
    return (v.bits & 0x8000) != 0 ? -static_cast<int64_t>(v.bits & 0x7fff) : static_cast<int64_t>(v.bits);
  };
  return std::abs(line(a) - line(b));
}

// Row by row: a bad row must not hide among good ones.
inline void expect_close(const Output& got, const Output& want, int64_t rows) {
  ASSERT_EQ(got.row_bytes, want.row_bytes);
  const auto count = static_cast<size_t>(rows * want.row_bytes);
  ASSERT_GE(got.bytes.size(), count);
  if (want.compare == Compare::kBits) {
    for (int64_t r = 0; r < rows; ++r) {
      ASSERT_EQ(std::memcmp(got.bytes.data() + r * want.row_bytes, want.bytes.data() + r * want.row_bytes,
                            static_cast<size_t>(want.row_bytes)),
                0)
          << want.name << " row " << r;
    }
    return;
  }
  if (want.compare == Compare::kFloat) {
    const auto g = values<float>(got, rows);
    const auto w = values<float>(want, rows);
    const size_t width = w.size() / static_cast<size_t>(rows);
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const std::vector<float> a(g.begin() + static_cast<int64_t>(r * width), g.begin() + static_cast<int64_t>((r + 1) * width));
      const std::vector<float> b(w.begin() + static_cast<int64_t>(r * width), w.begin() + static_cast<int64_t>((r + 1) * width));
      ASSERT_LE(relative_l2(a, b), 1e-5) << want.name << " row " << r;
    }
    return;
  }
  const auto g = values<bf16>(got, rows);
  const auto w = values<bf16>(want, rows);
  const size_t width = w.size() / static_cast<size_t>(rows);
  int64_t unequal = 0;
  int64_t far = 0;
  double worst_l2 = 0;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    double error = 0;
    double norm = 0;
    float largest = 0;
    for (size_t i = r * width; i < (r + 1) * width; ++i) {
      largest = std::max(largest, std::fabs(to_float(w[i])));
      norm += static_cast<double>(to_float(w[i])) * static_cast<double>(to_float(w[i]));
    }
    for (size_t i = r * width; i < (r + 1) * width; ++i) {
      const double a = to_float(g[i]);
      const double b = to_float(w[i]);
      ASSERT_FALSE(std::isnan(a)) << want.name << " row " << r;
      if (std::fabs(a - b) < 1e-30) continue;  // e^-1000 is 0 in one exponential and the least number in another
      error += (a - b) * (a - b);
      const int64_t distance = bf16_distance(g[i], w[i]);
      unequal += distance > 0 ? 1 : 0;
      // What cancels to nearly nothing has no meaningful last place; it is measured against the row.
      far += distance > 1 && std::fabs(a - b) > 1e-6 * static_cast<double>(largest) ? 1 : 0;
    }
    const double l2 = error == 0 ? 0 : std::sqrt(error / norm);
    worst_l2 = std::max(worst_l2, l2);
    ASSERT_LE(l2, 4e-3) << want.name << " row " << r;  // one unit in the last place everywhere
  }
  const auto total = static_cast<double>(w.size());
  if (verbose()) {
    std::printf("%-12s unequal %.4f%% far %.4f%% worst row L2 %.1e\n", want.name.c_str(),
                100 * static_cast<double>(unequal) / total, 100 * static_cast<double>(far) / total, worst_l2);
  }
  const bool inner = want.compare == Compare::kInnerQuantiser;
  EXPECT_LE(static_cast<double>(unequal), std::max(1.0, (inner ? 0.05 : 0.01) * total)) << want.name;
  EXPECT_LE(static_cast<double>(far), std::max(1.0, 0.001 * total)) << want.name;
}

// Bitwise: rows [at, at + count) of `all` against the whole of `part`.
inline void expect_same(const Outputs& part, const Outputs& all, int64_t at, int64_t count) {
  ASSERT_EQ(part.size(), all.size());
  for (size_t i = 0; i < part.size(); ++i) {
    const int64_t bytes = all[i].row_bytes;
    ASSERT_EQ(part[i].bytes.size(), static_cast<size_t>(count * bytes));
    for (int64_t r = 0; r < count; ++r) {
      ASSERT_EQ(std::memcmp(part[i].bytes.data() + r * bytes, all[i].bytes.data() + (at + r) * bytes, static_cast<size_t>(bytes)),
                0)
          << all[i].name << ": row " << at + r << " as row " << r << " of " << count;
    }
  }
}

}  // namespace deepinfer::testing
