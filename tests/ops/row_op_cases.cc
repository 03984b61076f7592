// Operators that work row by row: streams, norms, rotation, packing, Engram.

#include <cmath>
#include <cstring>

#include "ops/op_inputs.h"

namespace deepinfer::testing {
namespace {

std::string shape(const char* op, std::initializer_list<int64_t> dims) { return fmt::format("{}_{}", op, fmt::join(dims, "_")); }

struct HyperDims {
  int64_t n, hidden;
};
const std::vector<HyperDims> kHyperDims = {{4, 64}, {4, 256}, {1, 32}, {2, 96}, {3, 160}, {8, 64}, {4, 5120}};
const std::vector<int64_t>& counts_of(int64_t width) { return width > 4096 ? kFewCounts : kManyCounts; }

OpCase embed_case(int64_t vocab, int64_t hidden, int64_t streams) {
  return {shape("embed", {vocab, hidden, streams}), kManyCounts, [=]() -> RunRows {
            Random random(1);
            const auto table = bf16_weights(random, vocab * hidden, 1.0f);
            std::vector<int32_t> ids(100);
            for (auto& id : ids) id = static_cast<int32_t>(random.below(vocab));
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> x(static_cast<size_t>(count * streams * hidden));
              b.embed({ids.data() + begin, static_cast<size_t>(count)}, {table.data(), vocab, hidden}, streams, x.data());
              return {output_of("x", Compare::kBits, x, streams * hidden)};
            };
          }};
}

OpCase hyper_mix_case(HyperDims d) {
  return {shape("hyper_mix", {d.n, d.hidden}), counts_of(d.n * d.hidden), [=]() -> RunRows {
            Random random(2);
            const int64_t width = d.n * d.hidden;
            const int64_t outputs = (2 + d.n) * d.n;
            const auto fn = floats(random, outputs * width, 1.0f / std::sqrt(static_cast<float>(width)));
            const auto base = floats(random, outputs, 1.0f);
            const std::vector<float> scale = {0.5f, 0.75f, 1.25f};
            const auto x = activations(random, counts_of(width).back(), width);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<float> pre(static_cast<size_t>(count * d.n)), post(pre.size()),
                  comb(pre.size() * static_cast<size_t>(d.n));
              const HyperMixWeights w{fn.data(), base.data(), scale.data(), d.n, d.hidden, 20, 1e-6f, 1e-20f};
              b.hyper_mix(w, x.data() + begin * width, count, pre.data(), post.data(), comb.data());
              return {output_of("pre", Compare::kFloat, pre, d.n), output_of("post", Compare::kFloat, post, d.n),
                      output_of("comb", Compare::kFloat, comb, d.n * d.n)};
            };
          }};
}

OpCase hyper_collapse_case(HyperDims d) {
  return {
      shape("hyper_collapse", {d.n, d.hidden}), counts_of(d.n * d.hidden), [=]() -> RunRows {
        Random random(3);
        const int64_t width = d.n * d.hidden;
        const int64_t rows = counts_of(width).back();
        const auto x = activations(random, rows, width);
        auto pre = floats(random, rows * d.n, 1.0f);
        for (int64_t s = 0; s < d.n; ++s) pre[static_cast<size_t>(s)] = s == 0 ? 1.0f : 0.0f;  // how a step starts
        return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
          std::vector<bf16> y(static_cast<size_t>(count * d.hidden));
          std::vector<bf16> mean(y.size());
          b.hyper_collapse(x.data() + begin * width, pre.data() + begin * d.n, count, d.n, d.hidden, y.data());
          b.stream_mean(x.data() + begin * width, count, d.n, d.hidden, mean.data());
          return {output_of("collapse", Compare::kBf16, y, d.hidden), output_of("stream_mean", Compare::kBf16, mean, d.hidden)};
        };
      }};
}

OpCase hyper_expand_case(HyperDims d) {
  return {shape("hyper_expand", {d.n, d.hidden}), counts_of(d.n * d.hidden), [=]() -> RunRows {
            Random random(4);
            const int64_t width = d.n * d.hidden;
            const int64_t rows = counts_of(width).back();
            const auto x = activations(random, rows, width);
            const auto o = activations(random, rows, d.hidden);
            const auto post = floats(random, rows * d.n, 1.0f);
            const auto comb = floats(random, rows * d.n * d.n, 0.5f);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> y(x.begin() + begin * width, x.begin() + (begin + count) * width);
              b.hyper_expand(o.data() + begin * d.hidden, post.data() + begin * d.n, comb.data() + begin * d.n * d.n, count, d.n,
                             d.hidden, y.data());
              return {output_of("x", Compare::kBf16, y, width)};
            };
          }};
}

OpCase rms_norm_case(int64_t dim, float eps, bool in_place) {
  return {shape(in_place ? "rms_norm_in_place" : "rms_norm", {dim}) + (eps < 1e-10f ? "" : "_eps"), counts_of(dim),
          [=]() -> RunRows {
            Random random(5);
            const auto x = activations(random, counts_of(dim).back(), dim);
            const auto w = bf16_weights(random, dim, 1.0f);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> in(x.begin() + begin * dim, x.begin() + (begin + count) * dim);
              std::vector<bf16> y(in.size());
              bf16* out = in_place ? in.data() : y.data();
              b.rms_norm(in.data(), w.data(), eps, count, dim, out);
              return {output_of("y", Compare::kBf16, in_place ? in : y, dim)};
            };
          }};
}

// Operators made of others: what a backend does in one go has to be what it does one after the other, to the bit.
template <typename T>
Output same_rows(const std::vector<T>& a, const std::vector<T>& b, int64_t count) {
  const size_t width = a.size() / static_cast<size_t>(count);
  std::vector<uint8_t> same(static_cast<size_t>(count));
  for (size_t r = 0; r < same.size(); ++r)
    same[r] = std::memcmp(a.data() + r * width, b.data() + r * width, width * sizeof(T)) == 0 ? 1 : 0;
  return output_of("same_as_one_by_one", Compare::kBits, same, 1);
}

OpCase hyper_collapse_norm_case(HyperDims d) {
  return {shape("hyper_collapse_norm", {d.n, d.hidden}), counts_of(d.n * d.hidden), [=]() -> RunRows {
            Random random(9);
            const int64_t width = d.n * d.hidden;
            const int64_t rows = counts_of(width).back();
            const auto x = activations(random, rows, width);
            const auto pre = floats(random, rows * d.n, 1.0f);
            const auto w = bf16_weights(random, d.hidden, 1.0f);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> y(static_cast<size_t>(count * d.hidden)), steps(y.size());
              b.hyper_collapse_norm(x.data() + begin * width, pre.data() + begin * d.n, count, d.n, d.hidden, w.data(), 1e-20f,
                                    y.data());
              b.hyper_collapse(x.data() + begin * width, pre.data() + begin * d.n, count, d.n, d.hidden, steps.data());
              b.rms_norm(steps.data(), w.data(), 1e-20f, count, d.hidden, steps.data());
              return {output_of("y", Compare::kBf16, y, d.hidden), same_rows(y, steps, count)};
            };
          }};
}

OpCase hyper_expand_collapse_norm_case(HyperDims d) {
  return {shape("hyper_expand_collapse_norm", {d.n, d.hidden}), counts_of(d.n * d.hidden), [=]() -> RunRows {
            Random random(11);
            const int64_t width = d.n * d.hidden;
            const int64_t rows = counts_of(width).back();
            const auto x = activations(random, rows, width);
            const auto o = activations(random, rows, d.hidden);
            const auto post = floats(random, rows * d.n, 1.0f);
            const auto comb = floats(random, rows * d.n * d.n, 0.5f);
            const auto pre = floats(random, rows * d.n, 1.0f);
            const auto w = bf16_weights(random, d.hidden, 1.0f);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> streams(x.begin() + begin * width, x.begin() + (begin + count) * width), apart = streams;
              std::vector<bf16> y(static_cast<size_t>(count * d.hidden)), steps(y.size());
              const auto at = [&](const std::vector<float>& v, int64_t each) { return v.data() + begin * each; };
              b.hyper_expand_collapse_norm(o.data() + begin * d.hidden, at(post, d.n), at(comb, d.n * d.n), at(pre, d.n), count,
                                           d.n, d.hidden, w.data(), 1e-20f, streams.data(), y.data());
              b.hyper_expand(o.data() + begin * d.hidden, at(post, d.n), at(comb, d.n * d.n), count, d.n, d.hidden, apart.data());
              b.hyper_collapse(apart.data(), at(pre, d.n), count, d.n, d.hidden, steps.data());
              b.rms_norm(steps.data(), w.data(), 1e-20f, count, d.hidden, steps.data());
              return {output_of("x", Compare::kBf16, streams, width), output_of("y", Compare::kBf16, y, d.hidden),
                      same_rows(streams, apart, count), same_rows(y, steps, count)};
            };
          }};
}

OpCase attention_latents_case(int64_t q_dim, int64_t kv_dim, int64_t pairs) {
  return {shape("attention_latents", {q_dim, kv_dim, pairs}), counts_of(q_dim), [=]() -> RunRows {
            Random random(10);
            const int64_t rows = counts_of(q_dim).back();
            const auto q = activations(random, rows, q_dim);
            const auto kv = activations(random, rows, kv_dim);
            const auto q_norm = bf16_weights(random, q_dim, 1.0f);
            const auto kv_norm = bf16_weights(random, kv_dim, 1.0f);
            std::vector<float> cosines, sines;
            for (int64_t i = 0; i < rows * pairs; ++i) {
              const double angle = random.uniform() * 1e6;
              cosines.push_back(static_cast<float>(std::cos(angle)));
              sines.push_back(static_cast<float>(std::sin(angle)));
            }
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              const RopeRows rotation{cosines.data() + begin * pairs, sines.data() + begin * pairs, pairs};
              std::vector<bf16> q_out(q.begin() + begin * q_dim, q.begin() + (begin + count) * q_dim);
              std::vector<bf16> kv_out(kv.begin() + begin * kv_dim, kv.begin() + (begin + count) * kv_dim);
              std::vector<bf16> q_steps = q_out, kv_steps = kv_out;
              std::vector<uint8_t> packed(static_cast<size_t>(count * (kv_dim + kv_dim / 32))), packed_steps(packed.size());
              b.attention_latents({.q = q_out.data(),
                                   .q_norm = q_norm.data(),
                                   .q_dim = q_dim,
                                   .kv = kv_out.data(),
                                   .kv_norm = kv_norm.data(),
                                   .kv_dim = kv_dim,
                                   .rotation = rotation,
                                   .packed = packed.data(),
                                   .eps = 1e-20f},
                                  count);
              b.rms_norm(q_steps.data(), q_norm.data(), 1e-20f, count, q_dim, q_steps.data());
              b.rms_norm(kv_steps.data(), kv_norm.data(), 1e-20f, count, kv_dim, kv_steps.data());
              b.rope(kv_steps.data(), rotation, count, 1, kv_dim, false);
              b.pack_window(kv_steps.data(), count, kv_dim, packed_steps.data());
              return {output_of("q", Compare::kBf16, q_out, q_dim), output_of("kv", Compare::kBf16, kv_out, kv_dim),
                      same_rows(q_out, q_steps, count), same_rows(kv_out, kv_steps, count),
                      same_rows(packed, packed_steps, count)};
            };
          }};
}

OpCase rope_case(int64_t heads, int64_t dim, int64_t pairs, bool inverse) {
  return {shape(inverse ? "rope_inverse" : "rope", {heads, dim, pairs}), counts_of(heads * dim), [=]() -> RunRows {
            Random random(6);
            const int64_t rows = counts_of(heads * dim).back();
            const auto x = activations(random, rows, heads * dim);
            std::vector<float> cosines, sines;
            for (int64_t i = 0; i < rows * pairs; ++i) {
              const double angle = random.uniform() * 1e6;
              cosines.push_back(static_cast<float>(std::cos(angle)));
              sines.push_back(static_cast<float>(std::sin(angle)));
            }
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> y(x.begin() + begin * heads * dim, x.begin() + (begin + count) * heads * dim);
              b.rope(y.data(), {cosines.data() + begin * pairs, sines.data() + begin * pairs, pairs}, count, heads, dim, inverse);
              return {output_of("x", Compare::kBf16, y, heads * dim)};
            };
          }};
}

// Every format of the caches, of equal inputs: exact, for each value is rounded on its own.
OpCase pack_case(int64_t dim) {
  return {shape("pack", {dim}), kManyCounts, [=]() -> RunRows {
            Random random(7);
            const auto x = activations(random, 100, dim);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              const int64_t window_bytes = dim + dim / 32;
              std::vector<uint8_t> window(static_cast<size_t>(count * window_bytes));
              b.pack_window(x.data() + begin * dim, count, dim, window.data());
              const auto paged = [&](const char* name, int64_t row_bytes, int64_t offset, auto pack) {
                constexpr int64_t kFirst = 5;  // rows of the cache before the first one
                PagedBuffer cache(kFirst + begin + count, 8, row_bytes, offset);
                std::vector<uint8_t*> to;
                for (int64_t r = 0; r < count; ++r) to.push_back(cache.rows.row(kFirst + begin + r));
                std::vector<bf16> rows(x.begin() + begin * dim, x.begin() + (begin + count) * dim);
                // A row that is left out comes between others.
                to.insert(to.begin() + count / 2, nullptr);
                rows.insert(rows.begin() + count / 2 * dim, static_cast<size_t>(dim), to_bf16(1.0f));
                pack(rows.data(), to);
                std::vector<uint8_t> got;
                for (int64_t r = 0; r < count; ++r)
                  got.insert(got.end(), cache.rows.row(kFirst + begin + r), cache.rows.row(kFirst + begin + r) + row_bytes);
                // Nothing beside the rows was written.
                for (int64_t r = 0; r < count; ++r)
                  std::memset(cache.rows.row(kFirst + begin + r), 0xA5, static_cast<size_t>(row_bytes));
                std::vector<uint8_t> clean = {
                    std::all_of(cache.bytes.begin(), cache.bytes.end(), [](uint8_t v) { return v == 0xA5; })};
                Outputs out;
                out.push_back(output_of(name, Compare::kBits, got, row_bytes));
                clean.resize(static_cast<size_t>(count), clean[0]);
                out.push_back(output_of(std::string(name) + " clean", Compare::kBits, clean, 1));
                return out;
              };
              Outputs outputs = {output_of("window", Compare::kBits, window, window_bytes)};
              for (auto& o : paged("compressed", dim / 2 + dim / 16, 40,
                                   [&](const bf16*v, const std::vector<uint8_t*>&to) { b.pack_compressed(v, dim, to); }))
                outputs.push_back(o);
              for (auto& o : paged("index_keys", dim / 2 + dim / 32, 0,
                                   [&](const bf16*v, const std::vector<uint8_t*>&to) { b.pack_index_keys(v, dim, to); }))
                outputs.push_back(o);
              std::vector<bf16> q(x.begin() + begin * dim, x.begin() + (begin + count) * dim);
              b.round_index_queries(q.data(), count, dim);
              outputs.push_back(output_of("index_queries", Compare::kBits, q, dim));
              std::vector<bf16> scaled(x.begin() + begin * dim, x.begin() + (begin + count) * dim);
              b.scale(scaled.data(), count * dim, 0.0110485434f);
              outputs.push_back(output_of("scaled", Compare::kBits, scaled, dim));
              return outputs;
            };
          }};
}

OpCase compress_pool_case(int64_t dim) {
  return {shape("compress_pool", {dim}), kManyCounts, [=]() -> RunRows {
            Random random(8);
            auto kv = floats(random, 200 * dim, 2.0f);
            auto gate = floats(random, 200 * dim, 3.0f);
            for (int64_t c = 0; c < dim; ++c) {
              gate[static_cast<size_t>(2 * dim + c)] = gate[static_cast<size_t>(3 * dim + c)];  // pair 1: equal gates
              gate[static_cast<size_t>(4 * dim + c)] = 200.0f;                                  // pair 2: the first alone
              gate[static_cast<size_t>(7 * dim + c)] = 90.0f;                                   // pair 3: nearly the second alone
            }
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<const float*> values, gates;
              for (int64_t i = 2 * begin; i < 2 * (begin + count); ++i) {
                values.push_back(kv.data() + i * dim);
                gates.push_back(gate.data() + i * dim);
              }
              std::vector<bf16> latent(static_cast<size_t>(count * dim));
              b.compress_pool(values, gates, dim, latent.data());
              return {output_of("latent", Compare::kBf16, latent, dim)};
            };
          }};
}

OpCase engram_gather_case(int64_t columns, int64_t dim) {
  return {shape("engram_gather", {columns, dim}), kManyCounts, [=]() -> RunRows {
            Random random(9);
            constexpr int64_t kRows = 500;
            std::vector<uint8_t> values(static_cast<size_t>(kRows * dim)), scales(static_cast<size_t>(kRows * dim / 32));
            fill_e4m3(random, values);
            for (uint8_t& s : scales) s = static_cast<uint8_t>(random.between(100, 140));
            std::vector<int64_t> ids(static_cast<size_t>(100 * columns));
            for (auto& id : ids) id = random.below(kRows);
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> e(static_cast<size_t>(count * columns * dim));
              b.engram_gather({values.data(), scales.data(), kRows, dim}, ids.data() + begin * columns, count, columns, e.data());
              return {output_of("e", Compare::kBits, e, columns * dim)};
            };
          }};
}

OpCase engram_gate_case(HyperDims d, bool with_images) {
  return {shape(with_images ? "engram_gate_images" : "engram_gate", {d.n, d.hidden}), counts_of(d.n * d.hidden),
          [=]() -> RunRows {
            Random random(10);
            const int64_t width = d.n * d.hidden;
            const int64_t rows = counts_of(width).back();
            const auto x = activations(random, rows, width);
            const auto kv = activations(random, rows, width + d.hidden, 0.5f);
            const auto qw = bf16_weights(random, width, 1.0f);
            const auto kw = bf16_weights(random, width, 1.0f);
            std::vector<uint8_t> image(static_cast<size_t>(rows));
            for (size_t r = 0; r < image.size(); ++r) image[r] = r % 3 == 1;
            return [=](Backend& b, int64_t begin, int64_t count) -> Outputs {
              std::vector<bf16> y(x.begin() + begin * width, x.begin() + (begin + count) * width);
              b.engram_gate(kv.data() + begin * (width + d.hidden), qw.data(), kw.data(),
                            with_images ? image.data() + begin : nullptr, 1e-20f, count, d.n, d.hidden, y.data());
              return {output_of("x", Compare::kBf16, y, width)};
            };
          }};
}

}  // namespace

std::vector<OpCase> row_op_cases() {
  std::vector<OpCase> cases = {embed_case(64, 64, 4), embed_case(7, 96, 1)};
  for (HyperDims d : kHyperDims) {
    cases.push_back(hyper_mix_case(d));
    cases.push_back(hyper_collapse_case(d));
    cases.push_back(hyper_collapse_norm_case(d));
    cases.push_back(hyper_expand_collapse_norm_case(d));
    cases.push_back(hyper_expand_case(d));
    cases.push_back(engram_gate_case(d, d.hidden % 64 == 0));
  }
  for (int64_t dim : {32, 64, 96, 128, 160, 512, 1280, 5120}) cases.push_back(rms_norm_case(dim, 1e-20f, dim % 64 == 0));
  cases.push_back(rms_norm_case(64, 1e-6f, false));
  cases.push_back(attention_latents_case(64, 32, 8));
  cases.push_back(attention_latents_case(32, 160, 16));
  cases.push_back(attention_latents_case(96, 1056, 16));
  cases.push_back(attention_latents_case(1280, 512, 32));
  for (bool inverse : {false, true}) {
    cases.push_back(rope_case(1, 64, 8, inverse));
    cases.push_back(rope_case(8, 64, 16, inverse));
    cases.push_back(rope_case(3, 32, 16, inverse));
    cases.push_back(rope_case(24, 128, 32, inverse));
    cases.push_back(rope_case(64, 512, 32, inverse));
  }
  for (int64_t dim : {32, 64, 96, 128, 512}) {
    cases.push_back(pack_case(dim));
    cases.push_back(compress_pool_case(dim));
  }
  cases.push_back(engram_gather_case(6, 32));
  cases.push_back(engram_gather_case(24, 256));
  return cases;
}

}  // namespace deepinfer::testing
