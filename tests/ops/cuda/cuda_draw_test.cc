// Draws on the GPU against the host's sampler: the same tokens, whatever the filters, the ties and what is not a number.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "sampling/sampler.h"
#include "testing/random.h"

namespace deepinfer {
namespace {

using testing::Random;

std::unique_ptr<Backend> gpu() {
  const auto devices = cuda_devices();
  if (!devices) return nullptr;
  auto backend = make_cuda_backend(devices->front().index);
  return backend ? std::move(*backend) : nullptr;
}

/// Rows of every kind that a head gives, and some that only a broken one would.
std::vector<float> rows_of_logits(int64_t vocab, Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits;
  const auto row = [&](auto value) {
    for (int64_t v = 0; v < vocab; ++v) logits.push_back(value(v));
  };
  for (const double scale : {0.01, 1.0, 4.0, 30.0}) row([&](int64_t) { return static_cast<float>(random.normal() * scale); });
  row([&](int64_t) { return std::round(static_cast<float>(random.normal() * 3)); });  // many ties
  row([&](int64_t) { return 0.0f; });
  row([&](int64_t v) { return v % 3 == 0 ? -kInfinity : static_cast<float>(random.normal()); });
  row([&](int64_t v) { return v % 5 == 1 ? std::nanf("") : -static_cast<float>(v % 7); });
  row([&](int64_t v) { return v == vocab / 2 ? 1.0f : -kInfinity; });
  row([&](int64_t) { return -kInfinity; });
  row([&](int64_t v) { return v % 11 == 0 ? kInfinity : 1.0f; });
  row([&](int64_t v) { return (v & 1) != 0 ? -0.0f : 0.0f; });
  return logits;
}

class CudaDraws : public ::testing::TestWithParam<int64_t> {};

TEST_P(CudaDraws, AreTheHostsOwn) {
  const std::unique_ptr<Backend> backend = gpu();
  if (backend == nullptr) GTEST_SKIP() << cuda_devices().error().message();
  const int64_t vocab = GetParam();
  Random random(static_cast<uint64_t>(vocab));
  const std::vector<float> logits = rows_of_logits(vocab, random);
  const int64_t row_count = static_cast<int64_t>(logits.size()) / vocab;
  DeviceMemory& memory = backend->memory();
  auto* device_logits = static_cast<float*>(memory.allocate(static_cast<int64_t>(logits.size() * sizeof(float))));
  memory.upload(device_logits, logits.data(), static_cast<int64_t>(logits.size() * sizeof(float)));

  std::vector<DrawRow> draws;
  for (const float temperature : {0.0f, 0.3f, 1.0f, 1.7f}) {
    if (vocab > 100000 && temperature != 1.0f) continue;  // the host takes its time
    for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{50}, int64_t{3000}}) {
      for (const float top_p : {1.0f, 0.1f, 0.5f, 0.9f, 0.999f}) {
        for (const float min_p : {0.0f, 0.02f, 0.5f}) {
          for (int64_t r = 0; r < row_count; ++r) {
            draws.push_back({.row = r,
                             .greedy = temperature < kGreedyTemperature,
                             .temperature = temperature,
                             .min_p = min_p,
                             .top_k = top_k,
                             .top_p = top_p,
                             .seed = random.bits(),
                             .position = random.between(0, 1 << 20),
                             .choice_index = static_cast<uint32_t>(random.below(3))});
          }
        }
      }
    }
  }
  const auto count = static_cast<int64_t>(draws.size());
  auto* device_tokens = static_cast<int32_t*>(memory.allocate(count * 4));
  std::vector<int32_t> tokens(draws.size());
  backend->draw(device_logits, vocab, draws, device_tokens);
  memory.download(tokens.data(), device_tokens, count * 4);
  int64_t left = 0;
  std::vector<float> scratch;
  for (size_t i = 0; i < draws.size(); ++i) {
    const DrawRow& d = draws[i];
    if (tokens[i] == kUndrawnToken) {
      ++left;
      EXPECT_TRUE(!d.greedy && d.top_p < 1.0f && (d.top_k <= 0 || d.top_k > 2000) && vocab > 2000);
      continue;
    }
    SamplingParams params;
    params.temperature = d.temperature, params.min_p = d.min_p, params.top_k = d.top_k, params.top_p = d.top_p;
    params.seed = d.seed, params.choice_index = d.choice_index;
    const float* row = logits.data() + d.row * vocab;
    scratch.assign(row, row + vocab);
    ASSERT_EQ(tokens[i], Sampler(params, vocab).sample(scratch, d.position))
        << "row " << d.row << ", temperature " << d.temperature << ", top-k " << d.top_k << ", top-p " << d.top_p << ", min-p "
        << d.min_p;
  }
  EXPECT_LT(left, count / 5);
  // Those that have to be drawn: as before, and without top-p where it would keep too many.
  for (DrawRow& d : draws) d.certain = true;
  std::vector<int32_t> certain(draws.size());
  backend->draw(device_logits, vocab, draws, device_tokens);
  memory.download(certain.data(), device_tokens, count * 4);
  for (size_t i = 0; i < draws.size(); ++i) {
    const DrawRow& d = draws[i];
    if (tokens[i] == kUndrawnToken) {
      SamplingParams params;
      params.temperature = d.temperature, params.min_p = d.min_p, params.top_k = d.top_k;
      params.seed = d.seed, params.choice_index = d.choice_index;
      const float* row = logits.data() + d.row * vocab;
      scratch.assign(row, row + vocab);
      tokens[i] = Sampler(params, vocab).sample(scratch, d.position);
    }
    ASSERT_EQ(certain[i], tokens[i]) << "row " << d.row << ", top-k " << d.top_k << ", top-p " << d.top_p;
  }
  memory.free(device_logits);
  memory.free(device_tokens);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, CudaDraws, ::testing::Values(3, 1000, 4099, 129280));

}  // namespace
}  // namespace deepinfer
