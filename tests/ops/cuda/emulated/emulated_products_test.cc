// Products and experts, thread by thread on the host (device.h): kernels that bring weights by way of shared memory against those
// that do not, bitwise, and both against the reference.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/thread_pool.h"
#include "ops/backends.h"
#include "ops/cuda/emulated/device.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/experts_few.h"
#include "ops/cuda/products.h"
#include "ops/cuda/widened_layout.h"
#include "ops/op_compare.h"
#include "ops/op_inputs.h"
#include "ops/wrapped_backend.h"

namespace deepinfer {
namespace {

using testing::expect_close;
using testing::expect_same;
using testing::OpCase;
using testing::Outputs;
using testing::Random;
using testing::RunRows;

// Scratch at a multiple of 16 bytes.
template <typename T>
class Room {
 public:
  explicit Room(int64_t count) : memory_(static_cast<size_t>(count) * sizeof(T) + 16, 0xcd) {}
  T* data() {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<T*>(memory_.data() + (16 - at % 16) % 16);
  }

 private:
  std::vector<uint8_t> memory_;
};

/// A copy whose last byte is the last one that may be read: behind what is left of its word, of which copies may read nothing
/// either, a page follows that nobody may read.
class Guarded {
 public:
  Guarded(const uint8_t* from, size_t bytes) : bytes_((bytes + 3 + kPage - 1) / kPage * kPage + kPage) {
    memory_ = static_cast<uint8_t*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED || ::mprotect(memory_ + bytes_ - kPage, kPage, PROT_NONE) != 0) std::abort();
    const size_t rest = bytes % 4 == 0 ? 0 : 4 - bytes % 4;  // the array begins at a multiple of 4
    data_ = memory_ + bytes_ - kPage - rest - bytes;
    if (rest > 0) emulated::forbid_copies(data_ + bytes, rest);
    end_ = data_ + bytes;
    std::memcpy(data_, from, bytes);
  }
  ~Guarded() {
    emulated::allow_copies(end_);
    ::munmap(memory_, bytes_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  const uint8_t* data() const { return data_; }

 private:
  static constexpr size_t kPage = 65536;
  size_t bytes_;
  uint8_t* memory_;
  uint8_t* data_;
  uint8_t* end_;
};

constexpr int kStreamed = -1;
constexpr int kWidened = -2;
constexpr int kMixed = -3;
constexpr int kFewExperts = -4;

/// The reference, but for matrix products of FP8 and FP4, whose scales are guarded.
class EmulatedProducts final : public WrappedBackend {
 public:
  /// `tile_inputs`: of staged experts; 0: not staged; kStreamed: streamed ones; kWidened: dense products are; kMixed:
  /// dense products with weights widened in registers and inputs in order; kFewExperts: hidden values by experts_few.cu.
  /// `shared_apart`: staged experts' shared one by widened products.
  EmulatedProducts(int tile_inputs, bool arranged, bool shared_apart = false)
      : WrappedBackend(make_reference_backend(pool())),
        tile_inputs_(tile_inputs),
        arranged_(arranged),
        shared_apart_(shared_apart),
        stream_(nullptr, false) {}

  void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) override {
    cuda::ProductArgs args = arguments(x, rows, outputs[0].weight.in);
    for (const LinearOutput& o : outputs) args.outputs[args.output_count++] = {cuda::view(guarded(o.weight)), o.y};
    Room<bf16> scratch(cuda::fp8_scratch(rows, 1, outputs[0].weight.in));
    count(args);
    if (widens()) return multiply_widened(args, true, scratch.data());
    if (tile_inputs_ == kMixed) return multiply_mixed(args, true, scratch.data());
    cuda::multiply_fp8_quantized(args, scratch.data(), stream_);
  }
  void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) override {
    cuda::ProductArgs args = arguments(o, rows, groups * wo_a.in);
    args.x_group = wo_a.in;
    args.groups = groups;
    args.outputs[args.output_count++] = {cuda::view(guarded(wo_a)), y};
    Room<bf16> scratch(cuda::fp8_scratch(rows, groups, wo_a.in));
    count(args);
    if (widens()) return multiply_widened(args, false, scratch.data());
    if (tile_inputs_ == kMixed) return multiply_mixed(args, false, scratch.data());
    cuda::multiply_fp8(args, scratch.data(), stream_);
  }
  void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) override {
    multiply_bf16(x, rows, w, y, true);
  }
  void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) override { multiply_bf16(x, rows, w, y, false); }
  void experts(const ExpertsArgs& given, int64_t rows) override {
    ExpertsArgs args = given;
    for (Fp8Weight* w : {&args.shared_w1, &args.shared_w2, &args.shared_w3}) *w = guarded(*w);
    const cuda::ExpertShape shape = {static_cast<int64_t>(args.routed.size()), args.topk, args.shared_w1.in, args.shared_w1.out};
    cuda::ExpertPlan plan{panels_ && cuda::takes_panels(args) ? cuda::panel_expert_sizes(shape, rows, tile_inputs_)
                          : tile_inputs_ > 0
                              ? cuda::staged_expert_sizes(shape, rows, tile_inputs_, tile_inputs_ == 80 ? 128 : tile_inputs_)
                          : tile_inputs_ == kStreamed ? cuda::streamed_expert_sizes(shape, rows)
                                                      : cuda::expert_sizes(shape, rows)};
    plan.shared_first = plan.staged || plan.streamed;
    plan.arranged = arranged_;
    plan.shared_apart = shared_apart_;
    panel_calls_ += plan.panels ? 1 : 0;
    Room<int32_t> token(plan.pairs), pair_of(plan.pairs);
    Room<float> weight(plan.pairs);
    Room<cuda::ExpertPlan::Tile> tiles(plan.tile_count);
    Room<bf16> input(plan.input_values), hidden(plan.hidden_values), output(plan.output_values);
    plan.token = token.data(), plan.pair_of = pair_of.data(), plan.weight = weight.data(), plan.tiles = tiles.data();
    plan.input = input.data(), plan.hidden = hidden.data(), plan.output = output.data();
    std::vector<ExpertWeights> routed(args.routed.begin(), args.routed.end());
    for (ExpertWeights& w : routed) {
      for (Fp4Weight* m : {&w.w1, &w.w2, &w.w3}) {
        std::vector<uint8_t> codes(m->codes, m->codes + m->out * m->in / 2), scales(m->scales, m->scales + m->out * m->in / 32);
        if (arranged_) {
          std::vector<uint8_t> scratch(codes.size() + scales.size());
          cuda::arrange_panels(codes.data(), scales.data(), m->out, m->in, scratch.data(), stream_);
        }
        m->codes = guarded(codes.data(), static_cast<int64_t>(codes.size()));
        m->scales = guarded(scales.data(), static_cast<int64_t>(scales.size()));
      }
    }
    Room<bf16> widened_weights(cuda::widened_shared_weights(args));
    plan.widened = widened_weights.data();
    if (shared_apart_) {
      fits_ = cuda::widened_shared(args, rows, plan).fits;
      if (!fits_) std::abort();
    }
    if (tile_inputs_ != kFewExperts) return cuda::run_experts(args, routed.data(), rows, plan, stream_);
    if (!cuda::takes_few_hidden(args, rows, plan)) std::abort();
    std::vector<float> parts(static_cast<size_t>(cuda::few_hidden_parts(args, rows)), NAN);
    std::vector<int32_t> arrived(cuda::kMostArrived);
    cuda::run_experts(args, routed.data(), rows, plan, {parts.data(), arrived.data()}, false, stream_);
    if (std::any_of(arrived.begin(), arrived.end(), [](int32_t v) { return v != 0; })) std::abort();
  }

  int staged_calls() const { return staged_calls_; }
  bool fits() const { return fits_; }  ///< the last call had widened products
  /// Routed experts' weights are widened into shared memory, where they can be.
  void from_panels() { panels_ = true; }
  int panel_calls() const { return panel_calls_; }
  void set_widened_inputs(int inputs) { widened_inputs_ = inputs; }  ///< of a tile

 private:
  const uint8_t* guarded(const uint8_t* scales, int64_t bytes) {
    return guarded_.emplace_back(std::make_unique<Guarded>(scales, static_cast<size_t>(bytes)))->data();
  }
  Fp8Weight guarded(Fp8Weight w) {
    w.scales = guarded(w.scales, (w.out + 31) / 32 * (w.in / 32));
    return w;
  }
  static ThreadPool* pool() {
    static ThreadPool one(1);
    return &one;
  }
  void count(const cuda::ProductArgs& args) { staged_calls_ += cuda::staged_product(args).pays ? 1 : 0; }
  bool widens() const { return tile_inputs_ == kWidened; }
  // Whether it pays or not.
  void multiply_widened(cuda::ProductArgs args, bool quantize, bf16* scratch) {
    cuda::WidenedProduct cut = cuda::widened_product(args);
    const cuda::WidenedRows rows = cuda::cut_rows(args.rows, cut.fits ? widened_inputs_ : 1);
    cut.inputs = rows.inputs, cut.row_blocks = rows.blocks, cut.block_rows = rows.block_rows;
    if (cut.panel_count < 20) cut.panel_count = std::min(cut.panel_count, 4);  // several launches
    fits_ = cut.fits;
    if (!cut.fits)
      return quantize ? cuda::multiply_fp8_quantized(args, scratch, stream_) : cuda::multiply_fp8(args, scratch, stream_);
    Room<bf16> weights(cut.panel_count * cuda::kWidenedRows * args.outputs[0].weight.in);
    args.room = weights.data();
    cuda::multiply_fp8_widened(args, cut, quantize, scratch, stream_);
  }
  void multiply_mixed(cuda::ProductArgs args, bool quantize, bf16* scratch) {
    cuda::MixedProduct cut = cuda::mixed_product(args);
    const cuda::WidenedRows rows = cuda::cut_rows(args.rows, cut.fits ? widened_inputs_ : 1);
    cut.inputs = rows.inputs, cut.row_blocks = rows.blocks, cut.block_rows = rows.block_rows;
    fits_ = cut.fits;
    args.staged = false;
    if (!cut.fits)
      return quantize ? cuda::multiply_fp8_quantized(args, scratch, stream_) : cuda::multiply_fp8(args, scratch, stream_);
    cuda::multiply_fp8_mixed(args, cut, quantize, scratch, stream_);
  }
  void multiply_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, void* y, bool fp32) {
    cuda::ProductArgs args = arguments(x, rows, w.in);
    args.fp32 = fp32;
    args.outputs[args.output_count++] = {cuda::view(w), y};
    fits_ = cuda::mixed_bf16_product(args).pays;
    Room<bf16> room(cuda::ordered_bf16_room(args));
    args.room = fits_ ? room.data() : nullptr;
    cuda::multiply_bf16(args, stream_);
  }
  cuda::ProductArgs arguments(const bf16* x, int64_t rows, int64_t stride) const {
    cuda::ProductArgs args;
    args.x = x;
    args.rows = rows;
    args.x_stride = stride;
    args.staged = tile_inputs_ > 0 || tile_inputs_ == kMixed;
    args.widened = widens();
    return args;
  }
  void around(const char* /*name*/, int64_t /*rows*/, FunctionRef<void()> call) override { call(); }

  int tile_inputs_;
  bool arranged_;
  bool shared_apart_;
  cuda::LaunchStream stream_;
  int staged_calls_ = 0;
  int widened_inputs_ = 96;
  bool panels_ = false;
  int panel_calls_ = 0;
  bool fits_ = false;
  std::vector<std::unique_ptr<Guarded>> guarded_;
};

struct ExpertShape {
  const char* name;
  int64_t hidden, inner, experts, topk, rows;
  int tile_inputs;
  int large_scale = 0;     ///< some scales are as large as this byte: they need two factors
  size_t large_step = 37;  ///< one of so many
};

// Tiles of every size that there are kernels for, some cut in two, experts without any pair; columns that end in the middle of a
// chunk and of a segment, and rows of scales that begin at any byte.
constexpr ExpertShape kExpertShapes[] = {
    {"few_7", 96, 1120, 5, 2, 7, 32},
    {"few_25", 576, 288, 6, 2, 25, 64},
    {"tiles_32", 288, 576, 4, 2, 50, 32},
    {"tiles_64", 96, 1152, 3, 2, 90, 64},
    {"tiles_80", 1088, 160, 4, 1, 150, 80},
    {"tiles_96", 1088, 160, 4, 1, 190, 96},
    {"tiles_halved", 544, 544, 3, 1, 250, 80},
    {"odd_scales", 32, 96, 3, 2, 40, 64},
    {"release_width", 96, 2304, 2, 1, 40, 64},
    {"large_scales", 576, 320, 3, 2, 20, 32, 140},
    {"large_scales_many", 320, 576, 3, 2, 130, 80, 140},
};

OpCase expert_case(const ExpertShape& d) {
  return {d.name, {d.rows}, [d]() -> RunRows {
            struct Inputs {
              std::vector<testing::Fp4Matrix> w1, w2, w3;
              testing::Fp8Matrix shared1, shared2, shared3;
              std::vector<ExpertWeights> routed;
              std::vector<bf16> v;
              std::vector<int32_t> experts;
              std::vector<float> weights;
            };
            Random random(7);
            auto in = std::make_shared<Inputs>();
            const auto enlarge = [&](std::vector<uint8_t>& scales) {
              for (size_t i = 0; d.large_scale != 0 && i < scales.size(); i += d.large_step)
                scales[i] = static_cast<uint8_t>(d.large_scale - static_cast<int>(i % 14));
            };
            for (int64_t e = 0; e < d.experts; ++e) {
              in->w1.emplace_back(random, d.inner, d.hidden);
              in->w3.emplace_back(random, d.inner, d.hidden);
              in->w2.emplace_back(random, d.hidden, d.inner);
              for (auto* m : {&in->w1.back(), &in->w2.back(), &in->w3.back()}) enlarge(m->scales);
            }
            for (size_t e = 0; e < in->w1.size(); ++e)
              in->routed.push_back({in->w1[e].view(), in->w2[e].view(), in->w3[e].view()});
            in->shared1 = testing::Fp8Matrix(random, d.inner, d.hidden);
            in->shared3 = testing::Fp8Matrix(random, d.inner, d.hidden);
            in->shared2 = testing::Fp8Matrix(random, d.hidden, d.inner);
            for (auto* m : {&in->shared1, &in->shared2, &in->shared3}) enlarge(m->scales);
            in->v = testing::activations(random, d.rows, d.hidden);
            for (int64_t r = 0; r < d.rows; ++r) {
              std::vector<int32_t> ids;  // the first experts have more, the last ones none
              while (static_cast<int64_t>(ids.size()) < d.topk) {
                const auto e =
                    static_cast<int32_t>(random.below(random.below(3) != 0 ? d.topk : std::max(d.topk, d.experts - 1)));
                if (std::find(ids.begin(), ids.end(), e) == ids.end()) ids.push_back(e);
              }
              for (const int32_t e : ids) {
                in->experts.push_back(e);
                in->weights.push_back(static_cast<float>(0.05 + random.uniform()));
              }
            }
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> y(static_cast<size_t>(count * d.hidden));
              b.experts({.v = in->v.data() + begin * d.hidden,
                         .experts = in->experts.data() + begin * d.topk,
                         .weights = in->weights.data() + begin * d.topk,
                         .routed = in->routed,
                         .shared_w1 = in->shared1.view(),
                         .shared_w2 = in->shared2.view(),
                         .shared_w3 = in->shared3.view(),
                         .topk = d.topk,
                         .swiglu_limit = 10,
                         .y = y.data()},
                        count);
              return {testing::output_of("y", testing::Compare::kInnerQuantiser, y, d.hidden)};
            };
          }};
}

class StagedExpertShapes : public ::testing::TestWithParam<ExpertShape> {};

TEST_P(StagedExpertShapes, HaveTheBitsOfTheOthers) {
  const ExpertShape& shape = GetParam();
  const RunRows run = expert_case(shape).make();
  EmulatedProducts plain(0, false), arranged_plain(0, true), staged(shape.tile_inputs, false);
  const Outputs want = run(plain, 0, shape.rows);
  ASSERT_NO_FATAL_FAILURE(expect_same(run(arranged_plain, 0, shape.rows), want, 0, shape.rows));
  ASSERT_NO_FATAL_FAILURE(expect_same(run(staged, 0, shape.rows), want, 0, shape.rows));
  EmulatedProducts arranged(shape.tile_inputs, true);
  ASSERT_NO_FATAL_FAILURE(expect_same(run(arranged, 0, shape.rows), want, 0, shape.rows));
}

TEST(StagedExperts, AreCloseToTheReference) {
  const ExpertShape& shape = kExpertShapes[1];
  const RunRows run = expert_case(shape).make();
  EmulatedProducts staged(shape.tile_inputs, true);
  testing::OwnedBackend reference = testing::reference_backend(1);
  expect_close(run(staged, 0, shape.rows)[0], run(*reference.backend, 0, shape.rows)[0], shape.rows);
}

INSTANTIATE_TEST_SUITE_P(All, StagedExpertShapes, ::testing::ValuesIn(kExpertShapes),
                         [](const auto& param) { return std::string(param.param.name); });

// Routed experts whose weights come by bulk copies, of kernels for few, some and many pairs of an expert: tiles of every size,
// some cut in two, several segments, one that ends early, in whole stages and in halves.
TEST(PanelExperts, HaveTheBitsOfTheOthers) {
  for (const ExpertShape& shape :
       {ExpertShape{"few", 128, 128, 6, 3, 12, 48}, ExpertShape{"few_24", 256, 640, 4, 2, 34, 48},
        ExpertShape{"few_40", 384, 256, 4, 2, 60, 48}, ExpertShape{"few_48", 640, 384, 3, 2, 80, 48},
        ExpertShape{"few_halved", 1152, 128, 2, 1, 150, 48}, ExpertShape{"some", 640, 384, 5, 2, 110, 88},
        ExpertShape{"some_halved", 384, 640, 2, 1, 220, 88}, ExpertShape{"many", 256, 640, 4, 2, 200, 160},
        ExpertShape{"many_128", 128, 128, 3, 2, 180, 160}, ExpertShape{"many_halved", 384, 128, 3, 1, 400, 160},
        ExpertShape{"large_scales", 256, 256, 3, 2, 40, 48, 140}, ExpertShape{"large_scales_many", 256, 256, 3, 2, 130, 160, 140},
        // Warps and tiles with and without any, in several segments.
        ExpertShape{"large_scales_few", 1152, 640, 3, 2, 60, 48, 140, 2003},
        ExpertShape{"large_scales_some", 640, 1152, 2, 1, 170, 88, 140, 3001}}) {
    SCOPED_TRACE(shape.name);
    const RunRows run = expert_case(shape).make();
    EmulatedProducts plain(0, false), panels(shape.tile_inputs, true);
    panels.from_panels();
    ASSERT_NO_FATAL_FAILURE(expect_same(run(panels, 0, shape.rows), run(plain, 0, shape.rows), 0, shape.rows));
    EXPECT_EQ(panels.panel_calls(), 1);
  }
}
TEST(PanelExperts, LeaveNarrowOnesToTheOthers) {
  const ExpertShape shape{"narrow", 256, 288, 3, 2, 40, 64};
  const RunRows run = expert_case(shape).make();
  EmulatedProducts plain(0, false), widened(shape.tile_inputs, true);
  widened.from_panels();
  ASSERT_NO_FATAL_FAILURE(expect_same(run(widened, 0, shape.rows), run(plain, 0, shape.rows), 0, shape.rows));
  EXPECT_EQ(widened.panel_calls(), 0);
}

// The shared expert by widened products, every size of tile of either of them; columns that end in the middle of a segment.
TEST(WidenedSharedExperts, HaveTheBitsOfTheOthers) {
  for (const ExpertShape& shape : {ExpertShape{"few", 64, 64, 3, 1, 20, 32},
                                   {"tiles", 576, 320, 2, 1, 100, 64},
                                   {"wide", 192, 1152, 2, 1, 130, 64},
                                   {"cut", 1088, 192, 2, 1, 193, 96},
                                   {"large_scales", 640, 576, 3, 2, 150, 80, 140}}) {
    SCOPED_TRACE(shape.name);
    const RunRows run = expert_case(shape).make();
    EmulatedProducts plain(0, false), widened(shape.tile_inputs, true, true);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(widened, 0, shape.rows), run(plain, 0, shape.rows), 0, shape.rows));
    EXPECT_TRUE(widened.fits());
  }
}

// Panels that are cut off, warps without any, chunks and segments that end early, an odd number of chunks, scales at multiples of
// 16, of 8 and of nothing, tiles of up to 8 and up to 16 inputs and experts with several.
constexpr ExpertShape kStreamedShapes[] = {
    {"one", 96, 160, 3, 1, 1, kStreamed},
    {"narrow", 32, 32, 4, 2, 5, kStreamed},
    {"tiles", 576, 288, 6, 2, 25, kStreamed},
    {"several_tiles", 288, 576, 4, 2, 70, kStreamed},
    {"whole_segments", 1024, 512, 2, 1, 9, kStreamed},
    {"few", 1600, 1056, 6, 2, 3, kStreamed},
    {"few_long", 5120, 96, 3, 1, 2, kStreamed, 140},
    {"few_wide", 224, 2304, 12, 6, 8, kStreamed},
    {"eights", 1280, 768, 3, 2, 12, kStreamed},
    {"release_width", 160, 2304, 2, 1, 20, kStreamed},
    {"large_scales", 576, 320, 3, 2, 20, kStreamed, 140},
    {"large_scales_long", 1600, 1056, 3, 2, 30, kStreamed, 140},
};

class StreamedExpertShapes : public ::testing::TestWithParam<ExpertShape> {};

TEST_P(StreamedExpertShapes, HaveTheBitsOfTheOthers) {
  const ExpertShape& shape = GetParam();
  const RunRows run = expert_case(shape).make();
  EmulatedProducts plain(0, false);
  const Outputs want = run(plain, 0, shape.rows);
  EmulatedProducts arranged_plain(0, true);
  ASSERT_NO_FATAL_FAILURE(expect_same(run(arranged_plain, 0, shape.rows), want, 0, shape.rows));
  for (const bool arranged : {false, true}) {
    SCOPED_TRACE(arranged ? "arranged" : "as they come");
    EmulatedProducts streamed(kStreamed, arranged);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(streamed, 0, shape.rows), want, 0, shape.rows));
  }
}

TEST(StreamedExperts, AreCloseToTheReference) {
  const ExpertShape& shape = kStreamedShapes[2];
  const RunRows run = expert_case(shape).make();
  EmulatedProducts streamed(kStreamed, true);
  testing::OwnedBackend reference = testing::reference_backend(1);
  expect_close(run(streamed, 0, shape.rows)[0], run(*reference.backend, 0, shape.rows)[0], shape.rows);
}

INSTANTIATE_TEST_SUITE_P(All, StreamedExpertShapes, ::testing::ValuesIn(kStreamedShapes),
                         [](const auto& param) { return std::string(param.param.name); });

// Steps of few rows: fewer panels than blocks, several and more of them, segments of one and more stages, experts in common,
// scales that need two factors.
TEST(FewExperts, HaveTheBitsOfTheOthers) {
  for (const ExpertShape& shape : {ExpertShape{"one_stage", 256, 64, 3, 1, 1, kFewExperts},
                                   {"stages", 768, 96, 6, 3, 2, kFewExperts},
                                   {"inner", 512, 2304, 4, 2, 2, kFewExperts},
                                   {"columns", 5120, 288, 8, 6, 2, kFewExperts},
                                   {"experts", 1024, 576, 20, 6, 2, kFewExperts},
                                   {"large_scales", 1280, 512, 6, 3, 2, kFewExperts, 140}}) {
    SCOPED_TRACE(shape.name);
    const RunRows run = expert_case(shape).make();
    EmulatedProducts plain(0, false), few(kFewExperts, true);
    for (int64_t rows = 1; rows <= shape.rows; ++rows) {
      SCOPED_TRACE(rows);
      ASSERT_NO_FATAL_FAILURE(expect_same(run(few, 0, rows), run(plain, 0, rows), 0, rows));
    }
  }
}

struct ProductShape {
  const char* name;
  int64_t in;
  std::vector<int64_t> outs;
  int64_t groups, rows;
};

OpCase product_case(const ProductShape& d) {
  return {
      d.name, {d.rows}, [d]() -> RunRows {
        Random random(8);
        auto weights = std::make_shared<std::vector<testing::Fp8Matrix>>();
        for (const int64_t out : d.outs) weights->emplace_back(random, out, d.in);
        for (auto& w : *weights) {
          for (size_t i = 5; i < w.scales.size(); i += 41) w.scales[i] = static_cast<uint8_t>(140 - i % 14);
        }
        const auto x = testing::activations(random, d.rows, d.in * d.groups);
        return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
          std::vector<std::vector<bf16>> y;
          std::vector<LinearOutput> outputs;
          for (const auto& w : *weights) y.emplace_back(static_cast<size_t>(count * w.out));
          for (size_t i = 0; i < y.size(); ++i) outputs.push_back({(*weights)[i].view(), y[i].data()});
          if (d.groups == 1) {
            b.linear_fp8(x.data() + begin * d.in, count, outputs);
          } else {
            b.output_lora(x.data() + begin * d.in * d.groups, count, outputs[0].weight, d.groups, y[0].data());
          }
          Outputs out;
          for (const auto& values : y)
            out.push_back(testing::output_of("y", testing::Compare::kBf16, values, static_cast<int64_t>(values.size()) / count));
          return out;
        };
      }};
}

TEST(StagedProducts, HaveTheBitsOfTheOthers) {
  for (const ProductShape& shape : {ProductShape{"few", 608, {25500}, 1, 17},
                                    {"few_groups", 544, {100 * 20}, 100, 29},
                                    {"some_groups", 544, {100 * 20}, 100, 60},
                                    {"many", 96, {10000, 2720}, 1, 231},
                                    {"many_groups", 1056, {50 * 20}, 50, 170}}) {
    SCOPED_TRACE(shape.name);
    const RunRows run = product_case(shape).make();
    EmulatedProducts plain(0, false), staged(128, false);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(staged, 0, shape.rows), run(plain, 0, shape.rows), 0, shape.rows));
    EXPECT_EQ(staged.staged_calls(), 1);
  }
}

// Tiles of every size that there are kernels for, the last one of a product cut off, and several for a block; rows of weights
// that end anywhere in a block; one segment, several, and one that ends early; an odd number of chunks; several matrices, and
// several parts of a row.
TEST(WidenedProducts, HaveTheBitsOfTheOthers) {
  struct Case {
    ProductShape shape;
    int inputs;
  };
  for (const Case& c : {Case{{"one_chunk", 64, {12700}, 1, 130}, 96},
                        {{"outputs", 576, {640, 100, 263}, 1, 90}, 96},
                        {{"segments", 1088, {904}, 1, 125}, 128},
                        {{"whole_segment", 512, {700}, 1, 157}, 160},
                        {{"many", 192, {4224}, 1, 703}, 192},
                        {{"groups", 320, {5 * 160}, 5, 20}, 96},
                        {{"many_groups", 640, {3 * 224}, 3, 175}, 192}}) {
    SCOPED_TRACE(c.shape.name);
    const RunRows run = product_case(c.shape).make();
    EmulatedProducts plain(0, false), widened(kWidened, false);
    const Outputs want = run(plain, 0, c.shape.rows);
    widened.set_widened_inputs(c.inputs);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(widened, 0, c.shape.rows), want, 0, c.shape.rows));
    EXPECT_TRUE(widened.fits());
  }
}

// The same of those that widen in registers: more items than blocks, fewer stages than a ring has, several segments and one that
// ends early.
TEST(MixedProducts, HaveTheBitsOfTheOthers) {
  struct Case {
    ProductShape shape;
    int inputs;
  };
  for (const Case& c : {Case{{"one_stage", 128, {12700}, 1, 70}, 48},
                        {{"outputs", 640, {640, 100, 263}, 1, 60}, 64},
                        {{"segments", 1152, {904}, 1, 45}, 48},
                        {{"whole_segment", 512, {700}, 1, 107}, 64},
                        {{"many", 256, {4224}, 1, 403}, 88},
                        {{"long", 1280, {200}, 1, 86}, 88},
                        {{"groups", 384, {5 * 160}, 5, 20}, 128},
                        {{"many_groups", 640, {3 * 224}, 3, 175}, 128}}) {
    SCOPED_TRACE(c.shape.name);
    const RunRows run = product_case(c.shape).make();
    EmulatedProducts plain(0, false), mixed(kMixed, false);
    const Outputs want = run(plain, 0, c.shape.rows);
    mixed.set_widened_inputs(c.inputs);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(mixed, 0, c.shape.rows), want, 0, c.shape.rows));
    EXPECT_TRUE(mixed.fits());
  }
}
TEST(MixedProducts, OfBf16HaveTheBitsOfTheOthers) {
  for (const ProductShape& shape : {ProductShape{"one_stage", 128, {40}, 1, 513},
                                    {"segments", 1152, {7}, 1, 530},
                                    {"router", 640, {384}, 1, 700},
                                    {"many", 256, {601}, 1, 1100},
                                    {"head", 256, {10300}, 1, 21},
                                    {"head_of_segments", 640, {10241}, 1, 33},
                                    {"head_of_few", 256, {10240}, 1, 3},
                                    {"head_of_many", 128, {10333}, 1, 150}}) {
    SCOPED_TRACE(shape.name);
    Random random(8);
    const int64_t out = shape.outs[0];
    const auto w = testing::bf16_weights(random, out * shape.in, 1.0f);
    const auto x = testing::activations(random, shape.rows, shape.in);
    const auto count = static_cast<size_t>(shape.rows * out);
    std::vector<float> want(count), got(count, -1.0f);
    std::vector<bf16> want_narrow(count), narrow(count, bf16{0x7fff});
    EmulatedProducts plain(0, false), mixed(kMixed, false);
    plain.linear_bf16_fp32(x.data(), shape.rows, {w.data(), out, shape.in}, want.data());
    plain.linear_bf16(x.data(), shape.rows, {w.data(), out, shape.in}, want_narrow.data());
    EXPECT_FALSE(plain.fits());
    mixed.linear_bf16_fp32(x.data(), shape.rows, {w.data(), out, shape.in}, got.data());
    mixed.linear_bf16(x.data(), shape.rows, {w.data(), out, shape.in}, narrow.data());
    EXPECT_TRUE(mixed.fits());
    EXPECT_EQ(std::memcmp(want.data(), got.data(), count * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(want_narrow.data(), narrow.data(), count * sizeof(bf16)), 0);
  }
}
TEST(MixedProducts, AreForWholeStages) {
  for (const ProductShape& shape : {ProductShape{"columns", 192, {1280}, 1, 40}, ProductShape{"parts", 128, {10 * 40}, 10, 30}}) {
    SCOPED_TRACE(shape.name);
    const RunRows run = product_case(shape).make();
    EmulatedProducts plain(0, false), mixed(kMixed, false);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(mixed, 0, shape.rows), run(plain, 0, shape.rows), 0, shape.rows));
    EXPECT_FALSE(mixed.fits());
  }
}

// Columns and parts that they do not take go the old way.
TEST(WidenedProducts, AreForWholeChunks) {
  for (const ProductShape& shape : {ProductShape{"columns", 96, {1280}, 1, 70}, ProductShape{"parts", 64, {10 * 40}, 10, 70}}) {
    SCOPED_TRACE(shape.name);
    const RunRows run = product_case(shape).make();
    EmulatedProducts plain(0, false), widened(kWidened, false);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(widened, 0, shape.rows), run(plain, 0, shape.rows), 0, shape.rows));
    EXPECT_FALSE(widened.fits());
  }
}

}  // namespace
}  // namespace deepinfer
