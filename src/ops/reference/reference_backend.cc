#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "ops/candidates.h"
#include "ops/numerics.h"
#include "ops/ops.h"
#include "ops/reference/reference_linear.h"
#include "ops/top_k.h"

namespace deepinfer {
namespace {

using reference::gather_inputs;
using reference::Inputs;
using reference::make_inputs;

constexpr int64_t kRowsPerChunk = 32;   // of weights, in products
constexpr int64_t kAttentionTile = 64;  // list entries whose probabilities are relative to the same score (spec 3.10)

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

double product(bf16 a, bf16 b) { return static_cast<double>(to_float(a)) * static_cast<double>(to_float(b)); }

float rsqrt_mean(double square_sum, int64_t count, float eps) {
  return 1.0f / std::sqrt(static_cast<float>(square_sum) / static_cast<float>(count) + eps);
}

float silu(float x) { return x / (1.0f + std::exp(-x)); }

// spec §4 step 5; a and b come from bf16.
float swiglu(float a, float b, float limit) {
  if (limit > 0) {
    b = std::clamp(b, -limit, limit);
    a = std::min(a, limit);
  }
  return silu(a) * b;
}

void unpack_compressed(const uint8_t* row, int64_t dim, float* x) {
  for (int64_t i = 0; i < dim; ++i) {
    const uint8_t code = static_cast<uint8_t>((i & 1) != 0 ? row[i / 2] >> 4 : row[i / 2] & 15);
    x[i] = e2m1_to_float(code) * e4m3_to_float(row[dim / 2 + i / kCacheScaleGroup]);
  }
}

void unpack_index_key(const uint8_t* row, int64_t dim, float* x) {
  for (int64_t i = 0; i < dim; ++i) {
    const uint8_t code = static_cast<uint8_t>((i & 1) != 0 ? row[i / 2] >> 4 : row[i / 2] & 15);
    x[i] = e2m1_to_float(code) * e8m0_to_float(row[dim / 2 + i / kScaleGroup]);
  }
}

void unpack_window(const uint8_t* row, int64_t dim, float* x) {
  for (int64_t i = 0; i < dim; ++i) x[i] = e4m3_to_float(row[i]) * e8m0_to_float(row[dim + i / kScaleGroup]);
}

// Codes of one row in groups, with the group's scale byte from `scale_of(amax)` and its value from `value_of(byte)`.
template <typename ScaleOf, typename ValueOf>
void pack_fp4(const bf16* x, int64_t dim, int64_t group, ScaleOf scale_of, ValueOf value_of, uint8_t* row) {
  std::memset(row, 0, static_cast<size_t>(dim / 2));
  for (int64_t g = 0; g < dim / group; ++g) {
    float amax = 0;
    for (int64_t i = g * group; i < (g + 1) * group; ++i) amax = std::max(amax, std::fabs(to_float(x[i])));
    const uint8_t byte = scale_of(amax);
    const float scale = value_of(byte);
    row[dim / 2 + g] = byte;
    for (int64_t i = g * group; i < (g + 1) * group; ++i) {
      const uint8_t code = float_to_e2m1(to_float(x[i]) / scale);
      row[i / 2] = static_cast<uint8_t>(row[i / 2] | ((i & 1) != 0 ? code << 4 : code));
    }
  }
}

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(ThreadPool* pool) : pool_(pool) {}

  std::string name() const override { return "reference"; }
  std::string numerics() const override { return fmt::format("reference {}", kReferenceNumerics); }
  std::vector<KernelChoice> kernels() const override { return {{"all", "plain loops, sums in double"}}; }

  void embed(std::span<const int32_t> ids, const Bf16Weight& table, int64_t streams, bf16* x) override {
    for (size_t r = 0; r < ids.size(); ++r) {
      for (int64_t s = 0; s < streams; ++s) {
        std::copy_n(table.values + ids[r] * table.in, table.in, x + (static_cast<int64_t>(r) * streams + s) * table.in);
      }
    }
  }

  void hyper_mix(const HyperMixWeights& w, const bf16* x, int64_t rows, float* pre, float* post, float* comb) override {
    const int64_t n = w.n;
    const int64_t width = n * w.hidden;
    pool_->run(rows, [&](int64_t r, int) {
      const bf16* v = x + r * width;
      double square = 0;
      for (int64_t i = 0; i < width; ++i) square += product(v[i], v[i]);
      const float scale = rsqrt_mean(square, width, w.rms_eps);
      std::vector<float> m(static_cast<size_t>((2 + n) * n));
      for (size_t o = 0; o < m.size(); ++o) {
        const float* fn = w.fn + static_cast<int64_t>(o) * width;
        double sum = 0;
        for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(fn[i]) * static_cast<double>(to_float(v[i]));
        m[o] = static_cast<float>(sum) * scale;
      }
      for (int64_t i = 0; i < n; ++i) {
        pre[r * n + i] = sigmoid(m[static_cast<size_t>(i)] * w.scale[0] + w.base[i]) + w.eps;
        post[r * n + i] = 2.0f * sigmoid(m[static_cast<size_t>(n + i)] * w.scale[1] + w.base[n + i]);
      }
      float* c = comb + r * n * n;
      for (int64_t i = 0; i < n * n; ++i) c[i] = m[static_cast<size_t>(2 * n + i)] * w.scale[2] + w.base[2 * n + i];
      sinkhorn(c, n, w.sinkhorn_iters, w.eps);
    });
  }

  void hyper_collapse(const bf16* x, const float* pre, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < hidden; ++d) {
        float sum = 0;
        for (int64_t s = 0; s < n; ++s) sum += pre[r * n + s] * to_float(x[(r * n + s) * hidden + d]);
        y[r * hidden + d] = to_bf16(sum);
      }
    }
  }

  void hyper_expand(const bf16* o, const float* post, const float* comb, int64_t rows, int64_t n, int64_t hidden,
                    bf16* x) override {
    std::vector<float> mixed(static_cast<size_t>(n));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < hidden; ++d) {
        for (int64_t j = 0; j < n; ++j) {
          float sum = 0;
          for (int64_t i = 0; i < n; ++i) sum += comb[(r * n + i) * n + j] * to_float(x[(r * n + i) * hidden + d]);
          mixed[static_cast<size_t>(j)] = post[r * n + j] * to_float(o[r * hidden + d]) + sum;
        }
        for (int64_t j = 0; j < n; ++j) x[(r * n + j) * hidden + d] = to_bf16(mixed[static_cast<size_t>(j)]);
      }
    }
  }

  void stream_mean(const bf16* x, int64_t rows, int64_t n, int64_t hidden, bf16* y) override {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < hidden; ++d) {
        float sum = 0;
        for (int64_t s = 0; s < n; ++s) sum += to_float(x[(r * n + s) * hidden + d]);
        y[r * hidden + d] = to_bf16(sum / static_cast<float>(n));
      }
    }
  }

  void rms_norm(const bf16* x, const bf16* w, float eps, int64_t rows, int64_t dim, bf16* y) override {
    for (int64_t r = 0; r < rows; ++r) {
      double square = 0;
      for (int64_t i = 0; i < dim; ++i) square += product(x[r * dim + i], x[r * dim + i]);
      const float scale = rsqrt_mean(square, dim, eps);
      for (int64_t i = 0; i < dim; ++i) y[r * dim + i] = to_bf16(to_float(w[i]) * (to_float(x[r * dim + i]) * scale));
    }
  }

  void linear_fp8(const bf16* x, int64_t rows, std::span<const LinearOutput> outputs) override {
    if (outputs.empty() || rows == 0) return;
    const Inputs in = make_inputs(x, rows, outputs[0].weight.in, outputs[0].weight.in, true);
    for (const LinearOutput& output : outputs) {
      DI_CHECK(output.weight.in == in.k, "inputs of {} and {} columns", output.weight.in, in.k);
      products(
          output.weight.out, rows, [&](int64_t begin, int64_t end, float* y) { multiply_fp8(output.weight, in, begin, end, y); },
          [&](int64_t o, int64_t r, float v) { output.y[r * output.weight.out + o] = to_bf16(v); });
    }
  }

  void linear_bf16(const bf16* x, int64_t rows, const Bf16Weight& w, bf16* y) override {
    const Inputs in = make_inputs(x, rows, w.in, w.in, false);
    products(
        w.out, rows, [&](int64_t begin, int64_t end, float* p) { multiply_bf16(w, in, begin, end, p); },
        [&](int64_t o, int64_t r, float v) { y[r * w.out + o] = to_bf16(v); });
  }

  void linear_bf16_fp32(const bf16* x, int64_t rows, const Bf16Weight& w, float* y) override {
    const Inputs in = make_inputs(x, rows, w.in, w.in, false);
    products(
        w.out, rows, [&](int64_t begin, int64_t end, float* p) { multiply_bf16(w, in, begin, end, p); },
        [&](int64_t o, int64_t r, float v) { y[r * w.out + o] = v; });
  }

  void markov_logits(const MarkovArgs& args) override {
    const int64_t rows = args.rows;
    std::vector<bf16> e(static_cast<size_t>(rows * args.embed.in));
    embed({args.previous, static_cast<size_t>(rows)}, args.embed, 1, e.data());
    linear_bf16_fp32(e.data(), rows, args.head, args.logits);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t v = 0; v < args.head.out; ++v) args.logits[r * args.head.out + v] += args.base[r * args.base_stride + v];
    }
  }

  void draft_confidence(const ConfidenceArgs& args) override {
    const int64_t rank = args.embed.in;
    const int64_t hidden = args.proj.in - rank;
    for (int64_t r = 0; r < args.rows; ++r) {
      double sum = 0;
      const bf16* x = args.x + r * hidden;
      const bf16* e = args.embed.values + args.previous[r] * rank;
      for (int64_t i = 0; i < hidden; ++i) sum += product(x[i], args.proj.values[i]);
      for (int64_t i = 0; i < rank; ++i) sum += product(e[i], args.proj.values[hidden + i]);
      args.confidences[r] = static_cast<float>(sum);
    }
  }

  void output_lora(const bf16* o, int64_t rows, const Fp8Weight& wo_a, int64_t groups, bf16* y) override {
    const int64_t lora = wo_a.out / groups;
    for (int64_t g = 0; g < groups; ++g) {
      const Inputs in = make_inputs(o + g * wo_a.in, rows, wo_a.in, groups * wo_a.in, false);
      products(
          lora, rows, [&](int64_t begin, int64_t end, float* p) { multiply_fp8(wo_a, in, g * lora + begin, g * lora + end, p); },
          [&](int64_t i, int64_t r, float v) { y[r * wo_a.out + g * lora + i] = to_bf16(v); });
    }
  }

  void rope(bf16* x, const RopeRows& rotation, int64_t rows, int64_t heads, int64_t dim, bool inverse) override {
    for (int64_t r = 0; r < rows; ++r) {
      const float* cos = rotation.cos + r * rotation.pairs;
      const float* sin = rotation.sin + r * rotation.pairs;
      for (int64_t h = 0; h < heads; ++h) {
        bf16* tail = x + (r * heads + h) * dim + dim - 2 * rotation.pairs;
        for (int64_t k = 0; k < rotation.pairs; ++k) {
          const float a = to_float(tail[2 * k]);
          const float b = to_float(tail[2 * k + 1]);
          const float s = inverse ? -sin[k] : sin[k];
          tail[2 * k] = to_bf16(a * cos[k] - b * s);
          tail[2 * k + 1] = to_bf16(a * s + b * cos[k]);
        }
      }
    }
  }

  void pack_window(const bf16* x, int64_t rows, int64_t dim, uint8_t* packed) override {
    const int64_t bytes = dim + dim / kScaleGroup;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; g < dim / kScaleGroup; ++g) {
        const bf16* v = x + r * dim + g * kScaleGroup;
        float amax = 0;
        for (int64_t i = 0; i < kScaleGroup; ++i) amax = std::max(amax, std::fabs(to_float(v[i])));
        const uint8_t byte = fp8_group_scale(amax);
        packed[r * bytes + dim + g] = byte;
        for (int64_t i = 0; i < kScaleGroup; ++i)
          packed[r * bytes + g * kScaleGroup + i] = float_to_e4m3(to_float(v[i]) / e8m0_to_float(byte));
      }
    }
  }

  void pack_compressed(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override {
    for (uint8_t* row : to) {
      if (row != nullptr) pack_fp4(x, dim, kCacheScaleGroup, fp4_cache_scale, e4m3_to_float, row);
      x += dim;
    }
  }

  void pack_index_keys(const bf16* x, int64_t dim, std::span<uint8_t* const> to) override {
    for (uint8_t* row : to) {
      if (row != nullptr) pack_fp4(x, dim, kScaleGroup, fp4_index_scale, e8m0_to_float, row);
      x += dim;
    }
  }

  void round_index_queries(bf16* x, int64_t rows, int64_t dim) override {
    std::vector<uint8_t> packed(static_cast<size_t>(dim / 2 + dim / kScaleGroup));
    std::vector<float> values(static_cast<size_t>(dim));
    for (int64_t r = 0; r < rows; ++r) {
      pack_fp4(x + r * dim, dim, kScaleGroup, fp4_index_scale, e8m0_to_float, packed.data());
      unpack_index_key(packed.data(), dim, values.data());
      for (int64_t i = 0; i < dim; ++i) x[r * dim + i] = to_bf16(values[static_cast<size_t>(i)]);
    }
  }

  void scale(bf16* x, int64_t count, float factor) override {
    for (int64_t i = 0; i < count; ++i) x[i] = to_bf16(to_float(x[i]) * factor);
  }

  void compress_pool(std::span<const float* const> kv, std::span<const float* const> gate, int64_t dim, bf16* latent) override {
    for (size_t g = 0; g < kv.size() / 2; ++g) {
      for (int64_t c = 0; c < dim; ++c) {
        const float g0 = gate[2 * g][c];
        const float g1 = gate[2 * g + 1][c];
        const float top = std::max(g0, g1);
        const float e0 = std::exp(g0 - top);
        const float e1 = std::exp(g1 - top);
        latent[static_cast<int64_t>(g) * dim + c] =
            to_bf16(kv[2 * g][c] * (e0 / (e0 + e1)) + kv[2 * g + 1][c] * (e1 / (e0 + e1)));
      }
    }
  }

  void index_select(const IndexSelectArgs& args) override {
    pool_->run(static_cast<int64_t>(args.queries.size()), [&](int64_t r, int) {
      IndexQuery& query = args.queries[static_cast<size_t>(r)];
      if (choose_all(query, args.topk)) return;
      std::vector<float> scores(static_cast<size_t>(std::max<int64_t>(query.visible, 1)));
      std::vector<float> key(static_cast<size_t>(args.dim));
      for (int64_t j = 0; j < query.visible; ++j) {
        unpack_index_key(query.keys.row(j), args.dim, key.data());
        double sum = 0;
        for (int64_t h = 0; h < args.heads; ++h) {
          const bf16* q = args.q + (r * args.heads + h) * args.dim;
          double dot = 0;
          for (int64_t i = 0; i < args.dim; ++i)
            dot += static_cast<double>(to_float(q[i])) * static_cast<double>(key[static_cast<size_t>(i)]);
          const float relu = std::max(round_bf16(static_cast<float>(dot)), 0.0f);
          sum += static_cast<double>(round_bf16(relu * to_float(args.weights[r * args.heads + h])));
        }
        scores[static_cast<size_t>(j)] = round_bf16(static_cast<float>(sum));
      }
      std::vector<uint64_t> keys;
      uint64_t* bits = args.candidates + r * args.candidate_words;
      if (args.mode == IndexSelectArgs::Candidates::kBuild) {
        std::vector<float> block_scores;
        std::vector<int32_t> blocks;
        build_candidates(scores.data(), query.visible, args, keys, block_scores, blocks, bits);
      } else if (args.mode == IndexSelectArgs::Candidates::kRestrict) {
        apply_candidates(scores.data(), query.visible, args, bits);
      }
      query.chosen_count = std::min(args.topk, query.visible);
      choose_top(scores.data(), query.visible, query.chosen_count, keys, query.chosen);
    });
  }

  void sparse_attention(const SparseAttentionArgs& args) override {
    const float scale = 1.0f / std::sqrt(static_cast<float>(args.dim));
    pool_->run(static_cast<int64_t>(args.queries.size()), [&](int64_t r, int) {
      const AttentionQuery& query = args.queries[static_cast<size_t>(r)];
      const int64_t window = query.window_last - query.window_first + 1;
      const int64_t count = window + query.chosen_count;
      std::vector<float> kv(static_cast<size_t>(count * args.dim));
      for (int64_t i = 0; i < window; ++i)
        unpack_window(query.window.row(query.window_first + i), args.dim, kv.data() + i * args.dim);
      for (int64_t i = 0; i < query.chosen_count; ++i) {
        unpack_compressed(query.compressed.row(query.chosen[i]), args.dim, kv.data() + (window + i) * args.dim);
      }
      std::vector<float> p(static_cast<size_t>(count));
      std::vector<double> o(static_cast<size_t>(args.dim));
      for (int64_t h = 0; h < args.heads; ++h) {
        const bf16* q = args.q + (r * args.heads + h) * args.dim;
        for (int64_t i = 0; i < count; ++i) {
          double dot = 0;
          for (int64_t d = 0; d < args.dim; ++d) {
            dot += static_cast<double>(to_float(q[d])) * static_cast<double>(kv[static_cast<size_t>(i * args.dim + d)]);
          }
          p[static_cast<size_t>(i)] = static_cast<float>(dot) * scale;
        }
        float top = -1e30f;
        double total = 0;
        std::fill(o.begin(), o.end(), 0.0);
        for (int64_t first = 0; first < count; first += kAttentionTile) {
          const int64_t last = std::min(first + kAttentionTile, count);
          const float before = top;
          for (int64_t i = first; i < last; ++i) top = std::max(top, p[static_cast<size_t>(i)]);
          const double factor = std::exp(before - top);
          total *= factor;
          for (double& v : o) v *= factor;
          for (int64_t i = first; i < last; ++i) {
            const float e = std::exp(p[static_cast<size_t>(i)] - top);
            total += static_cast<double>(e);
            const double rounded = round_bf16(e);
            for (int64_t d = 0; d < args.dim; ++d)
              o[static_cast<size_t>(d)] += rounded * static_cast<double>(kv[static_cast<size_t>(i * args.dim + d)]);
          }
        }
        const float sum = static_cast<float>(total) + std::exp(args.sinks[h] - top);
        for (int64_t d = 0; d < args.dim; ++d) {
          args.out[(r * args.heads + h) * args.dim + d] = to_bf16(static_cast<float>(o[static_cast<size_t>(d)]) / sum);
        }
      }
    });
  }

  void route(const RouteArgs& args, int64_t rows) override {
    const int64_t n = args.gate.out;
    std::vector<float> logits(static_cast<size_t>(rows * n));
    linear_bf16_fp32(args.v, rows, args.gate, logits.data());
    std::vector<float> score(static_cast<size_t>(n));
    std::vector<uint64_t> keys(static_cast<size_t>(n));
    for (int64_t r = 0; r < rows; ++r) {
      const float* bias = args.image != nullptr && args.image[r] != 0 ? args.bias_vl : args.bias;
      for (int64_t e = 0; e < n; ++e) {
        const float z = logits[static_cast<size_t>(r * n + e)] / args.temperature;
        score[static_cast<size_t>(e)] = std::sqrt(z > 20.0f ? z : std::log1p(std::exp(z)));
        keys[static_cast<size_t>(e)] = rank_key(score[static_cast<size_t>(e)] + bias[e], static_cast<uint32_t>(e));
      }
      std::partial_sort(keys.begin(), keys.begin() + args.topk, keys.end());
      float sum = 0;
      for (int64_t k = 0; k < args.topk; ++k) {
        const auto e = static_cast<int32_t>(keys[static_cast<size_t>(k)] & 0xffffffffu);
        args.experts[r * args.topk + k] = e;
        args.weights[r * args.topk + k] = score[static_cast<size_t>(e)];
        sum += score[static_cast<size_t>(e)];
      }
      for (int64_t k = 0; k < args.topk; ++k) {
        float& w = args.weights[r * args.topk + k];
        if (args.normalize && args.topk > 1) w /= sum + 1e-20f;
        w *= args.scale;
      }
      if (args.counts == nullptr || r >= *args.counted) continue;
      for (int64_t k = 0; k < args.topk; ++k) ++args.counts[args.experts[r * args.topk + k]];
    }
  }

  void experts(const ExpertsArgs& args, int64_t rows) override {
    const int64_t hidden = args.shared_w1.in;
    const int64_t inner = args.shared_w1.out;
    std::vector<float> y(static_cast<size_t>(rows * hidden), 0.0f);
    std::vector<int64_t> members;
    std::vector<float> weight;
    for (size_t e = 0; e < args.routed.size(); ++e) {  // ascending expert id: the order of the sum
      members.clear();
      weight.clear();
      for (int64_t i = 0; i < rows * args.topk; ++i) {
        if (args.experts[i] == static_cast<int32_t>(e)) {
          members.push_back(i / args.topk);
          weight.push_back(args.weights[i]);
        }
      }
      if (members.empty()) continue;
      const ExpertWeights& w = args.routed[e];
      const Inputs in = gather_inputs(args.v, members, hidden, true);
      expert(
          in, inner, hidden, args.swiglu_limit, [&](int64_t b, int64_t n, float* p) { multiply_fp4(w.w1, in, b, n, p); },
          [&](int64_t b, int64_t n, float* p) { multiply_fp4(w.w3, in, b, n, p); },
          [&](const Inputs& h, int64_t b, int64_t n, float* p) { multiply_fp4(w.w2, h, b, n, p); },
          [&](int64_t m) { return weight[static_cast<size_t>(m)]; },
          [&](int64_t m, int64_t d, float v) { y[static_cast<size_t>(members[static_cast<size_t>(m)] * hidden + d)] += v; });
    }
    const Inputs in = make_inputs(args.v, rows, hidden, hidden, true);
    expert(
        in, inner, hidden, args.swiglu_limit, [&](int64_t b, int64_t n, float* p) { multiply_fp8(args.shared_w1, in, b, n, p); },
        [&](int64_t b, int64_t n, float* p) { multiply_fp8(args.shared_w3, in, b, n, p); },
        [&](const Inputs& h, int64_t b, int64_t n, float* p) { multiply_fp8(args.shared_w2, h, b, n, p); },
        [](int64_t) { return 1.0f; }, [&](int64_t m, int64_t d, float v) { y[static_cast<size_t>(m * hidden + d)] += v; });
    for (int64_t i = 0; i < rows * hidden; ++i) args.y[i] = to_bf16(y[static_cast<size_t>(i)]);
  }

  void engram_gather(const EngramTable& table, const int64_t* ids, int64_t rows, int64_t columns, bf16* e) override {
    for (int64_t i = 0; i < rows * columns; ++i) {
      for (int64_t d = 0; d < table.dim; ++d) {
        const float s = e8m0_to_float(table.scales[ids[i] * (table.dim / kScaleGroup) + d / kScaleGroup]);
        e[i * table.dim + d] = to_bf16(e4m3_to_float(table.values[ids[i] * table.dim + d]) * s);
      }
    }
  }

  void engram_gate(const bf16* kv, const bf16* q_weight, const bf16* k_weight, const uint8_t* image, float eps, int64_t rows,
                   int64_t n, int64_t hidden, bf16* x) override {
    for (int64_t r = 0; r < rows; ++r) {
      if (image != nullptr && image[r] != 0) continue;
      const bf16* value = kv + (r * (n + 1) + n) * hidden;
      for (int64_t s = 0; s < n; ++s) {
        const bf16* key = kv + (r * (n + 1) + s) * hidden;
        bf16* stream = x + (r * n + s) * hidden;
        double sum = 0;
        double xx = 0;
        double kk = 0;
        for (int64_t d = 0; d < hidden; ++d) {
          const float weight = to_float(q_weight[s * hidden + d]) * to_float(k_weight[s * hidden + d]);
          sum += static_cast<double>(to_float(stream[d]) * weight) * static_cast<double>(to_float(key[d]));
          xx += product(stream[d], stream[d]);
          kk += product(key[d], key[d]);
        }
        const float norm = rsqrt_mean(xx, hidden, eps) * rsqrt_mean(kk, hidden, eps);
        const float dot = static_cast<float>(sum) * norm * (1.0f / std::sqrt(static_cast<float>(hidden)));
        const float g = sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6f)), dot));
        for (int64_t d = 0; d < hidden; ++d) stream[d] = to_bf16(to_float(stream[d]) + g * to_float(value[d]));
      }
    }
  }

 private:
  // y[o][r] of every output row o, computed in chunks on the pool, handed to store(o, r, value).
  template <typename Multiply, typename Store>
  void products(int64_t out, int64_t rows, Multiply multiply, Store store) {
    pool_->run_ranges(out, kRowsPerChunk, [&](int64_t begin, int64_t end, int) {
      std::vector<float> y(static_cast<size_t>((end - begin) * rows));
      multiply(begin, end, y.data());
      for (int64_t o = begin; o < end; ++o) {
        for (int64_t r = 0; r < rows; ++r) store(o, r, y[static_cast<size_t>((o - begin) * rows + r)]);
      }
    });
  }

  template <typename W1, typename W3, typename W2, typename WeightOf, typename Add>
  void expert(const Inputs& in, int64_t inner, int64_t hidden, float limit, W1 w1, W3 w3, W2 w2, WeightOf weight_of, Add add) {
    std::vector<float> a(static_cast<size_t>(inner * in.rows));
    std::vector<float> b(a.size());
    products(inner, in.rows, w1, [&](int64_t o, int64_t r, float v) { a[static_cast<size_t>(r * inner + o)] = round_bf16(v); });
    products(inner, in.rows, w3, [&](int64_t o, int64_t r, float v) { b[static_cast<size_t>(r * inner + o)] = round_bf16(v); });
    std::vector<bf16> h(a.size());
    for (int64_t r = 0; r < in.rows; ++r) {
      for (int64_t i = 0; i < inner; ++i) {
        const auto at = static_cast<size_t>(r * inner + i);
        h[at] = to_bf16(swiglu(a[at], b[at], limit) * weight_of(r));
      }
    }
    const Inputs hin = make_inputs(h.data(), in.rows, inner, inner, true);
    products(
        hidden, in.rows, [&](int64_t begin, int64_t end, float* p) { w2(hin, begin, end, p); },
        [&](int64_t o, int64_t r, float v) { add(r, o, round_bf16(v)); });
  }

  static void sinkhorn(float* c, int64_t n, int64_t iters, float eps) {
    const auto columns = [&] {
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += c[i * n + j];
        for (int64_t i = 0; i < n; ++i) c[i * n + j] /= sum + eps;
      }
    };
    for (int64_t i = 0; i < n; ++i) {
      float top = c[i * n];
      for (int64_t j = 1; j < n; ++j) top = std::max(top, c[i * n + j]);
      float sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += c[i * n + j] = std::exp(c[i * n + j] - top);
      for (int64_t j = 0; j < n; ++j) c[i * n + j] = c[i * n + j] / sum + eps;
    }
    columns();
    for (int64_t step = 1; step < iters; ++step) {
      for (int64_t i = 0; i < n; ++i) {
        float sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += c[i * n + j];
        for (int64_t j = 0; j < n; ++j) c[i * n + j] /= sum + eps;
      }
      columns();
    }
  }

  ThreadPool* pool_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(ThreadPool* pool) { return std::make_unique<ReferenceBackend>(pool); }

}  // namespace deepinfer
