#include "ops/reference/reference_linear.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::reference {
namespace {

// acc[r] += w * x[k][r], k ascending; partial sums of a group of 32 are scaled before they join the total (spec §6.1).
template <typename WeightAt, typename ScaleAt>
void multiply_grouped(int64_t k, const Inputs& x, WeightAt weight, ScaleAt scale, float* y) {
  std::vector<float> group(static_cast<size_t>(x.rows));
  std::fill_n(y, x.rows, 0.0f);
  for (int64_t g = 0; g < k; g += kScaleGroup) {
    std::fill(group.begin(), group.end(), 0.0f);
    for (int64_t i = g; i < g + kScaleGroup; ++i) {
      const float w = weight(i);
      const float* row = x.values.data() + i * x.rows;
      for (int64_t r = 0; r < x.rows; ++r) group[static_cast<size_t>(r)] += w * row[r];
    }
    const float s = scale(g / kScaleGroup);
    for (int64_t r = 0; r < x.rows; ++r) y[r] += s * group[static_cast<size_t>(r)];
  }
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
  return transpose(static_cast<int64_t>(rows.size()), k, quantize, [&](int64_t r) { return x + rows[static_cast<size_t>(r)] * k; });
}

void multiply_fp8(const Fp8Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y) {
  for (int64_t o = begin; o < end; ++o) {
    const uint8_t* values = w.values + o * w.in;
    const uint8_t* scales = w.scales + o / kScaleGroup * (w.in / kScaleGroup);
    multiply_grouped(w.in, x, [&](int64_t i) { return e4m3_to_float(values[i]); },
                     [&](int64_t g) { return e8m0_to_float(scales[g]); }, y + (o - begin) * x.rows);
  }
}

void multiply_fp4(const Fp4Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y) {
  for (int64_t o = begin; o < end; ++o) {
    const uint8_t* codes = w.codes + o * (w.in / 2);
    const uint8_t* scales = w.scales + o * (w.in / kScaleGroup);
    multiply_grouped(w.in, x,
                     [&](int64_t i) { return e2m1_to_float(static_cast<uint8_t>((i & 1) != 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15)); },
                     [&](int64_t g) { return e8m0_to_float(scales[g]); }, y + (o - begin) * x.rows);
  }
}

void multiply_bf16(const Bf16Weight& w, const Inputs& x, int64_t begin, int64_t end, float* y) {
  for (int64_t o = begin; o < end; ++o) {
    const bf16* values = w.values + o * w.in;
    float* out = y + (o - begin) * x.rows;
    std::fill_n(out, x.rows, 0.0f);
    for (int64_t i = 0; i < w.in; ++i) {
      const float v = to_float(values[i]);
      const float* row = x.values.data() + i * x.rows;
      for (int64_t r = 0; r < x.rows; ++r) out[r] += v * row[r];
    }
  }
}

}  // namespace deepinfer::reference
