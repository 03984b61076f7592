// Ranks of index keys that are a row's own, thread by thread on the host (device.h): to the bit those of chains of bf16 products,
// whatever the scales of keys and queries, in the products that take them as E4M3 and in those that do not.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/scalar_types.h"
#include "ops/cuda/index_scores.cuh"
#include "ops/op_inputs.h"

namespace deepinfer {
namespace {

using testing::Random;

constexpr int64_t kDim = 128, kHeads = 32, kRowBytes = 68, kPageRows = 64;

// The score of a key: a chain of eight products of 16 columns, each rounded once; bf16 dots and products, a sum of each lane's
// heads.
float score_of(const uint8_t* key, const bf16* q, const bf16* weights) {
  float sums[4] = {};
  for (int64_t head = 0; head < kHeads; ++head) {
    float dot = 0;
    for (int64_t product = 0; product < 8; ++product) {
      double sum = 0;
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t column = i / 4 * 32 + product / 2 * 8 + product % 2 * 2 + i % 4 / 2 + i % 2 * 4;
        const float value = e2m1_to_float(static_cast<uint8_t>(key[column / 2] >> column % 2 * 4)) *
                            std::ldexp(1.0f, key[kDim / 2 + column / 32] - 127);
        sum += static_cast<double>(value) * to_float(q[head * kDim + column]);
      }
      dot = static_cast<float>(static_cast<double>(dot) + sum);
    }
    sums[head % 8 / 2] += round_bf16(std::max(round_bf16(dot), 0.0f) * to_float(weights[head]));
  }
  return round_bf16((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

struct Scales {
  const char* name;
  int key, key_spread;  // exponents
  int query, query_spread;
  int apart;          // now and then a key's scale is so much lower
  bool whole = true;  // queries on the FP4 grid
};

TEST(IndexScoresOfRows, AreThoseOfChainsWhateverTheScales) {
  Random random(5);
  for (const Scales& c : {Scales{"one scale", 0, 0, 0, 0, 0},
                          {"some", -2, 3, -1, 2, 0},
                          {"most of few", 1, 7, 0, 2, 0},
                          {"more of queries", 0, 3, 2, 6, 0},
                          {"too far", 0, 12, 0, 9, 0},
                          {"now and then", 0, 2, 0, 1, 9},
                          {"no grid", 0, 1, 0, 1, 0, false},
                          {"very small", -90, 2, -30, 2, 0},
                          {"small queries", 3, 2, -60, 2, 0},
                          {"large", 70, 5, 30, 2, 0}}) {
    SCOPED_TRACE(c.name);
    constexpr int64_t kKeys = 459;  // rounds of a block of 192, and some more
    std::vector<uint8_t> keys(static_cast<size_t>((kKeys + kPageRows - 1) / kPageRows * kPageRows * kRowBytes));
    for (int64_t j = 0; j < kKeys; ++j) {
      uint8_t* row = keys.data() + j * kRowBytes;
      for (int64_t i = 0; i < kDim / 2; ++i) row[i] = static_cast<uint8_t>(random.bits());
      if (j % 13 == 5) std::fill_n(row, kDim / 2, uint8_t{j % 2 == 0 ? 0x77 : 0xff});  // the largest numbers
      if (j % 13 == 6) std::fill_n(row, 16, uint8_t{0x88});                            // zeros with a sign
      for (int64_t g = 0; g < 4; ++g)
        row[kDim / 2 + g] =
            static_cast<uint8_t>(127 + c.key + random.below(c.key_spread + 1) - (random.below(40) == 0 ? c.apart : 0));
    }
    std::vector<bf16> q(static_cast<size_t>(kHeads * kDim)), weights(static_cast<size_t>(kHeads));
    for (int64_t i = 0; i < kHeads * kDim; i += 32) {
      const float scale = std::ldexp(1.0f, static_cast<int>(c.query + random.below(c.query_spread + 1)));
      const bool most = random.below(4) == 0;
      const bool zeros = random.below(9) == 0;
      for (int64_t k = i; k < i + 32; ++k) {
        const float v = most ? 6.0f : e2m1_to_float(static_cast<uint8_t>(random.below(16)));
        q[static_cast<size_t>(k)] = to_bf16(zeros ? 0.0f : (c.whole ? v : v * 1.09375f) * scale);
      }
    }
    for (bf16& w : weights)
      w = to_bf16(std::ldexp(static_cast<float>(random.below(255)) - 127.0f, static_cast<int>(random.below(4)) - 12));
    std::vector<uint8_t*> pages;
    for (size_t at = 0; at < keys.size(); at += kPageRows * kRowBytes) pages.push_back(keys.data() + at);
    const cuda::IndexRow row{{pages.data(), kPageRows, 0, kRowBytes}, kKeys, nullptr, true, false};
    std::vector<uint16_t> rank(static_cast<size_t>(kKeys));
    cuda::LaunchStream stream(nullptr, false);
    cuda::ScoreArgs args{};
    args.q = q.data();
    args.weights = weights.data();
    args.rows = &row;
    args.row_count = 1;
    args.heads = kHeads;
    args.dim = kDim;
    args.rank = rank.data();
    args.row_stride = kKeys;
    cuda::score_each_row(args, kKeys, stream);
    for (int64_t j = 0; j < kKeys; ++j)
      ASSERT_EQ(rank[static_cast<size_t>(j)], cuda::rank_of(score_of(keys.data() + j * kRowBytes, q.data(), weights.data())))
          << "key " << j;
  }
}

}  // namespace
}  // namespace deepinfer
