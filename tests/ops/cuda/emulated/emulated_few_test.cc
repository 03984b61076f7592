// Products and router of few rows, thread by thread on the host (device.h): the bits of what any number of rows has.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cuda/experts.h"
#include "ops/cuda/products.h"
#include "ops/cuda/products_dealt.h"
#include "ops/op_inputs.h"
#include "ops/top_k.h"

namespace deepinfer {
namespace {

using cuda::LaunchStream;
using cuda::ProductArgs;
using cuda::WeightFormat;
using testing::Fp8Matrix;
using testing::Random;

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

constexpr int64_t kCounts[] = {1, 2, 3, 8, 9, 16};

struct Shape {
  int64_t in;
  std::vector<int64_t> outs;
  int64_t groups = 1;
  bool streamed = false;
  bool dealt = streamed;
};

// Scales that need two factors, too, and columns whose values cancel.
Fp8Matrix hostile_matrix(Random& random, int64_t out, int64_t in) {
  Fp8Matrix m(random, out, in);
  for (size_t i = 0; i < m.scales.size(); i += 7) m.scales[i] = i % 2 == 0 ? 140 : 1;
  return m;
}

class FewFp8Products : public ::testing::TestWithParam<Shape> {};

void expect_bits_of_any_number(const Shape& shape, bool hostile) {
  Random random(7);
  LaunchStream stream(nullptr, false);
  std::vector<Fp8Matrix> weights;
  for (int64_t out : shape.outs)
    weights.push_back(hostile ? hostile_matrix(random, out, shape.in) : Fp8Matrix(random, out, shape.in));
  const int64_t width = shape.groups * shape.in;
  const bool grouped = shape.groups > 1;  // output_lora's inputs are used as they are
  std::vector<bf16> x = testing::activations(random, 16, width);
  for (size_t i = 0; i < x.size(); i += 5) x[i] = bf16{};
  // Groups of scales of very different sizes, whole groups of zeros.
  for (size_t i = 0; hostile && i < x.size(); ++i) {
    const int far[] = {0, -4, 0, -12, -17, 2, 0, -30, -200};
    x[i] = to_bf16(std::ldexp(to_float(x[i]), far[i / 32 % 31 % 9]));
  }
  std::vector<bf16> scratch(static_cast<size_t>(cuda::fp8_scratch(16, shape.groups, shape.in)));
  for (int64_t rows : kCounts) {
    SCOPED_TRACE(rows);
    std::vector<std::vector<bf16>> want, got;
    ProductArgs args;
    args.rows = rows;
    args.x_stride = width;
    args.x_group = shape.in;
    args.groups = shape.groups;
    for (const Fp8Matrix& m : weights) {
      want.emplace_back(static_cast<size_t>(rows * m.out));
      got.emplace_back(static_cast<size_t>(rows * m.out));
      args.outputs[args.output_count++] = {cuda::view(m.view()), want.back().data()};
    }
    args.x = x.data();
    const bool streamed = cuda::takes_streamed_products(args, WeightFormat::kFp8);
    ASSERT_EQ(streamed, shape.streamed && rows <= 2);
    const bool dealt = cuda::takes_dealt_products(args);
    EXPECT_EQ(dealt, shape.dealt && rows <= 2);
    if (!dealt && !streamed && !cuda::takes_few_products(args)) continue;
    if (grouped) {
      cuda::multiply_fp8(args, scratch.data(), stream);
    } else {
      cuda::multiply_fp8_quantized(args, scratch.data(), stream);
    }
    for (int i = 0; i < args.output_count; ++i) args.outputs[i].y = got[static_cast<size_t>(i)].data();
    if (dealt) {
      cuda::multiply_fp8_dealt(args, !grouped, stream);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_TRUE(same_bits(want[i], got[i])) << "dealt, output " << i;
        std::fill(got[i].begin(), got[i].end(), bf16{});
      }
    }
    if (streamed) {
      cuda::multiply_fp8_quantized_streamed(args, stream);
    } else if (grouped && cuda::takes_few_products(args)) {
      cuda::multiply_fp8_few(args, stream);
    } else if (cuda::takes_few_products(args)) {
      cuda::multiply_fp8_quantized_few(args, scratch.data(), stream);
    } else {
      continue;
    }
    for (size_t i = 0; i < want.size(); ++i) ASSERT_TRUE(same_bits(want[i], got[i])) << "output " << i;
  }
}

TEST_P(FewFp8Products, HaveTheBitsOfAnyNumber) { expect_bits_of_any_number(GetParam(), false); }
TEST_P(FewFp8Products, OfAnyScaleHaveTheBitsOfAnyNumber) { expect_bits_of_any_number(GetParam(), true); }

// Partial panels, segments and groups; small ones, and those of more panels than blocks have teams.
INSTANTIATE_TEST_SUITE_P(Shapes, FewFp8Products,
                         ::testing::Values(Shape{32, {5}}, Shape{96, {16, 17, 33}}, Shape{512, {48}}, Shape{544, {40, 3}},
                                           Shape{5120, {64, 32}}, Shape{8192, {32}}, Shape{12320, {20}}, Shape{256, {128}, 2},
                                           Shape{1056, {72}, 3}, Shape{128, {12'300}, 1, true}, Shape{1280, {8'005, 40}, 1, true},
                                           Shape{8192, {520}, 1, true}, Shape{12'416, {336, 5}, 1, true},
                                           Shape{4096, {1024}, 8, false, true}),
                         [](const auto& param) {
                           return fmt::format("{}_{}x{}", param.param.groups, fmt::join(param.param.outs, "_"), param.param.in);
                         });

TEST(FewBf16Products, HaveTheBitsOfAnyNumber) {
  Random random(8);
  LaunchStream stream(nullptr, false);
  for (const auto& [in, out] :
       {std::pair<int64_t, int64_t>{32, 3}, {96, 16}, {512, 128}, {1000, 40}, {5120, 48}, {5120, 840}, {576, 10'005}}) {
    const auto w = testing::bf16_weights(random, out * in, 0.3f);
    const auto x = testing::activations(random, 16, in);
    for (int64_t rows : kCounts) {
      SCOPED_TRACE(fmt::format("{} rows, {}x{}", rows, out, in));
      ProductArgs args;
      args.x = x.data();
      args.rows = rows;
      args.x_stride = in;
      args.fp32 = true;
      std::vector<float> want(static_cast<size_t>(rows * out)), got(want.size());
      args.outputs[args.output_count++] = {cuda::view(Bf16Weight{w.data(), out, in}), want.data()};
      cuda::multiply_bf16(args, stream);
      args.outputs[0].y = got.data();
      if (cuda::takes_streamed_products(args, WeightFormat::kBf16)) {
        cuda::multiply_bf16_streamed(args, stream);
        ASSERT_TRUE(same_bits(want, got));
        std::fill(got.begin(), got.end(), 0.0f);
      }
      if (!cuda::takes_few_products(args)) continue;
      cuda::multiply_bf16_few(args, false, stream);
      ASSERT_TRUE(same_bits(want, got));
      // Segments apart, added in their order.
      const int64_t segments = cuda::segment_count(in);
      ASSERT_GE(cuda::route_scratch(rows, out, in), segments * rows * out);
      std::vector<float> parts(static_cast<size_t>(segments * rows * out));
      args.outputs[0].y = parts.data();
      cuda::multiply_bf16_few(args, true, stream);
      for (size_t i = 0; i < want.size(); ++i) {
        float sum = parts[i];
        for (size_t s = 1; s < static_cast<size_t>(segments); ++s) sum += parts[s * want.size() + i];
        got[i] = sum;
      }
      ASSERT_TRUE(same_bits(want, got));
    }
  }
}

TEST(FewProducts, AreNotTakenForManyRowsOrOddShapes) {
  ProductArgs args;
  args.rows = 17;
  args.outputs[args.output_count++].weight = {nullptr, nullptr, 64, 64};
  EXPECT_FALSE(cuda::takes_few_products(args));
  args.rows = 16;
  EXPECT_TRUE(cuda::takes_few_products(args));
  EXPECT_FALSE(cuda::takes_streamed_products(args, WeightFormat::kFp8));
  args.outputs[0].weight = {nullptr, nullptr, 12'288, 5120};
  EXPECT_FALSE(cuda::takes_few_products(args));
  EXPECT_FALSE(cuda::takes_streamed_products(args, WeightFormat::kFp8));
  EXPECT_FALSE(cuda::takes_dealt_products(args));
  args.rows = 2;
  EXPECT_TRUE(cuda::takes_streamed_products(args, WeightFormat::kFp8));
  EXPECT_TRUE(cuda::takes_streamed_products(args, WeightFormat::kBf16));
  EXPECT_TRUE(cuda::takes_dealt_products(args));
  args.outputs[0].weight.in = 5152;
  EXPECT_FALSE(cuda::takes_streamed_products(args, WeightFormat::kFp8));
  EXPECT_FALSE(cuda::takes_dealt_products(args));
  args.outputs[0].weight.in = 5120;
  args.outputs[0].weight.scales = reinterpret_cast<const uint8_t*>(uintptr_t{2});
  EXPECT_FALSE(cuda::takes_streamed_products(args, WeightFormat::kFp8));
  EXPECT_FALSE(cuda::takes_dealt_products(args));
  args.outputs[0].weight.scales = nullptr;
  args.groups = 12'288 / 24;
  EXPECT_FALSE(cuda::takes_streamed_products(args, WeightFormat::kFp8));
  EXPECT_FALSE(cuda::takes_dealt_products(args));
}

struct Choices {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<int64_t> counts;
};

// What the specification says, in the order of the kernel's sums.
Choices choices_of(const RouteArgs& args, int64_t rows, const std::vector<float>& logits, int64_t parts) {
  const int64_t n = args.gate.out;
  Choices out;
  out.counts.assign(static_cast<size_t>(n), 0);
  for (int64_t r = 0; r < rows; ++r) {
    const float* bias = args.image[r] != 0 ? args.bias_vl : args.bias;
    std::vector<float> score;
    std::vector<uint64_t> keys;
    for (int64_t e = 0; e < n; ++e) {
      float z = logits[static_cast<size_t>(r * n + e)];
      for (int64_t p = 1; p < parts; ++p) z += logits[static_cast<size_t>((p * rows + r) * n + e)];
      z /= args.temperature;
      score.push_back(std::sqrt(z > 20.0f ? z : log1pf(expf(z))));
      keys.push_back(rank_key(score.back() + bias[e], static_cast<uint32_t>(e)));
    }
    std::sort(keys.begin(), keys.end());
    float sum = 0;
    for (int64_t k = 0; k < args.topk; ++k) sum += score[keys[static_cast<size_t>(k)] & 0xffffffffu];
    for (int64_t k = 0; k < args.topk; ++k) {
      const auto e = static_cast<int32_t>(keys[static_cast<size_t>(k)] & 0xffffffffu);
      float w = score[static_cast<size_t>(e)];
      if (args.normalize && args.topk > 1) w /= sum + 1e-20f;
      out.experts.push_back(e);
      out.weights.push_back(w * args.scale);
      if (r < *args.counted) ++out.counts[static_cast<size_t>(e)];
    }
  }
  return out;
}

TEST(Router, ChoosesAsTheSpecificationSays) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  Random random(9);
  LaunchStream stream(nullptr, false);
  struct Case {
    int64_t experts, topk, parts;
  };
  for (const Case& c : {Case{384, 6, 10}, {384, 6, 1}, {16, 2, 3}, {4, 4, 1}, {5, 1, 2}, {33, 33, 1}, {700, 40, 2}}) {
    SCOPED_TRACE(fmt::format("{} of {}, {} parts", c.topk, c.experts, c.parts));
    constexpr int64_t kRows = 9;
    std::vector<float> logits = testing::floats(random, c.parts * kRows * c.experts, 3.0f);
    std::vector<float> bias = testing::floats(random, c.experts, 0.5f), bias_vl = testing::floats(random, c.experts, 2.0f);
    const auto row = [&](int64_t r) { return logits.begin() + r * c.experts; };
    std::fill_n(row(0), c.experts, 0.0f);  // ties, if the other parts are alike
    for (int64_t e = 0; e < c.experts; ++e) row(1)[e] = e % 3 == 0 ? kNan : row(1)[e];
    std::fill_n(row(2), c.experts, kNan);        // nothing but NaN: ascending
    std::fill_n(row(3), c.experts, -kInfinity);  // scores of zero
    for (int64_t e = 0; e < c.experts; ++e) row(4)[e] = e % 2 == 0 ? kInfinity : 25.0f;
    for (int64_t e = 0; e < c.experts; ++e) row(5)[e] = static_cast<float>(e / 4 % 3);
    if (c.parts == 1) {  // -0 and +0 are one score
      for (int64_t e = 0; e < c.experts; ++e) bias_vl[static_cast<size_t>(e)] = e % 2 == 0 ? -0.0f : 0.0f;
    }
    const std::vector<uint8_t> image = {0, 1, 0, 1, 0, 0, 1, 1, 0};
    const int32_t counted = kRows - 2;
    Choices got{std::vector<int32_t>(static_cast<size_t>(kRows * c.topk)),
                std::vector<float>(static_cast<size_t>(kRows * c.topk)), std::vector<int64_t>(static_cast<size_t>(c.experts))};
    for (const bool normalize : {true, false}) {
      std::fill(got.counts.begin(), got.counts.end(), 0);
      RouteArgs args;
      args.gate.out = c.experts;
      args.bias = bias.data();
      args.bias_vl = bias_vl.data();
      args.image = image.data();
      args.topk = c.topk;
      args.normalize = normalize;
      args.scale = 1.5f;
      args.temperature = 1.25f;
      args.experts = got.experts.data();
      args.weights = got.weights.data();
      args.counts = got.counts.data();
      args.counted = &counted;
      cuda::choose_experts(args, kRows, logits.data(), c.parts, stream);
      const Choices want = choices_of(args, kRows, logits, c.parts);
      EXPECT_EQ(got.experts, want.experts);
      EXPECT_EQ(got.counts, want.counts);
      for (size_t i = 0; i < want.weights.size(); ++i) {
        if (std::isnan(want.weights[i])) {
          EXPECT_TRUE(std::isnan(got.weights[i])) << i;
        } else {
          EXPECT_EQ(got.weights[i], want.weights[i]) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
