// The product kernels of every table that this processor runs, one thread, in processor time, so that a busy machine changes
// little: one input row against what the thread reads from memory, many against its multiply-adds from registers alone. Tables
// take turns; of the rounds the pair with the median ratio is printed.

#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/json_line.h"
#include "common/ceilings.h"
#include "ops/cpu/kernels.h"

namespace deepinfer::bench {
namespace {

using cpu::CpuKernels;
using cpu::PackKind;

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Fn>
double seconds_of(Fn fn) {
  const double start = processor_seconds();
  fn();
  return processor_seconds() - start;
}

double peak_rate(const PeakLoop& loop) {
  constexpr int64_t kIterations = 1'000'000;
  return loop.flops_per_iteration * static_cast<double>(kIterations) / seconds_of([&] { loop.run(kIterations); });
}

double read_rate(const AlignedBuffer<uint8_t>& buffer) {
  using Wide = uint64_t __attribute__((vector_size(64)));
  return static_cast<double>(buffer.size()) / seconds_of([&] {
           Wide sum[4] = {};
           for (int64_t i = 0; i + 256 <= buffer.size(); i += 256) {
             for (int64_t k = 0; k < 4; ++k) {
               __builtin_prefetch(buffer.data() + i + k * 64 + 4096);
               Wide v;
               std::memcpy(&v, buffer.data() + i + k * 64, sizeof(v));
               sum[k] ^= v;
             }
           }
           const Wide all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
           asm volatile("" ::"m"(all));
         });
}

// Weights of one kind over the whole buffer; columns `in`.
struct Product {
  const char* format;
  PackKind kind;
  double bytes_per_weight;  ///< with scales

  void run(const CpuKernels& k, const uint8_t* values, const uint8_t* scales, int64_t out, int64_t in, const char* x,
           int64_t rows, char* scratch, float* y) const {
    if (kind == PackKind::kFp8) return k.multiply_fp8({values, scales, out, in}, 0, out, x, rows, scratch, y, out);
    if (kind == PackKind::kFp4) return k.multiply_fp4({values, scales, out, in}, 0, out, x, rows, scratch, y, out);
    k.multiply_bf16({reinterpret_cast<const bf16*>(values), out, in}, 0, out, x, rows, scratch, y, out);
  }
};
constexpr Product kProducts[] = {{"fp8", PackKind::kFp8, 1}, {"fp4", PackKind::kFp4, 17.0 / 32}, {"bf16", PackKind::kBf16, 2}};

AlignedBuffer<char> packed_rows(const CpuKernels& k, PackKind kind, int64_t rows, int64_t in, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  const int64_t bytes = k.packed_row_bytes(kind, in);
  const int64_t tile = k.tile_rows(kind);
  AlignedBuffer<char> x(rows * bytes);
  std::vector<bf16> row(static_cast<size_t>(in));
  for (int64_t r = 0; r < rows; ++r) {
    for (bf16& v : row) v = to_bf16(normal(rng));
    const int64_t first = r / tile * tile;
    k.pack(kind, row.data(), in, x.data() + first * bytes, std::min(tile, rows - first), r - first);
  }
  return x;
}

struct Pair {
  double value, ceiling;
};

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  using namespace deepinfer;
  using namespace deepinfer::bench;
  CLI::App app("The product kernels of every table that this processor runs, one thread, in processor time");
  int rounds = 5;
  int64_t in = 5120;
  int64_t megabytes = 256;
  std::vector<int64_t> many = {2, 4, 8, 16, 54, 512};
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--in", in, "Columns of the weights, a multiple of 32")->check(CLI::Range(32, 32768));
  app.add_option("--megabytes", megabytes, "Weights; much larger than the last-level cache")->check(CLI::Range(16, 16384));
  app.add_option("--rows", many, "Input rows of the products that count as arithmetic")->check(CLI::Range(1, 4096));
  CLI11_PARSE(app, argc, argv);
  if (in % kScaleGroup != 0) {
    std::fprintf(stderr, "kernels_bench: --in is %ld, must be a multiple of %d\n", static_cast<long>(in), kScaleGroup);
    return 1;
  }

  std::mt19937_64 rng(1);
  AlignedBuffer<uint8_t> values(megabytes << 20);
  for (int64_t i = 0; i < values.size(); i += 8) {
    const uint64_t v = rng() & 0xbfbfbfbfbfbfbfbfull;  // no NaN codes
    std::memcpy(values.data() + i, &v, sizeof(v));
  }
  AlignedBuffer<uint8_t> scales(values.size() * 2 / kScaleGroup);
  for (int64_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(118 + rng() % 3);

  constexpr int64_t kOut = 128;  // weight rows of a piece of work with many inputs
  std::map<std::string, std::pair<BenchConditions, std::vector<Pair>>> figures;
  for (int round = 0; round < rounds; ++round) {
    for (const CpuKernels* k : cpu::cpu_kernels()) {
      AlignedBuffer<char> scratch(k->scratch_bytes + 64);
      const PeakLoop loop = peak_loop(k->name);
      for (const Product& product : kProducts) {
        const auto record = [&](int64_t rows, Pair pair) {
          BenchConditions conditions = {{"kernels", k->name}, {"in", std::to_string(in)}, {"rows", std::to_string(rows)},
                                        {"threads", "1"},     {"time", "processor"},      {"rounds", std::to_string(rounds)}};
          if (rows > 1) conditions.push_back({"peak", loop.kind});
          auto& figure = figures[fmt::format("{} {} {:04}", k->name, product.format, rows)];
          figure.first = std::move(conditions);
          figure.first.push_back({"format", product.format});
          figure.second.push_back(pair);
        };
        const double per_weight = product.kind == PackKind::kFp4 ? 0.5 : product.bytes_per_weight;
        const auto out = static_cast<int64_t>(static_cast<double>(values.size()) / per_weight) / in;
        std::vector<float> y(static_cast<size_t>(std::max(out, kOut * 4096)));
        AlignedBuffer<char> x = packed_rows(*k, product.kind, 1, in, rng);
        const double read = read_rate(values);
        const double seconds =
            seconds_of([&] { product.run(*k, values.data(), scales.data(), out, in, x.data(), 1, scratch.data(), y.data()); });
        record(1, {static_cast<double>(out * in) * product.bytes_per_weight / seconds, read});
        for (int64_t rows : many) {
          x = packed_rows(*k, product.kind, rows, in, rng);
          const auto piece = static_cast<int64_t>(static_cast<double>(kOut * in) * per_weight);
          const int64_t pieces = std::clamp<int64_t>(512 / rows, 1, values.size() / piece);
          const double peak = peak_rate(loop);
          const double spent = seconds_of([&] {
            for (int64_t p = 0; p < pieces; ++p) {
              product.run(*k, values.data() + p * piece, scales.data(), kOut, in, x.data(), rows, scratch.data(), y.data());
            }
          });
          record(rows, {2.0 * static_cast<double>(pieces * rows * kOut * in) / spent, peak});
        }
      }
    }
  }
  for (auto& [name, figure] : figures) {
    auto& [conditions, pairs] = figure;
    std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.value / a.ceiling < b.value / b.ceiling; });
    const Pair& median = pairs[pairs.size() / 2];
    const bool one =
        std::find(conditions.begin(), conditions.end(), std::pair<std::string, std::string>("rows", "1")) != conditions.end();
    print_bench_line(stdout, one ? "kernel_row" : "kernel_rows", median.value / 1e9, one ? "GB/s" : "GFLOP/s",
                     median.ceiling / 1e9, conditions);
  }
  return 0;
}
