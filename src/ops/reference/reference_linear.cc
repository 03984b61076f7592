#include "ops/reference/reference_linear.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::reference {
namespace {

// Wider registers where the processor has them; every row's sum stays what it is. (The resolver of a cloned function runs before
// the thread sanitizer is ready.)
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define DEEPINFER_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DEEPINFER_WIDE
#endif

DEEPINFER_WIDE void add_products(double* sum, double w, const float* x, int64_t n) {
  for (int64_t r = 0; r < n; ++r) sum[r] += w * static_cast<double>(x[r]);
}

// y[r] = sum over k of weight(k) * x[k][r], k ascending.
template <typename WeightAt>
void multiply(int64_t k, const Inputs& x, WeightAt weight, float* y) {
  std::vector<double> sum(static_cast<size_t>(x.rows), 0.0);
  for (int64_t i = 0; i < k; ++i) {
    add_products(sum.data(), weight(i), x.values.data() + i * x.rows, x.rows);
  }
  for (int64_t r = 0; r < x.rows; ++r) y[r] = static_cast<float>(sum[static_cast<size_t>(r)]);
}

template <typename Load>
Inputs transpose(int64_t rows, int64_t k, bool quantize, Load row_of) {
  Inputs in;
  in.rows = rows;
  in.k = k;
  in.values.resize(static_cast<size_t>(rows * k));
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t r = 0; r < rows; ++r) {
    const bf16* x = row_of(r);
    if (quantize) {
      round_fp8_groups(x, k, row.data());
    } else {
      for (int64_t i = 0; i < k; ++i) row[static_cast<size_t>(i)] = to_float(x[i]);
    }
    for (int64_t i = 0; i < k; ++i) in.values[static_cast<size_t>(i * rows + r)] = row[static_cast<size_t>(i)];
  }
  return in;
}

}  // namespace

void round_fp8_groups(const bf16* x, int64_t k, float* y) {
  for (int64_t g = 0; g < k; g += kScaleGroup) {
    float amax = 0;
    for (int64_t i = g; i < g + kScaleGroup; ++i) amax = std::max(amax, std::fabs(to_float(x[i])));
    const float scale = e8m0_to_float(fp8_group_scale(amax));
    for (int64_t i = g; i < g + kScaleGroup; ++i) y[i] = e4m3_to_float(float_to_e4m3(to_float(x[i]) / scale)) * scale;
  }
}

Inputs make_inputs(const bf16* x, int64_t rows, int64_t k, int64_t stride, bool quantize) {
  return transpose(rows, k, quantize, [&](int64_t r) { return x + r * stride; });
}

Inputs gather_inputs(const bf16* x, std::span<const int64_t> rows, int64_t k, bool quantize) {
  return transpose(static_cast<int64_t>(rows.size()), k, quantize,
                   [&](int64_t r) { return x + rows[static_cast<size_t>(r)] * k; });
}

void multiply_fp8(const Fp8Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y) {
  for (int64_t o = begin; o < end; ++o) {
    const uint8_t* values = w.values + o * w.in;
    const uint8_t* scales = w.scales + o / kScaleGroup * (w.in / kScaleGroup);
    multiply(
        w.in, x, [&](int64_t i) { return e4m3_to_float(values[i]) * e8m0_to_float(scales[i / kScaleGroup]); },
        y + (o - begin) * x.rows);
  }
}

void multiply_fp4(const Fp4Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y) {
  for (int64_t o = begin; o < end; ++o) {
    const uint8_t* codes = w.codes + o * (w.in / 2);
    const uint8_t* scales = w.scales + o * (w.in / kScaleGroup);
    multiply(
        w.in, x,
        [&](int64_t i) {
          const auto code = static_cast<uint8_t>((i & 1) != 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15);
          return e2m1_to_float(code) * e8m0_to_float(scales[i / kScaleGroup]);
        },
        y + (o - begin) * x.rows);
  }
}

void multiply_bf16(const Bf16Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y) {
  for (int64_t o = begin; o < end; ++o) {
    const bf16* values = w.values + o * w.in;
    multiply(
        w.in, x, [&](int64_t i) { return to_float(values[i]); }, y + (o - begin) * x.rows);
  }
}

}  // namespace deepinfer::reference
