// Matrix products.

#include "ops/op_inputs.h"

namespace deepinfer::testing {
namespace {

struct MatrixDims {
  int64_t in;
  std::vector<int64_t> outs;
  std::vector<int64_t> counts = {};  ///< empty: by the number of columns
};
// Columns: the least, odd multiples of 32, above one stretch of decoded weights (2048). Rows of weights: not multiples of 4,
// 16, 32 or 64, and more than one chunk.
const std::vector<MatrixDims> kDims = {{32, {1, 5}},    {64, {33, 64}},  {96, {100, 7}},  {128, {130}},
                                       {160, {17, 96}}, {256, {96, 64}}, {2304, {3, 66}}, {5120, {130, 40}}};
const std::vector<int64_t>& counts_of(int64_t in) { return in > 1024 ? kFewCounts : kManyCounts; }
const std::vector<int64_t>& counts_of(const MatrixDims& d) { return d.counts.empty() ? counts_of(d.in) : d.counts; }
// As many rows as make a device use other kernels.
const std::vector<int64_t> kProductCounts = {1, 30, 49, 100, 290};

// Small integers: every order of summation gives the same result, so the outputs must be the reference's.
std::vector<bf16> integers(Random& random, int64_t count) {
  std::vector<bf16> x(static_cast<size_t>(count));
  for (bf16& v : x) v = to_bf16(static_cast<float>(random.between(-7, 7)));
  return x;
}

Fp8Matrix integer_matrix(Random& random, int64_t out, int64_t in) {
  Fp8Matrix w(random, out, in);
  for (uint8_t& v : w.values) v = float_to_e4m3(static_cast<float>(random.between(-8, 8)));
  for (uint8_t& s : w.scales) s = static_cast<uint8_t>(random.between(126, 128));
  return w;
}

std::string name_of(const char* op, const MatrixDims& d, bool exact) {
  return fmt::format("{}{}_{}_{}", op, exact ? "_exact" : "", d.in, fmt::join(d.outs, "_"));
}

OpCase linear_fp8_case(const MatrixDims& d, bool exact) {
  return {name_of("linear_fp8", d, exact), counts_of(d), [=]() -> RunRows {
            Random random(20);
            std::vector<Fp8Matrix> weights;
            for (int64_t out : d.outs)
              weights.push_back(exact ? integer_matrix(random, out, d.in) : Fp8Matrix(random, out, d.in));
            const int64_t rows = counts_of(d).back();
            const auto x = exact ? integers(random, rows * d.in) : activations(random, rows, d.in);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<std::vector<bf16>> y;
              std::vector<LinearOutput> outputs;
              for (const Fp8Matrix& w : weights) y.emplace_back(static_cast<size_t>(count * w.out));
              for (size_t i = 0; i < weights.size(); ++i) outputs.push_back({weights[i].view(), y[i].data()});
              b.linear_fp8(x.data() + begin * d.in, count, outputs);
              Outputs result;
              for (size_t i = 0; i < weights.size(); ++i) {
                result.push_back(output_of(fmt::format("y{}", i), exact ? Compare::kBits : Compare::kBf16, y[i], weights[i].out));
              }
              return result;
            };
          }};
}

OpCase linear_bf16_case(const MatrixDims& d, bool exact) {
  return {name_of("linear_bf16", d, exact), counts_of(d), [=]() -> RunRows {
            Random random(21);
            const int64_t out = d.outs[0];
            const auto w = exact ? integers(random, out * d.in)
                                 : bf16_weights(random, out * d.in, 1.0f / std::sqrt(static_cast<float>(d.in)));
            const int64_t rows = counts_of(d).back();
            const auto x = exact ? integers(random, rows * d.in) : activations(random, rows, d.in);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> y(static_cast<size_t>(count * out));
              std::vector<float> z(y.size());
              b.linear_bf16(x.data() + begin * d.in, count, {w.data(), out, d.in}, y.data());
              b.linear_bf16_fp32(x.data() + begin * d.in, count, {w.data(), out, d.in}, z.data());
              return {output_of("bf16", exact ? Compare::kBits : Compare::kBf16, y, out),
                      output_of("fp32", exact ? Compare::kBits : Compare::kFloat, z, out)};
            };
          }};
}

OpCase output_lora_case(int64_t groups, int64_t in, int64_t lora, bool exact, const std::vector<int64_t>& counts = {}) {
  const std::vector<int64_t> used = counts.empty() ? counts_of(in) : counts;
  return {fmt::format("output_lora{}_{}x{}x{}", exact ? "_exact" : "", groups, in, lora), used, [=]() -> RunRows {
            Random random(22);
            const Fp8Matrix w = exact ? integer_matrix(random, groups * lora, in) : Fp8Matrix(random, groups * lora, in);
            const int64_t rows = used.back();
            const auto o = exact ? integers(random, rows * groups * in) : activations(random, rows, groups * in);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> y(static_cast<size_t>(count * groups * lora));
              b.output_lora(o.data() + begin * groups * in, count, w.view(), groups, y.data());
              return {output_of("y", exact ? Compare::kBits : Compare::kBf16, y, groups * lora)};
            };
          }};
}

// The Markov chain and the confidences of a draft block; `rank` + `hidden` is not a multiple of what a product takes at a time.
OpCase draft_head_case(int64_t hidden, int64_t rank, int64_t vocab, bool exact) {
  return {fmt::format("draft_head{}_{}_{}x{}", exact ? "_exact" : "", hidden, rank, vocab), counts_of(hidden), [=]() -> RunRows {
            Random random(23);
            const auto weights = [&](int64_t count, int64_t in) {
              return exact ? integers(random, count) : bf16_weights(random, count, 1.0f / std::sqrt(static_cast<float>(in)));
            };
            const auto embed = exact ? integers(random, vocab * rank) : activations(random, vocab, rank);
            const auto head = weights(vocab * rank, rank);
            const auto proj = weights(hidden + rank, hidden + rank);
            const int64_t rows = counts_of(hidden).back();
            const int64_t stride = 3 * vocab;  // logits of other draft positions lie between
            std::vector<float> base(static_cast<size_t>(rows * stride));
            for (float& v : base) v = exact ? static_cast<float>(random.between(-100, 100)) : random.normal();
            const auto x = exact ? integers(random, rows * hidden) : activations(random, rows, hidden);
            std::vector<int32_t> previous(static_cast<size_t>(rows));
            for (int32_t& id : previous) id = static_cast<int32_t>(random.below(vocab));
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<float> logits(static_cast<size_t>(count * vocab));
              std::vector<float> confidences(static_cast<size_t>(count));
              b.markov_logits({.embed = {embed.data(), vocab, rank},
                               .head = {head.data(), vocab, rank},
                               .previous = previous.data() + begin,
                               .rows = count,
                               .base = base.data() + begin * stride,
                               .base_stride = stride,
                               .logits = logits.data()});
              b.draft_confidence({.x = x.data() + begin * hidden,
                                  .embed = {embed.data(), vocab, rank},
                                  .previous = previous.data() + begin,
                                  .rows = count,
                                  .proj = {proj.data(), 1, hidden + rank},
                                  .confidences = confidences.data()});
              return {output_of("logits", exact ? Compare::kBits : Compare::kFloat, logits, vocab),
                      output_of("confidences", exact ? Compare::kBits : Compare::kFloat, confidences, 1)};
            };
          }};
}

}  // namespace

std::vector<OpCase> matrix_op_cases() {
  std::vector<OpCase> cases;
  for (const MatrixDims& d : kDims) {
    for (bool exact : {false, true}) {
      cases.push_back(linear_fp8_case(d, exact));
      cases.push_back(linear_bf16_case(d, exact));
    }
  }
  for (bool exact : {false, true}) {
    cases.push_back(output_lora_case(2, 256, 64, exact));
    cases.push_back(output_lora_case(2, 64, 16, exact));  // a group starts in the middle of a tile of scales
    cases.push_back(output_lora_case(1, 32, 48, exact));
    cases.push_back(output_lora_case(8, 4096, 24, exact));
    cases.push_back(draft_head_case(64, 32, 131, exact));
    cases.push_back(draft_head_case(5120, 256, 300, exact));
  }
  return cases;
}

std::vector<OpCase> large_matrix_op_cases() {
  const MatrixDims query_and_window{5120, {1280, 512}};
  const MatrixDims heads{1280, {32768}};
  const MatrixDims wide{8192, {5120}};
  const MatrixDims gate{5120, {384}};
  return {linear_fp8_case(query_and_window, false),
          linear_fp8_case(heads, false),
          linear_fp8_case(wide, false),
          linear_fp8_case(wide, true),
          linear_fp8_case({1312, {4096, 2500}, kProductCounts}, false),
          linear_fp8_case({1280, {4096, 2500}, kProductCounts}, false),
          linear_fp8_case({5120, {7000}, kProductCounts}, false),
          linear_fp8_case({320, {16400}, kProductCounts}, true),
          linear_bf16_case(gate, false),
          linear_bf16_case({5120, {1700}}, false),
          linear_bf16_case({1152, {384}, {1, 100, 512, 650}}, false),
          output_lora_case(8, 4096, 1024, false),
          output_lora_case(8, 1056, 600, false, kProductCounts),
          output_lora_case(8, 1152, 608, false, kProductCounts)};
}

}  // namespace deepinfer::testing
