// Products of the CPU backend at true V4.1 dimensions against the machine: GEMV against read bandwidth, GEMM against the
// register-only arithmetic rate. Ceiling and figure are measured in turn; medians are printed.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/json_line.h"
#include "common/ceilings.h"
#include "ops/ops.h"

namespace deepinfer::bench {
namespace {

// Weights larger than any cache: `copies` matrices, used one after the other.
template <typename Weight>
struct Matrices {
  std::vector<AlignedBuffer<uint8_t>> data;
  std::vector<Weight> weights;
  int64_t bytes_each = 0;
};

AlignedBuffer<uint8_t> random_bytes(int64_t n, std::mt19937_64& rng, uint64_t mask) {
  AlignedBuffer<uint8_t> b((n + 7) / 8 * 8);
  for (int64_t i = 0; i < b.size(); i += 8) {
    const uint64_t v = rng() & mask;
    __builtin_memcpy(b.data() + i, &v, 8);
  }
  return b;
}

AlignedBuffer<uint8_t> scales(int64_t n, std::mt19937_64& rng) {
  AlignedBuffer<uint8_t> b(n);
  for (int64_t i = 0; i < n; ++i) b[i] = static_cast<uint8_t>(118 + rng() % 3);
  return b;
}

Matrices<Fp8Weight> make_fp8(int64_t out, int64_t in, int64_t total, std::mt19937_64& rng) {
  Matrices<Fp8Weight> m;
  m.bytes_each = out * in + (out + 31) / 32 * (in / 32);
  for (int64_t made = 0; made < total || m.weights.empty(); made += m.bytes_each) {
    m.data.push_back(random_bytes(out * in, rng, 0xbfbfbfbfbfbfbfbfull));  // no NaN codes
    m.data.push_back(scales((out + 31) / 32 * (in / 32), rng));
    m.weights.push_back({m.data[m.data.size() - 2].data(), m.data.back().data(), out, in});
  }
  return m;
}

std::vector<bf16> random_rows(int64_t n, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  std::vector<bf16> x(static_cast<size_t>(n));
  for (bf16& v : x) v = to_bf16(normal(rng));
  return x;
}

struct Figure {
  std::vector<double> values, ceilings;
};

void print(const std::string& name, const Figure& f, double unit, const char* unit_name, BenchConditions conditions) {
  std::vector<double> ratio;
  for (size_t i = 0; i < f.values.size(); ++i) ratio.push_back(f.values[i] / f.ceilings[i]);
  // The pair whose ratio is the median one, so that value / ceiling is a ratio that was measured.
  std::vector<size_t> order(ratio.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ratio[a] < ratio[b]; });
  const size_t mid = order[order.size() / 2];
  conditions.push_back({"rounds", std::to_string(ratio.size())});
  print_bench_line(stdout, name, f.values[mid] / unit, unit_name, f.ceilings[mid] / unit, conditions);
}

// Experts as the decode step reads them: `topk` of `experts.size()` per call.
struct ExpertSet {
  std::vector<AlignedBuffer<uint8_t>> data;
  std::vector<ExpertWeights> experts;
  Matrices<Fp8Weight> shared;
  int64_t bytes_each = 0;
};

ExpertSet make_experts(int64_t count, int64_t hidden, int64_t inner, std::mt19937_64& rng) {
  ExpertSet s;
  const auto fp4 = [&](int64_t out, int64_t in) {
    s.data.push_back(random_bytes(out * in / 2, rng, ~0ull));
    s.data.push_back(scales(out * (in / 32), rng));
    return Fp4Weight{s.data[s.data.size() - 2].data(), s.data.back().data(), out, in};
  };
  for (int64_t e = 0; e < count; ++e) {
    ExpertWeights w;
    w.w1 = fp4(inner, hidden);
    w.w2 = fp4(hidden, inner);
    w.w3 = fp4(inner, hidden);
    s.experts.push_back(w);
  }
  s.bytes_each = 3 * (hidden * inner / 2 + hidden * inner / 32);
  return s;
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  using namespace deepinfer;
  using namespace deepinfer::bench;
  CLI::App app("Matrix products of the CPU backend at true dimensions, against the machine's ceilings");
  int threads = available_threads();
  int rounds = 9;
  int64_t megabytes = 1024;
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--megabytes", megabytes, "weights per case; much larger than the last-level cache")
      ->check(CLI::Range(64, 16384));
  CLI11_PARSE(app, argc, argv);

  ThreadPool pool(threads);
  const auto backend = make_cpu_backend(&pool);
  Ceilings ceilings(&pool, backend->name());
  std::mt19937_64 rng(1);
  const BenchConditions base = {{"backend", backend->name()}, {"threads", std::to_string(threads)}};
  const auto with = [&](std::vector<std::pair<std::string, std::string>> more) {
    BenchConditions c = base;
    c.insert(c.end(), more.begin(), more.end());
    return c;
  };

  {  // FP4 experts, one token: 6 of them a call, as decode does.
    const int64_t hidden = 5120, inner = 2304;
    ExpertSet set = make_experts(std::max<int64_t>(12, (megabytes << 20) / (3 * (hidden * inner * 17 / 32))), hidden, inner, rng);
    Matrices<Fp8Weight> w1 = make_fp8(inner, hidden, 0, rng), w2 = make_fp8(hidden, inner, 0, rng),
                        w3 = make_fp8(inner, hidden, 0, rng);
    const std::vector<bf16> v = random_rows(512 * hidden, rng);
    std::vector<bf16> y(static_cast<size_t>(512 * hidden));
    const auto run = [&](int64_t rows, int64_t topk, int64_t offset) {
      std::vector<int32_t> ids;
      std::vector<float> weights;
      for (int64_t i = 0; i < rows * topk; ++i) {
        ids.push_back(static_cast<int32_t>((offset + i * (rows > 1 ? 7 : 1)) % static_cast<int64_t>(set.experts.size())));
        weights.push_back(0.25f);
      }
      backend->experts({.v = v.data(),
                        .experts = ids.data(),
                        .weights = weights.data(),
                        .routed = set.experts,
                        .shared_w1 = w1.weights[0],
                        .shared_w2 = w2.weights[0],
                        .shared_w3 = w3.weights[0],
                        .topk = topk,
                        .swiglu_limit = 10,
                        .y = y.data()},
                       rows);
    };
    Figure f;
    const int64_t shared_bytes = w1.bytes_each + w2.bytes_each + w3.bytes_each;
    for (int r = 0; r < rounds; ++r) {
      const double ceiling = ceilings.read_bandwidth();
      const double start = now();
      int64_t calls = 0;
      for (int64_t at = 0; at + 6 <= static_cast<int64_t>(set.experts.size()); at += 6, ++calls) run(1, 6, at);
      f.values.push_back(static_cast<double>(calls * (6 * set.bytes_each + shared_bytes)) / (now() - start));
      f.ceilings.push_back(ceiling);
    }
    print("experts_fp4_gemv", f, 1e9, "GB/s",
          with({{"hidden", "5120"},
                {"inner", "2304"},
                {"topk", "6 + shared (FP8)"},
                {"experts", std::to_string(set.experts.size())},
                {"rows", "1"}}));
    Figure g;
    for (int r = 0; r < std::max(1, rounds / 3); ++r) {
      const double ceiling = ceilings.peak_flops();
      const double start = now();
      run(512, 6, r);
      g.values.push_back(512.0 * 7 * 3 * 2 * static_cast<double>(hidden * inner) / (now() - start));
      g.ceilings.push_back(ceiling);
    }
    print("experts_fp4_gemm", g, 1e9, "GFLOP/s",
          with({{"rows", "512"},
                {"topk", "6 + shared (FP8)"},
                {"experts", std::to_string(set.experts.size())},
                {"peak", ceilings.peak_kind()}}));
  }
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{32768, 1280}, {1280, 5120}, {5120, 8192}}) {
    const Matrices<Fp8Weight> m = make_fp8(out, in, megabytes << 20, rng);
    const std::vector<bf16> x = random_rows(512 * in, rng);
    std::vector<bf16> y(static_cast<size_t>(512 * out));
    Figure f;
    for (int r = 0; r < rounds; ++r) {
      const double ceiling = ceilings.read_bandwidth();
      const double start = now();
      for (const Fp8Weight& w : m.weights) {
        const LinearOutput o{w, y.data()};
        backend->linear_fp8(x.data(), 1, {&o, 1});
      }
      f.values.push_back(static_cast<double>(m.bytes_each) * static_cast<double>(m.weights.size()) / (now() - start));
      f.ceilings.push_back(ceiling);
    }
    const std::string shape = std::to_string(out) + "x" + std::to_string(in);
    print("linear_fp8_gemv", f, 1e9, "GB/s", with({{"shape", shape}, {"rows", "1"}}));
    Figure g;
    for (int r = 0; r < std::max(1, rounds / 3); ++r) {
      const double ceiling = ceilings.peak_flops();
      const double start = now();
      const LinearOutput o{m.weights[0], y.data()};
      backend->linear_fp8(x.data(), 512, {&o, 1});
      g.values.push_back(512.0 * 2 * static_cast<double>(out * in) / (now() - start));
      g.ceilings.push_back(ceiling);
    }
    print("linear_fp8_gemm", g, 1e9, "GFLOP/s", with({{"shape", shape}, {"rows", "512"}, {"peak", ceilings.peak_kind()}}));
  }
  return 0;
}
