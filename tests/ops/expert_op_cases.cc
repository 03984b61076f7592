// Router and experts.

#include <algorithm>

#include "ops/op_inputs.h"

namespace deepinfer::testing {
namespace {

struct RouteDims {
  int64_t experts, hidden, topk;
  bool images = false;
  bool normalize = true;
  float temperature = 1.0f;
  bool ties = false;  ///< experts come in equal pairs
};

OpCase route_case(const RouteDims& d) {
  const std::string name = fmt::format("route_{}x{}_top{}{}{}{}{}", d.experts, d.hidden, d.topk, d.images ? "_images" : "",
                                       d.normalize ? "" : "_plain", d.temperature == 1.0f ? "" : "_warm", d.ties ? "_ties" : "");
  return {name, d.hidden > 1024 ? kFewCounts : kManyCounts, [=]() -> RunRows {
            Random random(40);
            const int64_t rows = (d.hidden > 1024 ? kFewCounts : kManyCounts).back();
            const auto v = activations(random, rows, d.hidden);
            auto gate = bf16_weights(random, d.experts * d.hidden, 1.5f / std::sqrt(static_cast<float>(d.hidden)));
            auto bias = floats(random, d.experts, 0.1f);
            auto bias_vl = floats(random, d.experts, 1.0f);
            for (int64_t e = 0; d.ties && e + 1 < d.experts; e += 2) {
              std::copy_n(gate.begin() + e * d.hidden, d.hidden, gate.begin() + (e + 1) * d.hidden);
              bias[static_cast<size_t>(e + 1)] = bias[static_cast<size_t>(e)];
              bias_vl[static_cast<size_t>(e + 1)] = bias_vl[static_cast<size_t>(e)];
            }
            std::vector<uint8_t> image(static_cast<size_t>(rows));
            for (size_t r = 0; r < image.size(); ++r) image[r] = r % 3 == 1;
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<int32_t> experts(static_cast<size_t>(count * d.topk));
              std::vector<float> weights(experts.size());
              // All rows but the last are counted, on top of what is there.
              std::vector<int64_t> counts(static_cast<size_t>(d.experts), 3), want = counts;
              const auto counted = static_cast<int32_t>(count - 1);
              b.route({.v = v.data() + begin * d.hidden,
                       .gate = {gate.data(), d.experts, d.hidden},
                       .bias = bias.data(),
                       .bias_vl = bias_vl.data(),
                       .image = d.images ? image.data() + begin : nullptr,
                       .topk = d.topk,
                       .normalize = d.normalize,
                       .scale = 1.5f,
                       .temperature = d.temperature,
                       .experts = experts.data(),
                       .weights = weights.data(),
                       .counts = counts.data(),
                       .counted = &counted},
                      count);
              for (int64_t i = 0; i < counted * d.topk; ++i) ++want[static_cast<size_t>(experts[static_cast<size_t>(i)])];
              const std::vector<uint8_t> counted_right(static_cast<size_t>(count), counts == want ? 1 : 0);
              return {output_of("experts", Compare::kBits, experts, d.topk),
                      output_of("weights", Compare::kFloat, weights, d.topk),
                      output_of("counted", Compare::kBits, counted_right, 1)};
            };
          }};
}

struct ExpertDims {
  int64_t hidden, inner, experts, topk;
  float limit = 10.0f;
  float scale = 1.0f;         ///< of the inputs
  bool large_scales = false;  ///< some scales of weights need two factors of bf16
  std::vector<int64_t> counts;
};

OpCase experts_case(const ExpertDims& d) {
  const std::string name =
      fmt::format("experts_{}x{}_top{}_of{}{}{}{}", d.hidden, d.inner, d.topk, d.experts, d.limit > 0 ? "" : "_unclamped",
                  d.scale == 1.0f ? "" : "_large", d.large_scales ? "_large_scales" : "");
  return {name, d.counts, [=]() -> RunRows {
            struct Inputs {
              std::vector<Fp4Matrix> w1, w2, w3;
              Fp8Matrix shared1, shared2, shared3;
              std::vector<ExpertWeights> routed;
              std::vector<bf16> v;
              std::vector<int32_t> experts;
              std::vector<float> weights;
            };
            Random random(41);
            auto in = std::make_shared<Inputs>();
            for (int64_t e = 0; e < d.experts; ++e) {
              in->w1.emplace_back(random, d.inner, d.hidden);
              in->w3.emplace_back(random, d.inner, d.hidden);
              in->w2.emplace_back(random, d.hidden, d.inner);
              for (auto* m : {&in->w1.back(), &in->w2.back(), &in->w3.back()}) {
                for (size_t i = static_cast<size_t>(e) * 71; d.large_scales && i < m->scales.size(); i += 2003)
                  m->scales[i] = static_cast<uint8_t>(134 - i % 8);
              }
            }
            for (size_t e = 0; e < in->w1.size(); ++e)
              in->routed.push_back({in->w1[e].view(), in->w2[e].view(), in->w3[e].view()});
            in->shared1 = Fp8Matrix(random, d.inner, d.hidden);
            in->shared3 = Fp8Matrix(random, d.inner, d.hidden);
            in->shared2 = Fp8Matrix(random, d.hidden, d.inner);
            const int64_t rows = d.counts.back();
            in->v = activations(random, rows, d.hidden, d.scale);
            for (int64_t r = 0; r < rows; ++r) {
              // Distinct, in no order; the last expert only for the last row, the first for most.
              std::vector<int32_t> ids;
              if (r + 1 == rows) ids.push_back(static_cast<int32_t>(d.experts - 1));
              while (static_cast<int64_t>(ids.size()) < d.topk) {
                const auto e =
                    static_cast<int32_t>(random.below(3) != 0 ? random.below(std::max<int64_t>(d.topk, d.experts / 2)) : 0);
                if (std::find(ids.begin(), ids.end(), e) == ids.end()) ids.push_back(e);
              }
              for (int32_t e : ids) {
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
                         .swiglu_limit = d.limit,
                         .y = y.data()},
                        count);
              return {output_of("y", Compare::kInnerQuantiser, y, d.hidden)};
            };
          }};
}

}  // namespace

std::vector<OpCase> expert_op_cases() {
  return {
      route_case({.experts = 16, .hidden = 256, .topk = 2}),
      route_case({.experts = 16, .hidden = 256, .topk = 2, .images = true}),
      route_case({.experts = 4, .hidden = 64, .topk = 2, .images = true, .ties = true}),
      route_case({.experts = 5, .hidden = 32, .topk = 1, .normalize = true}),
      route_case({.experts = 5, .hidden = 96, .topk = 5, .normalize = false, .temperature = 0.7f}),
      route_case({.experts = 300, .hidden = 160, .topk = 6, .images = true, .ties = true}),
      route_case({.experts = 384, .hidden = 5120, .topk = 6, .images = true}),
      experts_case({.hidden = 256, .inner = 128, .experts = 16, .topk = 2, .counts = kManyCounts}),
      experts_case({.hidden = 256, .inner = 128, .experts = 16, .topk = 2, .scale = 40.0f, .counts = kManyCounts}),
      experts_case({.hidden = 64, .inner = 32, .experts = 4, .topk = 2, .counts = kManyCounts}),
      experts_case({.hidden = 32, .inner = 160, .experts = 3, .topk = 3, .limit = 0.0f, .counts = kManyCounts}),
      experts_case({.hidden = 96, .inner = 32, .experts = 300, .topk = 6, .counts = kManyCounts}),
      experts_case({.hidden = 160, .inner = 2304, .experts = 3, .topk = 1, .counts = {1, 9, 13}}),
      experts_case({.hidden = 5120, .inner = 96, .experts = 6, .topk = 4, .counts = {1, 2, 10}}),
  };
}

std::vector<OpCase> all_op_cases() {
  std::vector<OpCase> cases;
  for (auto& part : {row_op_cases(), matrix_op_cases(), attention_op_cases(), expert_op_cases()})
    cases.insert(cases.end(), part.begin(), part.end());
  return cases;
}

std::vector<OpCase> large_expert_op_cases() {
  return {
      experts_case({.hidden = 5120, .inner = 2304, .experts = 4, .topk = 2, .counts = {1, 2, 8, 9, 40}}),
      experts_case({.hidden = 5120, .inner = 576, .experts = 8, .topk = 6, .counts = {1, 3, 17}}),
      experts_case({.hidden = 5120, .inner = 288, .experts = 8, .topk = 6, .counts = {1, 3, 17}}),
      experts_case({.hidden = 256, .inner = 128, .experts = 16, .topk = 2, .counts = {1, 33, 65, 300}}),
      experts_case({.hidden = 1120, .inner = 288, .experts = 12, .topk = 4, .counts = {1, 20, 100, 310}}),
      experts_case({.hidden = 1120, .inner = 288, .experts = 12, .topk = 4, .scale = 40.0f, .counts = {1, 290}}),
      experts_case({.hidden = 640, .inner = 2304, .experts = 6, .topk = 3, .counts = {1, 20, 77, 270}}),
      // Enough panels for the kernel of few tokens from one on.
      experts_case({.hidden = 5120, .inner = 2304, .experts = 6, .topk = 6, .counts = {1, 2, 8}}),
      experts_case({.hidden = 672, .inner = 2336, .experts = 7, .topk = 6, .scale = 40.0f, .counts = {1, 7, 9, 17}}),
      // Enough experts for the kernels of many tiles on a GPU, with every size of a tile.
      experts_case({.hidden = 320, .inner = 1152, .experts = 32, .topk = 4, .counts = {1, 20, 77, 300, 500, 1000}}),
      experts_case({.hidden = 288, .inner = 1152, .experts = 100, .topk = 6, .counts = {5, 20, 150}}),
      experts_case({.hidden = 1184, .inner = 2304, .experts = 26, .topk = 6, .scale = 40.0f, .counts = {5, 9, 30}}),
      experts_case({.hidden = 1088, .inner = 288, .experts = 100, .topk = 6, .scale = 40.0f, .counts = {5, 90, 600}}),
      // And of widths that weights are widened into shared memory of: tiles of up to 32, 48, 64, 96, 128 and 160, and several.
      experts_case({.hidden = 384, .inner = 1152, .experts = 32, .topk = 4, .counts = {150, 250, 330, 500, 800, 1100, 1500}}),
      experts_case({.hidden = 640, .inner = 1152, .experts = 32, .topk = 4, .scale = 40.0f, .counts = {190, 900}}),
      experts_case({.hidden = 640, .inner = 1152, .experts = 32, .topk = 4, .large_scales = true, .counts = {60, 200, 700}}),
  };
}

std::vector<OpCase> large_op_cases() {
  std::vector<OpCase> cases;
  for (auto& part : {large_matrix_op_cases(), large_attention_op_cases(), large_expert_op_cases()}) {
    for (OpCase c : part) {
      c.name = "large_" + c.name;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

}  // namespace deepinfer::testing
