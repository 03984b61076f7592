// Products cut by columns too, thread by thread on the host (device.h), against those of any number of rows, bitwise.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ops/cuda/products.h"
#include "ops/op_inputs.h"

namespace deepinfer {
namespace {

using cuda::LaunchStream;
using cuda::ProductArgs;
using testing::Fp8Matrix;
using testing::Random;

struct Shape {
  int64_t in;
  std::vector<int64_t> outs;
  int64_t groups = 1;
};

ProductArgs arguments(const Shape& shape, int64_t rows, const std::vector<Fp8Matrix>& weights) {
  ProductArgs args;
  args.rows = rows;
  args.x_stride = shape.groups * shape.in;
  args.x_group = shape.in;
  args.groups = shape.groups;
  for (const Fp8Matrix& m : weights) args.outputs[args.output_count++] = {cuda::view(m.view()), nullptr};
  return args;
}

class SplitProducts : public ::testing::TestWithParam<Shape> {};

TEST_P(SplitProducts, HaveTheBitsOfTheOthers) {
  const Shape& shape = GetParam();
  constexpr int64_t kMostRows = 131;
  Random random(9);
  LaunchStream stream(nullptr, false);
  std::vector<Fp8Matrix> weights;
  for (int64_t out : shape.outs) {
    Fp8Matrix& m = weights.emplace_back(random, out, shape.in);
    // Some need two factors; panels and segments behind them do not.
    for (size_t i = 0; i < m.scales.size() / 2; i += 7) m.scales[i] = i % 2 == 0 ? 140 : 1;
  }
  const bool grouped = shape.groups > 1;  // output_lora's inputs are used as they are
  const auto x = testing::activations(random, kMostRows, shape.groups * shape.in);
  std::vector<bf16> scratch(static_cast<size_t>(cuda::fp8_scratch(kMostRows, shape.groups, shape.in)));
  for (int64_t rows : {1, 8, 9, 16, 17, 40, 64, 65, 131}) {
    SCOPED_TRACE(rows);
    std::vector<std::vector<bf16>> want, got;
    ProductArgs args = arguments(shape, rows, weights);
    args.x = x.data();
    for (int i = 0; i < args.output_count; ++i) {
      const auto count = static_cast<size_t>(rows * args.outputs[i].weight.out);
      got.emplace_back(count, bf16{0x7fff});
      args.outputs[i].y = want.emplace_back(count).data();
    }
    if (grouped) {
      cuda::multiply_fp8(args, scratch.data(), stream);
    } else {
      cuda::multiply_fp8_quantized(args, scratch.data(), stream);
    }
    int64_t panels = 0;
    for (const Fp8Matrix& m : weights) panels += (m.out / shape.groups + 15) / 16 * shape.groups;
    // Just what there has to be; what nobody wrote is not a number.
    std::vector<float> parts(static_cast<size_t>(cuda::split_scratch(rows, panels * cuda::segment_count(shape.in))));
    std::memset(parts.data(), 0xff, parts.size() * sizeof(float));
    for (int i = 0; i < args.output_count; ++i) args.outputs[i].y = got[static_cast<size_t>(i)].data();
    if (grouped) {
      cuda::multiply_fp8_split(args, parts.data(), stream);
    } else {
      cuda::multiply_fp8_quantized_split(args, scratch.data(), parts.data(), stream);
    }
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_EQ(std::memcmp(want[i].data(), got[i].data(), want[i].size() * sizeof(bf16)), 0) << "output " << i;
  }
}

// Partial panels, chunks, segments and groups; rows of scales that change within a panel; blocks without work for all warps, and
// more segments than multiprocessors.
INSTANTIATE_TEST_SUITE_P(Shapes, SplitProducts,
                         ::testing::Values(Shape{32, {5}}, Shape{544, {40, 3, 17}}, Shape{1120, {600, 212}},
                                           Shape{5120, {64, 32}}, Shape{1312, {4096}}, Shape{69'984, {24}}, Shape{256, {128}, 2},
                                           Shape{1056, {72}, 3}, Shape{608, {1200}, 8}),
                         [](const auto& param) {
                           return fmt::format("{}_{}x{}", param.param.groups, fmt::join(param.param.outs, "_"), param.param.in);
                         });

// Launches of 64 rows each, as the sums of more have no room.
TEST(SplitProducts, GoInSeveralLaunches) {
  Random random(10);
  LaunchStream stream(nullptr, false);
  const Shape shape{544, {3100 * 16}};
  const std::vector<Fp8Matrix> weights = {Fp8Matrix(random, shape.outs[0], shape.in)};
  constexpr int64_t kRows = 70;
  const auto x = testing::activations(random, kRows, shape.in);
  std::vector<bf16> scratch(static_cast<size_t>(cuda::fp8_scratch(kRows, 1, shape.in)));
  std::vector<bf16> want(static_cast<size_t>(kRows * shape.outs[0])), got(want.size());
  ProductArgs args = arguments(shape, kRows, weights);
  args.x = x.data();
  args.outputs[0].y = want.data();
  cuda::multiply_fp8_quantized(args, scratch.data(), stream);
  ASSERT_EQ(cuda::split_pass_rows(3100 * 2), 64);
  std::vector<float> parts(static_cast<size_t>(cuda::split_parts(args)));
  args.outputs[0].y = got.data();
  cuda::multiply_fp8_quantized_split(args, scratch.data(), parts.data(), stream);
  EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(bf16)), 0);
}

// Of the release's products, those that are slow otherwise; what is taken has room, also of a plan for many rows.
TEST(SplitProducts, AreTakenWhereTheyPay) {
  constexpr int64_t kNever = 0;
  struct Case {
    const char* name;
    Shape shape;
    int64_t first, last;  // rows
  };
  for (const Case& c :
       {Case{"wo_b", {8192, {5120}}, 9, 128}, Case{"wo_a", {4096, {8192}, 8}, 17, 128}, Case{"wq_a", {5120, {1280}}, 17, 256},
        Case{"wq_a and wkv", {5120, {1280, 512}}, 17, 256}, Case{"index_wq_b", {1280, {4096}}, 17, 128},
        Case{"wq_b", {1280, {32768}}, 1, kNever}, Case{"one segment", {512, {8192}}, 1, kNever},
        Case{"small", {1024, {512}}, 1, kNever}, Case{"too large", {6144, {25600}}, 1, kNever}}) {
    SCOPED_TRACE(c.name);
    ProductArgs args;
    args.groups = c.shape.groups;
    for (const int64_t out : c.shape.outs) args.outputs[args.output_count++].weight = {nullptr, nullptr, out, c.shape.in};
    args.rows = 8192;
    const int64_t room = cuda::split_parts(args);
    for (args.rows = 1; args.rows < 300; ++args.rows) {
      const bool taken = cuda::takes_split_products(args);
      EXPECT_EQ(taken, args.rows >= c.first && args.rows <= c.last) << args.rows << " rows";
      EXPECT_LE(cuda::split_parts(args), room);
      EXPECT_TRUE(!taken || cuda::split_parts(args) > 0);
    }
    args.rows = 0;
    EXPECT_FALSE(cuda::takes_split_products(args));
    EXPECT_EQ(cuda::split_parts(args), 0);
  }
}

}  // namespace
}  // namespace deepinfer
