// Attention and index kernels, thread by thread on the host (device.h): against the reference, and those for many rows and for
// few against those for any number, bitwise. What only a GPU can show, timing, races and the units' own rounding, is
// cuda_ops_test's.

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/backends.h"
#include "ops/cuda/emulated/emulated_backend.h"
#include "ops/op_compare.h"

namespace deepinfer {
namespace {

using testing::EmulatedBackend;
using testing::EmulatedKernelSet;
using testing::expect_close;
using testing::expect_same;
using testing::OpCase;
using testing::Outputs;
using testing::RunRows;

const std::vector<OpCase>& cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> v;
    for (auto& list : {testing::attention_op_cases(), testing::large_attention_op_cases()}) {
      for (const OpCase& c : list) {
        const bool long_contexts = c.name.ends_with("_of20000") || c.name.ends_with("_of140000") || c.name.ends_with("_of2300");
        const bool twice = std::any_of(v.begin(), v.end(), [&](const OpCase& other) { return other.name == c.name; });
        if (!long_contexts && !twice) v.push_back(c);
      }
    }
    return v;
  }();
  return all;
}

class EmulatedKernels : public ::testing::TestWithParam<size_t> {
 protected:
  const OpCase& op() const { return cases()[GetParam()]; }
};

TEST_P(EmulatedKernels, MatchReferenceAndEachOther) {
  testing::OwnedBackend reference = testing::reference_backend(1);
  EmulatedBackend plain(EmulatedKernelSet::kPlain);
  EmulatedBackend few(EmulatedKernelSet::kFew);
  EmulatedBackend wide(EmulatedKernelSet::kWide);
  const RunRows run = op().make();
  const int64_t rows = std::min<int64_t>(op().rows(), 17);  // more than a block of index rows
  const Outputs want = run(*reference.backend, 0, rows);
  const Outputs got = run(wide, 0, rows);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], rows);
  ASSERT_NO_FATAL_FAILURE(expect_same(run(plain, 0, rows), got, 0, rows));
  for (int64_t count : {int64_t{1}, std::min<int64_t>(rows, 5), std::min(rows, cuda::kFewRows)})
    ASSERT_NO_FATAL_FAILURE(expect_same(run(few, 0, count), got, 0, count));
  if (rows > 12) {
    ASSERT_NO_FATAL_FAILURE(expect_same(run(few, 3, 9), got, 3, 9));
  }
  if (rows > 12) {
    ASSERT_NO_FATAL_FAILURE(expect_same(run(wide, 3, 9), got, 3, 9));
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedKernels, ::testing::Range<size_t>(0, cases().size()),
                         [](const auto& param) { return cases()[param.param].name; });

TEST(EmulatedKernelsForManyRows, AreTakenWhereTheyShould) {
  int taken = 0;
  for (const OpCase& c : cases()) {
    const bool attention = c.name.starts_with("sparse_attention_17x512");
    if (!attention && !c.name.starts_with("index_select_plain_4x64_top32_of300_")) continue;
    EmulatedBackend wide(EmulatedKernelSet::kWide);
    const RunRows run = c.make();
    if (!attention) {
      run(wide, 0, 7);
      EXPECT_EQ(wide.wide_calls(), 0) << c.name;
    }
    run(wide, 0, c.rows());
    EXPECT_EQ(wide.wide_calls(), 1) << c.name;
    ++taken;
  }
  EXPECT_EQ(taken, 2);
}

TEST(EmulatedKernelsForManyRows, GoOnFromRowToRow) {
  int taken = 0;
  for (const OpCase& c : cases()) {
    if (!c.name.starts_with("sparse_attention_5x512") && !c.name.starts_with("sparse_attention_2x512")) continue;
    EmulatedBackend plain(EmulatedKernelSet::kPlain);
    EmulatedBackend wide(EmulatedKernelSet::kWide);
    const RunRows run = c.make();
    ASSERT_NO_FATAL_FAILURE(expect_same(run(plain, 0, c.rows()), run(wide, 0, c.rows()), 0, c.rows()));
    EXPECT_EQ(wide.wide_calls(), 1);
    ++taken;
  }
  EXPECT_EQ(taken, 2);
}

}  // namespace
}  // namespace deepinfer
