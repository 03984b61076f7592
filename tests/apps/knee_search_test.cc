#include "serve/knee_search.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepinfer::bench {
namespace {

/// Searches from `start` on a server that keeps up with less than `capacity`; the number of runs.
int search(KneeSearch& search, double capacity) {
  int runs = 0;
  while (const auto rate = search.next()) {
    EXPECT_GT(*rate, search.kept_up());
    EXPECT_LT(*rate, search.too_much());
    search.tried(*rate, *rate < capacity);
    if (++runs > 100) break;
  }
  return runs;
}

TEST(KneeSearch, EndsAroundTheCapacityWhereverItStarts) {
  for (const double start : {0.5, 1.0, 7.0, 19.0}) {
    for (const double capacity : {0.31, 1.0, 3.7, 40.0, 44.4, 1234.5, 60000.0}) {
      KneeSearch s(start);
      EXPECT_LE(search(s, capacity), 24) << start << " " << capacity;
      EXPECT_LT(s.kept_up(), capacity);
      EXPECT_GE(s.too_much(), capacity);
      EXPECT_LE(s.too_much(), s.kept_up() * KneeSearch::kPrecision * 1.01) << start << " " << capacity;
    }
  }
}

TEST(KneeSearch, BeginsWhereItIsTold) {
  KneeSearch s(3);
  EXPECT_EQ(s.next(), 3);
  s.tried(3, true);
  EXPECT_EQ(s.next(), 6);
  s.tried(6, false);
  EXPECT_EQ(s.next(), 4.24);
}

TEST(KneeSearch, EndsWithoutAKnee) {
  KneeSearch never(8);
  EXPECT_LE(search(never, 0), KneeSearch::kMaxHalvings + 1);
  EXPECT_EQ(never.kept_up(), 0);
  KneeSearch always(8);
  EXPECT_LE(search(always, HUGE_VAL), 20);
  EXPECT_EQ(always.kept_up(), KneeSearch::kMaxRate);
  EXPECT_TRUE(std::isinf(always.too_much()));
}

}  // namespace
}  // namespace deepinfer::bench
