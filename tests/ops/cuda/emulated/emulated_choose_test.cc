// The choice of index rows, thread by thread on the host (device.h): whatever way it goes, it is that of a sort.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ops/cuda/choose.h"
#include "ops/op_inputs.h"

namespace deepinfer {
namespace {

using cuda::IndexRow;
using cuda::LaunchStream;
using testing::Random;

constexpr uint16_t kMinusInfinity = 0x007f, kInfinity = 0xff80, kNan = 0;

// The best `keep` of `ranks`, ascending; of equal ones the first.
std::vector<int32_t> best_of(const std::vector<uint32_t>& ranks, int64_t keep) {
  std::vector<int32_t> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return ranks[static_cast<size_t>(a)] > ranks[static_cast<size_t>(b)]; });
  order.resize(std::min(order.size(), static_cast<size_t>(keep)));
  std::sort(order.begin(), order.end());
  return order;
}

// Ranks as of bf16 scores: of `kinds` values, negative ones among them, infinities, and what is no number.
uint16_t draw_rank(Random& random, int64_t kinds) {
  if (kinds > 2 && random.below(50) == 0) {
    const uint16_t special[] = {kNan, kMinusInfinity, kInfinity};
    return special[random.below(3)];
  }
  return static_cast<uint16_t>(0x8000 - kinds / 3 + random.below(kinds));
}

struct RowsOfRanks {
  int64_t stride = 0, keep = 0, blocks = 0;
  std::vector<int64_t> lengths;
  std::vector<uint16_t> rank;  // behind a row's end there is what nobody may choose
  std::vector<std::vector<int32_t>> chosen;
  std::vector<IndexRow> rows;
  int64_t words = 0;
  std::vector<uint64_t> bits;

  RowsOfRanks(Random& random, std::vector<int64_t> row_lengths, int64_t row_stride, int64_t kept, int64_t kinds,
              int64_t kept_blocks = 0)
      : stride(row_stride), keep(kept), blocks(kept_blocks), lengths(std::move(row_lengths)) {
    rank.assign(lengths.size() * static_cast<size_t>(stride), 0xffff);
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    words = ((longest + 7) / 8 + 63) / 64 + 1;
    bits.assign(lengths.size() * static_cast<size_t>(words), ~uint64_t{0});
    for (size_t r = 0; r < lengths.size(); ++r) {
      for (int64_t j = 0; j < lengths[r]; ++j)
        rank[r * static_cast<size_t>(stride) + static_cast<size_t>(j)] = draw_rank(random, kinds);
      chosen.emplace_back(static_cast<size_t>(std::min(keep, lengths[r])), -1);
    }
    for (size_t r = 0; r < lengths.size(); ++r) {
      const bool scored = lengths[r] > keep;
      rows.push_back({{}, lengths[r], chosen[r].data(), scored, scored && blocks > 0 && (lengths[r] + 7) / 8 > blocks});
    }
  }
  std::vector<uint32_t> ranks_of(size_t r) const {
    const auto first = rank.begin() + static_cast<int64_t>(r) * stride;
    return {first, first + lengths[r]};
  }
  void clear() {
    for (auto& list : chosen) std::fill(list.begin(), list.end(), -1);
  }
  void expect_best() const {
    for (size_t r = 0; r < lengths.size(); ++r) EXPECT_EQ(chosen[r], best_of(ranks_of(r), keep)) << "row " << r;
  }
  // The best blocks of eight, the newest among them, none that has nothing but -inf.
  void expect_bits() const {
    for (size_t r = 0; r < lengths.size(); ++r) {
      if (!rows[r].restricted) continue;
      const std::vector<uint32_t> ranks = ranks_of(r);
      std::vector<uint32_t> best((ranks.size() + 7) / 8, 0);
      for (size_t j = 0; j < ranks.size(); ++j) best[j / 8] = std::max(best[j / 8], ranks[j]);
      best.back() = 0x10000;
      std::vector<uint64_t> want(static_cast<size_t>(words), 0);
      for (int32_t b : best_of(best, blocks)) {
        if (best[static_cast<size_t>(b)] > kMinusInfinity) want[static_cast<size_t>(b / 64)] |= uint64_t{1} << b % 64;
      }
      EXPECT_TRUE(std::equal(want.begin(), want.end(), bits.begin() + static_cast<int64_t>(r) * words)) << "row " << r;
    }
  }
};

struct Levels {
  std::vector<uint16_t> eights, groups;
  std::vector<int32_t> list, listed;
  cuda::LevelChoice choice;

  // What nobody wrote is as good as can be.
  explicit Levels(RowsOfRanks& rows) : eights(rows.rank.size() / 8, 0xffff), groups(rows.rank.size() / 64, 0xffff) {
    choice = {
        .rank = rows.rank.data(), .eights = eights.data(), .groups = groups.data(), .stride = rows.stride, .keep = rows.keep};
    choice.bits = rows.bits.data();
    choice.words = rows.words;
  }
};

int64_t level_stride(int64_t length) { return (length + cuda::kLevelStride - 1) / cuda::kLevelStride * cuda::kLevelStride; }

TEST(ChoiceOfRows, ByARowIsThatOfASort) {
  Random random(10);
  LaunchStream stream(nullptr, false);
  struct Case {
    int64_t longest, keep, kinds, rows = 4;
  };
  for (const Case& c : {Case{9, 1, 30'000},
                        {1000, 64, 3},
                        {1001, 63, 1},
                        {8192, 512, 40},
                        {8190, 2048, 900},
                        {8192, 512, 30'000},
                        {5000, 512, 200, 133}}) {  // more than multiprocessors: two rows of each
    SCOPED_TRACE(fmt::format("{} of {}, {} ranks", c.keep, c.longest, c.kinds));
    std::vector<int64_t> lengths;
    for (int64_t r = 0; r < c.rows; ++r) {
      const int64_t some[] = {c.longest, c.keep + 1, c.keep, std::max(c.keep + 1, c.longest / 2)};
      lengths.push_back(some[r % 4]);
    }
    const int64_t stride = (c.longest + 7) / 8 * 8;
    RowsOfRanks rows(random, lengths, stride, c.keep, c.kinds);
    const int64_t pieces = (stride + cuda::kChoicePiece - 1) / cuda::kChoicePiece;
    const cuda::Choice choice{.rank = rows.rank.data(), .stride = stride, .pieces = pieces, .keep = c.keep};
    cuda::choose_by_row(choice, rows.rows.data(), c.rows, stream);
    rows.expect_best();
    if (c.rows > 4) continue;
    rows.clear();
    for (size_t r = 2; r < lengths.size(); r += 4) std::iota(rows.chosen[r].begin(), rows.chosen[r].end(), 0);  // all it sees
    std::vector<uint32_t> histogram(static_cast<size_t>(2 * c.rows * 256)), counts(static_cast<size_t>(2 * c.rows * pieces));
    cuda::IndexScratch scratch;
    scratch.histogram = histogram.data();
    scratch.counts = counts.data();
    cuda::choose(choice, rows.rows.data(), c.rows, scratch, stream);
    rows.expect_best();
  }
}

// Lengths about every boundary of the levels, few and many values, and as many loads of groups as there are kernels for.
TEST(ChoiceOfRows, ByLevelsIsThatOfASort) {
  Random random(11);
  LaunchStream stream(nullptr, false);
  struct Case {
    std::vector<int64_t> lengths;
    int64_t keep, kinds;
  };
  for (const Case& c : {Case{{513, 514, 519, 520, 512, 3}, 512, 5},
                        {{4095, 4096, 4097, 4103, 4104, 4105}, 512, 30'000},
                        {{32'767, 32'768, 32'769, 32'831, 32'832, 32'833}, 512, 300},
                        {{32'768, 40'000, 33'000}, 512, 1},
                        {{9000, 16'384, 12'345, 511, 0}, 64, 900},
                        {{9000, 70, 65, 1}, 1, 2},
                        {{65'537, 8193, 50'001}, 500, 2},
                        {{100'000, 600}, 512, 20'000},
                        {{262'144 + 40'000}, 512, 30'000},
                        {{800'003}, 512, 700},
                        {{1'310'720}, 512, 30'000}}) {
    SCOPED_TRACE(fmt::format("{} of {}, {} ranks", c.keep, fmt::join(c.lengths, ", "), c.kinds));
    const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    RowsOfRanks rows(random, c.lengths, level_stride(longest), c.keep, c.kinds);
    Levels levels(rows);
    cuda::choose_by_levels(levels.choice, rows.rows.data(), static_cast<int64_t>(c.lengths.size()), stream);
    rows.expect_best();
  }
}

TEST(ChoiceOfRows, BlocksByLevelsAreThoseOfASort) {
  Random random(12);
  LaunchStream stream(nullptr, false);
  struct Case {
    std::vector<int64_t> lengths;
    int64_t keep, blocks, kinds;
  };
  for (const Case& c : {Case{{16'385, 16'384, 16'391, 16'392, 20'000}, 512, 2048, 300},
                        {{131'072, 131'073, 131'136, 131'137}, 512, 2048, 30'000},
                        {{140'000, 600, 3}, 512, 2048, 3},
                        {{9000, 577, 569, 5000}, 100, 70, 2},
                        {{300'001}, 512, 2048, 800}}) {
    SCOPED_TRACE(fmt::format("{} blocks of {}, {} ranks", c.blocks, fmt::join(c.lengths, ", "), c.kinds));
    const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    RowsOfRanks rows(random, c.lengths, level_stride(longest), c.keep, c.kinds, c.blocks);
    if (c.kinds == 2) std::fill(rows.rank.begin() + 80, rows.rank.begin() + 8900, kMinusInfinity);  // few blocks to keep
    Levels levels(rows);
    levels.choice.blocks = c.blocks;
    cuda::choose_by_levels(levels.choice, rows.rows.data(), static_cast<int64_t>(c.lengths.size()), stream);
    rows.expect_best();
    rows.expect_bits();
  }
}

// Ranks of the listed blocks alone, with as many of them good as are wanted, or fewer.
TEST(ChoiceOfRows, AmongListedBlocksIsThatOfAllRows) {
  Random random(13);
  LaunchStream stream(nullptr, false);
  struct Case {
    std::vector<int64_t> lengths;
    int64_t keep, blocks, kinds;
    bool newest = true, good = true;
  };
  for (const Case& c : {Case{{20'000, 16'385, 16'384, 600, 512, 17'001}, 512, 2048, 300},
                        {{2300, 600, 2295}, 512, 140, 5, false},
                        {{2300, 2299, 1800}, 512, 140, 30'000, true, false},
                        {{3000, 4099}, 300, 20, 400},  // all candidates, and others behind them
                        {{300, 299, 140, 33}, 32, 16, 2},
                        {{70'000, 524'289}, 512, 2048, 30'000}}) {
    SCOPED_TRACE(fmt::format("{} of {} blocks of {}", c.keep, c.blocks, fmt::join(c.lengths, ", ")));
    const int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    RowsOfRanks all(random, c.lengths, level_stride(longest), c.keep, c.kinds, c.blocks);
    RowsOfRanks few(random, c.lengths, level_stride(longest), c.keep, c.kinds, c.blocks);  // its ranks are written anew
    few.rank.assign(c.lengths.size() * static_cast<size_t>(level_stride(c.blocks * 8)), 0xffff);
    few.stride = level_stride(c.blocks * 8);
    Levels levels(few);
    levels.list.assign(c.lengths.size() * static_cast<size_t>(c.blocks), -1);
    levels.listed.assign(c.lengths.size(), -1);
    levels.choice.list = levels.list.data();
    levels.choice.listed = levels.listed.data();
    levels.choice.list_stride = c.blocks;
    std::vector<std::vector<int32_t>> lists;
    for (size_t r = 0; r < c.lengths.size(); ++r) {
      const int64_t count = (c.lengths[r] + 7) / 8;
      std::vector<int32_t> blocks;
      for (int64_t b = 0; b < count; ++b) blocks.push_back(static_cast<int32_t>(b));
      if (few.rows[r].restricted) {
        for (size_t i = blocks.size() - 1; i > 0; --i)
          std::swap(blocks[i], blocks[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
        blocks.resize(static_cast<size_t>(c.blocks));
        if (c.newest) blocks[0] = static_cast<int32_t>(count - 1);
        std::sort(blocks.begin(), blocks.end());
        blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
        // Behind the row's last block bits mean nothing.
        uint64_t* bits = few.bits.data() + r * static_cast<size_t>(few.words);
        for (int64_t b = 0; b < count; ++b) bits[b / 64] &= ~(uint64_t{1} << b % 64);
        for (int32_t b : blocks) bits[b / 64] |= uint64_t{1} << b % 64;
      }
      uint16_t* row = all.rank.data() + static_cast<int64_t>(r) * all.stride;
      for (int64_t j = 0; j < c.lengths[r]; ++j) {
        if (!std::binary_search(blocks.begin(), blocks.end(), static_cast<int32_t>(j / 8))) row[j] = kMinusInfinity;
        if (!c.good && random.below(2) == 0) row[j] = j % 3 == 0 ? kNan : kMinusInfinity;
      }
      for (size_t i = 0; i < blocks.size() * 8; ++i) {
        const int64_t j = blocks[i / 8] * int64_t{8} + static_cast<int64_t>(i % 8);
        if (j < c.lengths[r] && few.rows[r].scored) few.rank[r * static_cast<size_t>(few.stride) + i] = row[j];
      }
      lists.push_back(blocks);
    }
    const auto count = static_cast<int64_t>(c.lengths.size());
    cuda::list_blocks(levels.choice, few.rows.data(), count, stream);
    for (size_t r = 0; r < c.lengths.size(); ++r) {
      if (!few.rows[r].scored) {
        EXPECT_EQ(levels.listed[r], 0);
        continue;
      }
      const auto first = levels.list.begin() + static_cast<int64_t>(r) * c.blocks;
      EXPECT_EQ(std::vector<int32_t>(first, first + static_cast<int64_t>(lists[r].size())), lists[r]) << "row " << r;
      const int64_t last = lists[r].back();
      EXPECT_EQ(levels.listed[r],
                (static_cast<int64_t>(lists[r].size()) - 1) * 8 + std::min<int64_t>(8, c.lengths[r] - last * 8));
    }
    cuda::choose_by_levels(levels.choice, few.rows.data(), count, stream);
    for (size_t r = 0; r < c.lengths.size(); ++r) EXPECT_EQ(few.chosen[r], best_of(all.ranks_of(r), c.keep)) << "row " << r;
  }
}

}  // namespace
}  // namespace deepinfer
