#include "common/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace deepinfer::bench {
namespace {

constexpr int64_t kBufferBytes = int64_t{1} << 30;
constexpr int64_t kPieceBytes = int64_t{1} << 20;
using Wide = uint64_t __attribute__((vector_size(64)));

}  // namespace

Ceilings::Ceilings(ThreadPool* pool, const std::string& backend)
    : pool_(pool), loop_(peak_loop(backend.substr(backend.find('/') + 1))), buffer_(kBufferBytes) {
  for (int64_t i = 0; i < kBufferBytes; i += 4096) buffer_[i] = static_cast<uint8_t>(i >> 12);
}

double Ceilings::read_bandwidth() {
  double best = 0;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const double start = now();
    pool_->run(kBufferBytes / kPieceBytes, [&](int64_t piece, int) {
      const uint8_t* p = buffer_.data() + piece * kPieceBytes;
      Wide sum[4] = {};
      for (int64_t i = 0; i < kPieceBytes; i += 256) {
        for (int k = 0; k < 4; ++k) {
          __builtin_prefetch(p + i + k * 64 + 4096);
          Wide v;
          std::memcpy(&v, p + i + k * 64, sizeof(v));
          sum[k] ^= v;
        }
      }
      const Wide all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
      asm volatile("" ::"r"(all[0] ^ all[3] ^ all[7]));
    });
    best = std::max(best, static_cast<double>(kBufferBytes) / (now() - start));
  }
  return best;
}

double Ceilings::peak_flops() {
  constexpr int64_t kIterations = 2'000'000;
  double best = 0;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const double start = now();
    pool_->run(pool_->size(), [&](int64_t, int) { loop_.run(kIterations); });
    best = std::max(best, loop_.flops_per_iteration * static_cast<double>(kIterations * pool_->size()) / (now() - start));
  }
  return best;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace deepinfer::bench
