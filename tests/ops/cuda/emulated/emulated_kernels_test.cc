// Attention and index kernels, thread by thread on the host (device.h): against the reference, and those for many rows against
// those for few, bitwise. What only a GPU can show, timing, races and the units' own rounding, is cuda_ops_test's.

#include <gtest/gtest.h>

#include <algorithm>

#include "base/thread_pool.h"
#include "ops/backends.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/index.h"
#include "ops/op_compare.h"
#include "ops/wrapped_backend.h"

namespace deepinfer {
namespace {

using testing::expect_close;
using testing::expect_same;
using testing::OpCase;
using testing::Outputs;
using testing::RunRows;

/// The reference, but for the operators whose kernels are emulated.
class EmulatedBackend final : public WrappedBackend {
 public:
  explicit EmulatedBackend(bool wide) : WrappedBackend(make_reference_backend(pool())), wide_(wide), stream_(nullptr, false) {}

  void sparse_attention(const SparseAttentionArgs& args) override {
    if (wide_ && cuda::takes_wide_attention(args)) {
      ++wide_calls_;
      return cuda::sparse_attention_wide(args, args.queries.data(), stream_);
    }
    int64_t longest = 0;
    for (const AttentionQuery& q : args.queries) longest = std::max(longest, q.window_last - q.window_first + 1 + q.chosen_count);
    const auto pairs =
        static_cast<size_t>(std::min(cuda::kAttentionRows, static_cast<int64_t>(args.queries.size())) * args.heads);
    const auto keys = static_cast<size_t>(cuda::padded_keys(longest));
    std::vector<float> scores(pairs * keys), totals(pairs);
    std::vector<bf16> weights(pairs * keys + 8);
    cuda::AttentionScratch scratch{scores.data(), weights.data(), totals.data()};
    while (reinterpret_cast<uintptr_t>(scratch.weights) % 16 != 0) ++scratch.weights;
    cuda::sparse_attention(args, args.queries.data(), longest, scratch, stream_);
  }

  void index_select(const IndexSelectArgs& args) override {
    std::vector<cuda::IndexRow> rows;
    for (IndexQuery& q : args.queries) {
      const bool scored = q.visible > args.topk;
      const bool restricted = scored && args.mode != IndexSelectArgs::Candidates::kNone &&
                              (q.visible + args.candidate_block_size - 1) / args.candidate_block_size > args.candidate_blocks;
      rows.push_back({q.keys, q.visible, q.chosen, scored, restricted});
      q.chosen_count = std::min(args.topk, q.visible);
    }
    const cuda::IndexSizes sizes = cuda::index_sizes(args);
    const auto count = static_cast<int64_t>(rows.size());
    std::vector<uint16_t> rank(static_cast<size_t>(count * sizes.row_stride)),
        blocks(static_cast<size_t>(count * sizes.block_stride));
    std::vector<uint32_t> histogram(static_cast<size_t>(2 * count * 256)),
        counts(static_cast<size_t>(2 * count * (sizes.pieces + 1)));
    const cuda::IndexScratch scratch{.rank = rank.data(),
                                     .block_rank = blocks.data(),
                                     .histogram = histogram.data(),
                                     .counts = counts.data(),
                                     .row_stride = sizes.row_stride,
                                     .block_stride = sizes.block_stride};
    const bool wide = wide_ && cuda::takes_wide_index(args);
    wide_calls_ += wide ? 1 : 0;
    cuda::select_rows(args, rows.data(), sizes, scratch, wide, stream_);
  }

  int wide_calls() const { return wide_calls_; }

 private:
  static ThreadPool* pool() {
    static ThreadPool one(1);
    return &one;
  }
  void around(const char* /*name*/, int64_t /*rows*/, FunctionRef<void()> call) override { call(); }

  bool wide_;
  cuda::LaunchStream stream_;
  int wide_calls_ = 0;
};

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
  EmulatedBackend few(false);
  EmulatedBackend wide(true);
  const RunRows run = op().make();
  const int64_t rows = std::min<int64_t>(op().rows(), 17);  // more than a block of index rows
  const Outputs want = run(*reference.backend, 0, rows);
  const Outputs got = run(wide, 0, rows);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], rows);
  ASSERT_NO_FATAL_FAILURE(expect_same(run(few, 0, rows), got, 0, rows));
  if (rows > 12) {
    ASSERT_NO_FATAL_FAILURE(expect_same(run(wide, 3, 9), got, 3, 9));
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedKernels, ::testing::Range<size_t>(0, cases().size()),
                         [](const auto& param) { return cases()[param.param].name; });

TEST(EmulatedKernelsForManyRows, AreTakenWhereTheyShould) {
  int taken = 0;
  for (const OpCase& c : cases()) {
    const bool attention =
        c.name.starts_with("sparse_attention_17x512") || c.name.starts_with("index_select_plain_4x64_top32_of300_");
    if (!attention) continue;
    EmulatedBackend wide(true);
    const RunRows run = c.make();
    run(wide, 0, 7);
    EXPECT_EQ(wide.wide_calls(), 0) << c.name;
    run(wide, 0, c.rows());
    EXPECT_EQ(wide.wide_calls(), 1) << c.name;
    ++taken;
  }
  EXPECT_EQ(taken, 2);
}

}  // namespace
}  // namespace deepinfer
