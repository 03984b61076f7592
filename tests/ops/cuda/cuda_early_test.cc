// Attention right behind the product that makes its queries may read keys before that product has ended (sparse_attention_few):
// what kernels before the product wrote has to be there.

#include <gtest/gtest.h>

#include <cmath>

#include "ops/backends.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/op_inputs.h"

namespace deepinfer {
namespace {

struct Shape {
  int64_t heads, dim, in, rows, pairs;
};

class CudaEarlyKeys : public ::testing::TestWithParam<Shape> {};

TEST_P(CudaEarlyKeys, AreThoseOfTheKernelsBefore) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  const auto [heads, dim, in, rows, pairs] = GetParam();
  constexpr int64_t kInputs = 6, kWindow = 40, kChosen = 70, kPageRows = 16, kPages = 8;
  const auto run = [&, heads = heads, dim = dim, in = in, rows = rows, pairs = pairs](const char* features, bool replays) {
    auto device = make_cuda_backend(devices->front().index, *parse_cuda_features(features));
    Backend& b = **device;
    DeviceMemory& memory = b.memory();
    testing::Random random(5);
    std::vector<void*> all;
    const auto room = [&](int64_t bytes) { return static_cast<uint8_t*>(all.emplace_back(memory.allocate(bytes))); };
    const auto upload = [&](const auto& host) {
      using T = std::decay_t<decltype(host[0])>;
      const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
      auto* data = reinterpret_cast<T*>(room(bytes));
      memory.upload(data, host.data(), bytes);
      return data;
    };
    const testing::Fp8Matrix matrix(random, heads * dim, in);
    const Fp8Weight weight{upload(matrix.values), upload(matrix.scales), heads * dim, in};
    auto* x = reinterpret_cast<bf16*>(room(rows * in * 2));
    auto* latents = reinterpret_cast<bf16*>(room((rows + kPages * kPageRows) * dim * 2));
    auto* q = reinterpret_cast<bf16*>(room(rows * heads * dim * 2));
    auto* out = reinterpret_cast<bf16*>(room(rows * heads * dim * 2));
    const int64_t window_bytes = dim + dim / 32;
    auto* ring = room(kWindow * window_bytes);
    memory.fill(ring, 0x30, kWindow * window_bytes);
    auto* fresh = room(rows * window_bytes);
    const int64_t row_bytes = dim / 2 + dim / 16;
    std::vector<uint8_t*> pages;
    for (int64_t p = 0; p < kPages; ++p) pages.push_back(room(kPageRows * row_bytes));
    std::vector<uint8_t*> packed;
    for (int64_t j = 0; j < kPages * kPageRows; ++j)
      packed.push_back(pages[static_cast<size_t>(j / kPageRows)] + j % kPageRows * row_bytes);
    std::vector<int32_t> list;
    for (int32_t j = 0; j < kChosen; ++j) list.push_back(j + j / 2);
    const int32_t* chosen = upload(list);
    const float* sinks = upload(testing::floats(random, heads, 2.0f));
    std::vector<float> cosines(1), sines(1);  // one more than there are
    for (int64_t i = 0; i < rows * pairs; ++i) {
      const float angle = 3.0f * random.normal();
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
    const RopeRows rotation{upload(cosines) + 1, upload(sines) + 1, pairs};
    constexpr int64_t kStart = 3 * kWindow;
    std::vector<AttentionQuery> queries;
    for (int64_t r = 0; r < rows; ++r) {
      queries.push_back({.window = {ring, kWindow, fresh, kStart, window_bytes},
                         .window_first = kStart + r - kWindow + rows,
                         .window_last = kStart + r,
                         .compressed = {pages.data(), kPageRows, 0, row_bytes},
                         .compressed_rows = kPages * kPageRows,
                         .chosen = chosen,
                         .chosen_count = kChosen - r});
    }
    const auto calls = [&] {
      b.pack_compressed(latents + rows * dim, dim, packed);
      b.pack_window(latents, rows, dim, fresh);
      const LinearOutput output{weight, q};
      b.linear_fp8(x, rows, {&output, 1});
      std::vector<AttentionQuery> own = queries;
      b.rotated_attention({.q = q, .sinks = sinks, .out = out, .queries = own, .heads = heads, .dim = dim}, q, rotation);
    };
    std::vector<std::vector<bf16>> results;
    for (int i = 0; i < kInputs; ++i) {
      const auto inputs = testing::activations(random, rows, in);
      const auto keys = testing::activations(random, rows + kPages * kPageRows, dim);
      memory.upload(x, inputs.data(), rows * in * 2);
      memory.upload(latents, keys.data(), (rows + kPages * kPageRows) * dim * 2);
      if (replays) {
        b.replay(calls);
      } else {
        calls();
      }
      auto& result = results.emplace_back(static_cast<size_t>(rows * heads * dim));
      memory.download(result.data(), out, rows * heads * dim * 2);
    }
    for (void* data : all) memory.free(data);
    return results;
  };
  const auto want = run("none", false);
  for (const char* features : {"few-rows", "few-rows,overlap", "all"}) {
    for (const bool replays : {false, true}) EXPECT_TRUE(run(features, replays) == want) << features << ", " << replays;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaEarlyKeys,
                         ::testing::Values(Shape{16, 512, 640, 1, 32}, Shape{18, 576, 640, 2, 0}, Shape{64, 512, 1280, 2, 32}));

}  // namespace
}  // namespace deepinfer
