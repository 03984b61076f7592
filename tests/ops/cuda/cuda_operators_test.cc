// Every operator case on the GPU: against the reference, and against itself for any number of rows, bitwise.

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "ops/backends.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_device.h"
#include "ops/cuda/cuda_graph.h"
#include "ops/cuda/host_pointers.h"
#include "ops/op_compare.h"
#include "ops/op_inputs.h"

namespace deepinfer {
namespace {

using testing::expect_close;
using testing::expect_same;
using testing::OpCase;
using testing::Outputs;
using testing::RunRows;

const std::vector<OpCase>& cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> v = testing::all_op_cases();
    for (OpCase& c : testing::large_op_cases()) v.push_back(std::move(c));
    return v;
  }();
  return all;
}

constexpr const char* kSettings[] = {"none", "all", "wide-attention,wide-index,staged"};
constexpr size_t kWide = 2;  // at 8 to 16 rows "all" has kernels of few rows

std::unique_ptr<Backend> make_backend(const char* features) {
  const auto devices = cuda_devices();
  if (!devices) return nullptr;
  auto device = make_cuda_backend(devices->front().index, *parse_cuda_features(features));
  return device ? testing::make_host_pointer_backend(std::move(*device), false) : nullptr;
}

// One backend a setting for all tests of the process: its scratch meets every order of sizes.
Backend* backend(size_t setting) {
  static const std::unique_ptr<Backend> gpus[] = {make_backend(kSettings[0]), make_backend(kSettings[1]),
                                                  make_backend(kSettings[2])};
  return gpus[setting].get();
}

class CudaOperator : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {
 protected:
  void SetUp() override {
    if (gpu() == nullptr) GTEST_SKIP() << cuda_devices().error().message();
  }
  const OpCase& op() const { return cases()[std::get<1>(GetParam())]; }
  Backend* gpu() const { return backend(std::get<0>(GetParam())); }
};

TEST_P(CudaOperator, MatchesReference) {
  const RunRows run = op().make();
  testing::OwnedBackend reference = testing::reference_backend(available_threads());
  const Outputs want = run(*reference.backend, 0, op().rows());
  for (int64_t count : op().counts) {
    SCOPED_TRACE(count);
    const Outputs got = run(*gpu(), 0, count);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], count);
  }
}

TEST_P(CudaOperator, RowsDoNotMatter) {
  const RunRows run = op().make();
  const int64_t rows = op().rows();
  const Outputs wanted = run(*gpu(), 0, rows);
  for (int64_t count : op().counts) ASSERT_NO_FATAL_FAILURE(expect_same(run(*gpu(), 0, count), wanted, 0, count));
  if (rows > 3) {
    ASSERT_NO_FATAL_FAILURE(expect_same(run(*gpu(), 3, rows - 3), wanted, 3, rows - 3));
  }
  const int64_t step = rows > 64 ? 5 : 1;
  for (int64_t r = 0; r < rows; r += step) ASSERT_NO_FATAL_FAILURE(expect_same(run(*gpu(), r, 1), wanted, r, 1));
}

TEST_P(CudaOperator, FeaturesDoNotMatter) {
  const RunRows run = op().make();
  const auto has = [&](const char* part) { return op().name.find(part) != std::string::npos; };
  const bool wide = has("attention_") || has("index_select") || has("linear_fp8") || has("output_lora");
  for (int64_t count : op().counts) {
    const Outputs want = run(*backend(0), 0, count);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(*gpu(), 0, count), want, 0, count));
    if (!wide || gpu() == backend(0)) continue;
    ASSERT_NO_FATAL_FAILURE(expect_same(run(*backend(kWide), 0, count), want, 0, count));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaOperator,
                         ::testing::Combine(::testing::Range<size_t>(0, kWide), ::testing::Range<size_t>(0, cases().size())),
                         [](const auto& param) {
                           const std::string features = std::get<0>(param.param) == 0 ? "" : "_features";
                           return cases()[std::get<1>(param.param)].name + features;
                         });

TEST(CudaBackendMemory, GathersBehindTwoToThe31Bytes) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  if (devices->front().memory_bytes < int64_t{16} << 30) GTEST_SKIP() << "a GPU of less than 16 GiB";
  auto device = make_cuda_backend(devices->front().index);
  ASSERT_TRUE(device);
  DeviceMemory& memory = (*device)->memory();
  constexpr int64_t kRows = 20'000'000;
  constexpr int64_t kDim = 256;
  auto* values = static_cast<uint8_t*>(memory.allocate(kRows * kDim));
  auto* scales = static_cast<uint8_t*>(memory.allocate(kRows * kDim / kScaleGroup));
  const std::vector<int64_t> ids = {0, 8'388'607, 8'388'608, 16'777'216, kRows - 1};
  for (size_t i = 0; i < ids.size(); ++i) {
    memory.fill(values + ids[i] * kDim, float_to_e4m3(static_cast<float>(i + 1)), kDim);
    memory.fill(scales + ids[i] * (kDim / kScaleGroup), 128, kDim / kScaleGroup);
  }
  const auto count = static_cast<int64_t>(ids.size());
  auto* device_ids = static_cast<int64_t*>(memory.allocate(count * 8));
  memory.upload(device_ids, ids.data(), count * 8);
  auto* e = static_cast<bf16*>(memory.allocate(count * kDim * 2));
  (*device)->engram_gather({values, scales, kRows, kDim}, device_ids, count, 1, e);
  std::vector<bf16> got(static_cast<size_t>(count * kDim));
  memory.download(got.data(), e, count * kDim * 2);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < kDim; ++d)
      ASSERT_EQ(to_float(got[static_cast<size_t>(i * kDim + d)]), 2.0f * static_cast<float>(i + 1))
          << "row " << ids[static_cast<size_t>(i)];
  }
  for (void* data :
       {static_cast<void*>(values), static_cast<void*>(scales), static_cast<void*>(device_ids), static_cast<void*>(e)})
    memory.free(data);
}

TEST(CudaBackendMemory, CopiesRowsOfAnySizeAndAlignment) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  auto device = make_cuda_backend(devices->front().index);
  ASSERT_TRUE(device);
  DeviceMemory& memory = (*device)->memory();
  constexpr int64_t kBytes = 1 << 20;
  std::vector<uint8_t> source(kBytes), target(kBytes);
  testing::Random random(1);
  testing::fill_bytes(random, source);
  auto* from = static_cast<uint8_t*>(memory.allocate(kBytes));
  auto* to = static_cast<uint8_t*>(memory.allocate(kBytes));
  memory.upload(from, source.data(), kBytes);
  for (int64_t row_bytes : {1, 2, 3, 33, 66, 528, 4096, 40960}) {
    for (int64_t shift : {0, 1, 2, 16}) {
      memory.fill(to, 0xee, kBytes);
      std::vector<uint8_t> want(kBytes, 0xee);
      std::vector<DeviceMemory::RowCopy> rows;
      for (int64_t i = 0; i < 5; ++i) {
        const int64_t at = shift + i * row_bytes * 2;
        const int64_t source_at = 4 * row_bytes - i * row_bytes;
        rows.push_back({to + at, from + source_at});
        std::copy_n(source.begin() + source_at, row_bytes, want.begin() + at);
      }
      memory.copy_rows(rows, row_bytes);
      memory.download(target.data(), to, kBytes);
      ASSERT_TRUE(target == want) << row_bytes << " bytes, shifted by " << shift;
    }
  }
  memory.free(from);
  memory.free(to);
}

// A table of pages that outgrows its copy on the device between two operators of a step: the first one still reads what it was
// given.
TEST(CudaTables, MayGrowAmongCallsThatAreReplayed) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  auto device = make_cuda_backend(devices->front().index);
  ASSERT_TRUE(device);
  DeviceMemory& memory = (*device)->memory();
  testing::Random random(3);
  constexpr int64_t kHeads = 2, kDim = 64, kPages = 600;
  constexpr int64_t kRow = kDim / 2 + kDim / kCacheScaleGroup, kWindowRow = kDim + kDim / kScaleGroup;
  std::vector<uint8_t> rows(kPages * kRow), window(kWindowRow, 127);
  for (int64_t i = 0; i < kPages; ++i) {
    for (int64_t d = 0; d < kDim / 2; ++d) rows[static_cast<size_t>(i * kRow + d)] = static_cast<uint8_t>(random.bits());
    for (int64_t d = kDim / 2; d < kRow; ++d) rows[static_cast<size_t>(i * kRow + d)] = float_to_e4m3(1.0f);
  }
  std::fill_n(window.begin(), kDim, uint8_t{0});
  std::vector<void*> all;
  const auto room = [&](int64_t bytes) { return all.emplace_back(memory.allocate(bytes)); };
  auto* pages = static_cast<uint8_t*>(room(kPages * kRow));
  auto* fresh = static_cast<uint8_t*>(room(kWindowRow));
  auto* q = static_cast<bf16*>(room(kHeads * kDim * 2));
  auto* sinks = static_cast<float*>(room(kHeads * 4));
  auto* out = static_cast<bf16*>(room(2 * kHeads * kDim * 2));
  auto* chosen = static_cast<int32_t*>(room(2 * 4));
  memory.upload(pages, rows.data(), kPages * kRow);
  memory.upload(fresh, window.data(), kWindowRow);
  const std::vector<bf16> queries = testing::activations(random, kHeads, kDim);
  memory.upload(q, queries.data(), kHeads * kDim * 2);
  std::vector<uint8_t*> table;
  for (int64_t i = 0; i < kPages; ++i) table.push_back(pages + i * kRow);
  // Two operators, of which the second sees a page more.
  const auto calls = [&](int64_t count) {
    for (int64_t i = 0; i < 2; ++i) {
      const AttentionQuery query{.window = {fresh, 4, fresh, 0, kWindowRow},
                                 .window_first = 0,
                                 .window_last = 0,
                                 .compressed = {table.data(), 1, 0, kRow},
                                 .compressed_rows = count + i,
                                 .chosen = chosen + i,
                                 .chosen_count = 1};
      (*device)->sparse_attention(
          {.q = q, .sinks = sinks, .out = out + i * kHeads * kDim, .queries = {&query, 1}, .heads = kHeads, .dim = kDim});
    }
  };
  const auto result = [&] {
    std::vector<bf16> host(2 * kHeads * kDim);
    memory.download(host.data(), out, 2 * kHeads * kDim * 2);
    return host;
  };
  for (const int64_t count : {1, 1, 1, 32, 33, 34, 96, 97, 288, 289, 500}) {
    const std::vector<int32_t> last = {static_cast<int32_t>(count - 1), static_cast<int32_t>(count)};
    memory.upload(chosen, last.data(), 8);
    (*device)->replay([&] { calls(count); });
    const std::vector<bf16> got = result();
    calls(count);
    EXPECT_TRUE(got == result()) << count << " pages";
  }
  EXPECT_EQ(cuda_replays(**device).recorded, 1);
  EXPECT_EQ(cuda_replays(**device).replayed, 9);
  for (void* data : all) memory.free(data);
}

// Room is made for steps that are never recorded: nothing of them has to fit where recorded arguments lie.
TEST(CudaRehearsal, TakesArraysOfAnySize) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  auto device = make_cuda_backend(devices->front().index);
  ASSERT_TRUE(device);
  DeviceMemory& memory = (*device)->memory();
  constexpr int64_t kBytes = 40 << 20;
  const std::vector<uint8_t> host(kBytes, 3);
  auto* to = static_cast<uint8_t*>(memory.allocate(kBytes));
  (*device)->rehearse([&] {
    memory.upload(to, host.data(), kBytes);
    memory.copy(to, to + kBytes / 2, 1);
  });
  std::vector<uint8_t> got(kBytes, 1);
  memory.download(got.data(), to, kBytes);
  EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](uint8_t byte) { return byte == 0; })) << "nothing ran";
  memory.upload(to, host.data(), kBytes);
  memory.download(got.data(), to, kBytes);
  EXPECT_TRUE(got == host);
  memory.free(to);
}

const auto setting_name = [](const auto& param) {
  std::string name = param.param;
  std::erase_if(name, [](char c) { return std::string_view("-,").find(c) != std::string_view::npos; });
  return name;
};

class CudaGraphReplay : public ::testing::TestWithParam<const char*> {};

// A chain of operators that read what the one before wrote and write what it read, with coefficients computed beside them.
TEST_P(CudaGraphReplay, GivesTheBitsOfTheCalls) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  auto device = make_cuda_backend(devices->front().index, *parse_cuda_features(GetParam()));
  ASSERT_TRUE(device);
  DeviceMemory& memory = (*device)->memory();
  testing::Random random(2);
  constexpr int64_t kRows = 5, kIn = 256, kInner = 64, kExperts = 6, kTopk = 2;
  std::vector<void*> all;
  const auto room = [&](int64_t bytes) { return all.emplace_back(memory.allocate(bytes)); };
  const auto upload = [&](const auto& host) {
    using T = std::decay_t<decltype(host[0])>;
    const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
    auto* data = static_cast<T*>(room(bytes));
    memory.upload(data, host.data(), bytes);
    return data;
  };
  const auto fp8 = [&](int64_t out, int64_t in) {
    const testing::Fp8Matrix m(random, out, in);
    return Fp8Weight{upload(m.values), upload(m.scales), out, in};
  };
  const auto fp4 = [&](int64_t out, int64_t in) {
    const testing::Fp4Matrix m(random, out, in);
    uint8_t* codes = upload(m.codes);
    uint8_t* scales = upload(m.scales);
    (*device)->arrange_experts(codes, scales, out, in);
    return Fp4Weight{codes, scales, out, in};
  };
  std::vector<ExpertWeights> routed;
  for (int64_t e = 0; e < kExperts; ++e) {
    const Fp4Weight w1 = fp4(kInner, kIn), w2 = fp4(kIn, kInner), w3 = fp4(kInner, kIn);
    routed.push_back({w1, w2, w3});
  }
  const Fp8Weight shared1 = fp8(kInner, kIn), shared2 = fp8(kIn, kInner), shared3 = fp8(kInner, kIn), dense = fp8(kIn, kIn);
  const Bf16Weight gate{upload(testing::bf16_weights(random, kExperts * kIn, 0.1f)), kExperts, kIn};
  const float* bias = upload(testing::floats(random, kExperts, 0.1f));
  constexpr int64_t kStreams = 4;
  const HyperMixWeights mix{upload(testing::floats(random, (2 + kStreams) * kStreams * kStreams * kIn, 0.05f)),
                            upload(testing::floats(random, (2 + kStreams) * kStreams, 1.0f)),
                            upload(std::vector<float>{0.5f, 0.75f, 1.25f}),
                            kStreams,
                            kIn,
                            20,
                            1e-6f,
                            1e-20f};
  const bf16* norm = upload(testing::bf16_weights(random, kIn, 1.0f));
  auto* streams = static_cast<bf16*>(room(kRows * kStreams * kIn * 2));
  auto* pre = static_cast<float*>(room(kRows * kStreams * 4));
  auto* next_pre = static_cast<float*>(room(kRows * kStreams * 4));
  auto* post = static_cast<float*>(room(kRows * kStreams * 4));
  auto* comb = static_cast<float*>(room(kRows * kStreams * kStreams * 4));
  auto* x = static_cast<bf16*>(room(kRows * kIn * 2));
  auto* v = static_cast<bf16*>(room(kRows * kIn * 2));
  auto* y = static_cast<bf16*>(room(kRows * kIn * 2));
  auto* chosen = static_cast<int32_t*>(room(kRows * kTopk * 4));
  auto* weights = static_cast<float*>(room(kRows * kTopk * 4));
  const auto calls = [&] {
    (*device)->beside([&] { (*device)->hyper_mix(mix, streams, kRows, next_pre, post, comb); });
    (*device)->hyper_collapse_norm(streams, pre, kRows, kStreams, kIn, norm, 1e-20f, x);
    const LinearOutput output{dense, v};
    (*device)->linear_fp8(x, kRows, {&output, 1});
    (*device)->route({.v = v, .gate = gate, .bias = bias, .bias_vl = bias, .topk = kTopk, .experts = chosen, .weights = weights},
                     kRows);
    (*device)->experts({.v = v,
                        .experts = chosen,
                        .weights = weights,
                        .routed = routed,
                        .shared_w1 = shared1,
                        .shared_w2 = shared2,
                        .shared_w3 = shared3,
                        .topk = kTopk,
                        .swiglu_limit = 10,
                        .y = y},
                       kRows);
    (*device)->join();
    (*device)->hyper_expand(y, post, comb, kRows, kStreams, kIn, streams);
    (*device)->hyper_collapse_norm(streams, next_pre, kRows, kStreams, kIn, norm, 1e-20f, y);
  };
  const auto result = [&] {
    std::vector<bf16> host(kRows * kIn);
    memory.download(host.data(), y, kRows * kIn * 2);
    return host;
  };
  calls();  // scratch grows, tables are uploaded
  const auto graph = record_cuda_graph(**device, calls);
  for (int i = 0; i < 100; ++i) {  // other inputs, other choices, one graph
    const auto input = testing::activations(random, kRows, kStreams * kIn);
    const auto mixes = testing::floats(random, kRows * kStreams, 1.0f);
    const auto begin = [&] {
      memory.upload(streams, input.data(), kRows * kStreams * kIn * 2);
      memory.upload(pre, mixes.data(), kRows * kStreams * 4);
      memory.fill(y, 0xcd, kRows * kIn * 2);
    };
    begin();
    for (int turn = 0; turn < 3; ++turn) calls();  // each begins with the streams of the one before
    const std::vector<bf16> want = result();
    begin();
    for (int turn = 0; turn < 3; ++turn) graph->replay();
    EXPECT_TRUE(result() == want) << "input " << i;
  }
  for (void* data : all) memory.free(data);
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaGraphReplay,
                         ::testing::Values("none", "overlap", "beside", "fused", "arranged", "staged", "streamed", "few-rows",
                                           "few-rows,overlap", "all"),
                         setting_name);

class CudaProductReplay : public ::testing::TestWithParam<const char*> {};

// Products that read what the one before wrote, of as many rows as kernels of several launches have.
TEST_P(CudaProductReplay, GivesTheBitsOfTheCalls) {
  const auto devices = cuda_devices();
  if (!devices) GTEST_SKIP() << devices.error().message();
  auto plain = make_cuda_backend(devices->front().index, {});
  auto device = make_cuda_backend(devices->front().index, *parse_cuda_features(GetParam()));
  ASSERT_TRUE(plain && device);
  testing::Random random(3);
  constexpr int64_t kIn = 1088, kInner = 1024, kGroups = 2;
  const int64_t rows = std::string_view(GetParam()).find("widened") != std::string_view::npos ? 800 : 40;
  DeviceMemory& memory = (*device)->memory();
  std::vector<void*> all;
  const auto upload = [&](const std::vector<uint8_t>& host) {
    auto* data = static_cast<uint8_t*>(all.emplace_back(memory.allocate(static_cast<int64_t>(host.size()))));
    memory.upload(data, host.data(), static_cast<int64_t>(host.size()));
    return data;
  };
  const auto fp8 = [&](int64_t out, int64_t in) {
    const testing::Fp8Matrix m(random, out, in);
    return Fp8Weight{upload(m.values), upload(m.scales), out, in};
  };
  const Fp8Weight first = fp8(kInner, kIn), second = fp8(kIn, kInner), third = fp8(kIn, kIn / kGroups);
  const auto room = [&](int64_t columns) {
    return static_cast<bf16*>(all.emplace_back(memory.allocate(rows * columns * int64_t{sizeof(bf16)})));
  };
  bf16 *x = room(kIn), *inner = room(kInner), *y = room(kIn);
  const auto calls = [&](Backend& b) {
    const LinearOutput to_inner{first, inner}, to_y{second, y};
    b.linear_fp8(x, rows, {&to_inner, 1});
    b.linear_fp8(inner, rows, {&to_y, 1});
    b.output_lora(y, rows, third, kGroups, x);
  };
  const auto run = [&](int64_t seed, FunctionRef<void()> once, Backend& b) {
    testing::Random own(static_cast<uint64_t>(seed));
    const auto input = testing::activations(own, rows, kIn);
    b.memory().upload(x, input.data(), rows * kIn * int64_t{sizeof(bf16)});
    for (int turn = 0; turn < 2; ++turn) once();  // the second begins with what the first wrote
    std::vector<bf16> host(static_cast<size_t>(rows * kIn));
    b.memory().download(host.data(), x, rows * kIn * int64_t{sizeof(bf16)});
    return host;
  };
  calls(**device);  // scratch grows
  const auto graph = record_cuda_graph(**device, [&] { calls(**device); });
  for (int64_t seed = 0; seed < 3; ++seed) {  // a download waits for what its own backend was given alone
    const auto called = run(
        seed, [&] { calls(**device); }, **device);
    const auto replayed = run(
        seed, [&] { graph->replay(); }, **device);
    const auto want = run(
        seed, [&] { calls(**plain); }, **plain);
    EXPECT_TRUE(called == want) << "calls, input " << seed;
    EXPECT_TRUE(replayed == want) << "graph, input " << seed;
  }
  for (void* data : all) memory.free(data);
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaProductReplay,
                         ::testing::Values("none", "staged", "widened,overlap", "split", "split,overlap", "all"), setting_name);

// More rows than the cases have, at the release's shapes and at others that end in the middle of everything.
TEST(CudaManyRows, FeaturesDoNotMatterToProducts) {
  if (backend(0) == nullptr) GTEST_SKIP() << cuda_devices().error().message();
  const auto widened = make_backend("widened");
  struct Shape {
    int64_t in;
    std::vector<int64_t> outs;
    int64_t groups;
    std::vector<int64_t> rows;
  };
  const Shape shapes[] = {{1280, {32768}, 1, {300, 768, 1000, 2048}}, {8192, {5120}, 1, {400, 701, 1500, 2048}},
                          {5120, {1280, 512}, 1, {1000, 2049}},       {4096, {8192}, 8, {515, 700, 1111}},
                          {1088, {12808, 100, 6503}, 1, {701, 1303}}, {576, {10 * 1120}, 10, {729, 1023}}};
  for (const Shape& shape : shapes) {
    testing::Random random(11);
    std::vector<testing::Fp8Matrix> weights;
    for (const int64_t out : shape.outs) {
      auto& scales = weights.emplace_back(random, out, shape.in).scales;
      for (size_t i = 5; i < scales.size(); i += 41) scales[i] = static_cast<uint8_t>(140 - i % 14);
    }
    const int64_t most = *std::max_element(shape.rows.begin(), shape.rows.end());
    const auto x = testing::activations(random, most, shape.in * shape.groups);
    const auto run = [&](Backend& b, int64_t rows) {
      std::vector<std::vector<bf16>> y;
      std::vector<LinearOutput> outputs;
      for (const auto& w : weights) y.emplace_back(static_cast<size_t>(rows * w.out));
      for (size_t i = 0; i < y.size(); ++i) outputs.push_back({weights[i].view(), y[i].data()});
      if (shape.groups == 1) {
        b.linear_fp8(x.data(), rows, outputs);
      } else {
        b.output_lora(x.data(), rows, outputs[0].weight, shape.groups, y[0].data());
      }
      return y;
    };
    for (const int64_t rows : shape.rows) {
      SCOPED_TRACE(std::to_string(shape.in) + " columns, " + std::to_string(rows) + " rows");
      const auto want = run(*backend(0), rows);
      for (Backend* b : {widened.get(), backend(1)}) {
        const auto got = run(*b, rows);
        for (size_t i = 0; i < want.size(); ++i) {
          for (size_t k = 0; k < want[i].size(); ++k)
            ASSERT_EQ(got[i][k].bits, want[i][k].bits) << "output " << i << ", value " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
