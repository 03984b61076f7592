// Router and experts called as one (Backend::routed_experts), with the bits of both called one after the other and without
// features: few rows have one kernel for what comes before the products.

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/backends.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/op_inputs.h"

namespace deepinfer {
namespace {

struct Shape {
  int64_t hidden, inner, experts, topk;
  bool images, counted, normalize, equal;  // equal: scores of which many are
};

class CudaRouted : public ::testing::TestWithParam<Shape> {};

TEST_P(CudaRouted, HasTheBitsOfRouterAndExperts) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  const Shape& shape = GetParam();
  constexpr int64_t kMostRows = 9;  // one more than the kernel takes
  struct Result {
    std::vector<int32_t> experts;
    std::vector<float> weights;
    std::vector<bf16> y;
    std::vector<int64_t> counts;
    bool operator==(const Result&) const = default;
  };
  const auto run = [&](const char* features, bool together) {
    auto device = make_cuda_backend(devices->front().index, *parse_cuda_features(features));
    Backend& b = **device;
    DeviceMemory& memory = b.memory();
    testing::Random random(7);
    std::vector<void*> all;
    const auto upload = [&](const auto& host) {
      using T = std::decay_t<decltype(host[0])>;
      const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
      auto* data = static_cast<T*>(all.emplace_back(memory.allocate(bytes)));
      memory.upload(data, host.data(), bytes);
      return data;
    };
    const auto fp4 = [&](int64_t out, int64_t in) {
      const testing::Fp4Matrix m(random, out, in);
      uint8_t* codes = upload(m.codes);
      uint8_t* scales = upload(m.scales);
      b.arrange_experts(codes, scales, out, in);
      return Fp4Weight{codes, scales, out, in};
    };
    const auto fp8 = [&](int64_t out, int64_t in) {
      const testing::Fp8Matrix m(random, out, in);
      return Fp8Weight{upload(m.values), upload(m.scales), out, in};
    };
    const ExpertWeights one{fp4(shape.inner, shape.hidden), fp4(shape.hidden, shape.inner), fp4(shape.inner, shape.hidden)};
    const ExpertWeights two{fp4(shape.inner, shape.hidden), fp4(shape.hidden, shape.inner), fp4(shape.inner, shape.hidden)};
    std::vector<ExpertWeights> routed;
    for (int64_t e = 0; e < shape.experts; ++e) routed.push_back(e % 2 == 0 ? one : two);
    const Fp8Weight w1 = fp8(shape.inner, shape.hidden), w2 = fp8(shape.hidden, shape.inner), w3 = fp8(shape.inner, shape.hidden);
    auto gate = testing::bf16_weights(random, shape.experts * shape.hidden, 0.05f);
    if (shape.equal) {
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i % static_cast<size_t>(3 * shape.hidden)];
    }
    auto bias = testing::floats(random, shape.experts, 0.1f);
    if (shape.equal) std::fill(bias.begin(), bias.end(), 0.25f);
    const auto other_bias = testing::floats(random, shape.experts, 0.1f);
    std::vector<uint8_t> images(kMostRows);
    for (size_t i = 0; i < images.size(); ++i) images[i] = i % 3 == 1 ? 1 : 0;
    const auto v = testing::activations(random, kMostRows, shape.hidden);
    auto* chosen = upload(std::vector<int32_t>(static_cast<size_t>(kMostRows * shape.topk)));
    auto* weights = upload(std::vector<float>(static_cast<size_t>(kMostRows * shape.topk)));
    auto* y = upload(std::vector<bf16>(static_cast<size_t>(kMostRows * shape.hidden)));
    auto* counts = upload(std::vector<int64_t>(static_cast<size_t>(shape.experts)));
    const auto* counted = upload(std::vector<int32_t>{5});
    RouteArgs route{.v = upload(v),
                    .gate = {upload(gate), shape.experts, shape.hidden},
                    .bias = upload(bias),
                    .bias_vl = upload(other_bias),
                    .image = shape.images ? upload(images) : nullptr,
                    .topk = shape.topk,
                    .normalize = shape.normalize,
                    .scale = 1.5f,
                    .temperature = 1.25f,
                    .experts = chosen,
                    .weights = weights,
                    .counts = shape.counted ? counts : nullptr,
                    .counted = counted};
    const ExpertsArgs args{.v = route.v,
                           .experts = chosen,
                           .weights = weights,
                           .routed = routed,
                           .shared_w1 = w1,
                           .shared_w2 = w2,
                           .shared_w3 = w3,
                           .topk = shape.topk,
                           .swiglu_limit = 10,
                           .y = y};
    std::vector<Result> results;
    for (int64_t rows = 1; rows <= kMostRows; rows += rows < 2 || rows > 6 ? 1 : 3) {
      if (together) {
        b.routed_experts(route, args, rows);
      } else {
        b.route(route, rows);
        b.experts(args, rows);
      }
      Result& result = results.emplace_back();
      const auto download = [&](auto& to, const auto* from, int64_t count) {
        to.resize(static_cast<size_t>(count));
        memory.download(to.data(), from, count * static_cast<int64_t>(sizeof(*from)));
      };
      download(result.experts, chosen, rows * shape.topk);
      download(result.weights, weights, rows * shape.topk);
      download(result.y, y, rows * shape.hidden);
      download(result.counts, counts, shape.experts);
    }
    for (void* data : all) memory.free(data);
    return results;
  };
  const auto want = run("none", false);
  for (const char* features : {"none", "few-rows", "few-rows,arranged,streamed,overlap", "all"}) {
    SCOPED_TRACE(features);
    const auto got = run(features, true);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].experts == want[i].experts) << "call " << i;
      EXPECT_TRUE(got[i].weights == want[i].weights) << "call " << i;
      EXPECT_TRUE(got[i].counts == want[i].counts) << "call " << i;
      EXPECT_TRUE(got[i].y == want[i].y) << "call " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaRouted,
                         ::testing::Values(Shape{256, 64, 6, 2, false, true, true, false},
                                           Shape{576, 64, 40, 6, true, true, true, false},
                                           Shape{1088, 32, 384, 6, true, false, false, false},
                                           Shape{320, 64, 419, 8, false, true, true, true},
                                           Shape{7200, 32, 20, 1, false, true, true, false},
                                           Shape{5120, 2304, 30, 6, false, true, true, false}));

}  // namespace
}  // namespace deepinfer
