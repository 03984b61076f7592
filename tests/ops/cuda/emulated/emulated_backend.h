#pragma once

#include <algorithm>
#include <vector>

#include "base/thread_pool.h"
#include "ops/backends.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/index.h"
#include "ops/cuda/scratch_sizes.h"
#include "ops/wrapped_backend.h"

namespace deepinfer::testing {

/// Kernels for any number of rows, and where they take the step those for few or for many.
enum class EmulatedKernelSet { kPlain, kFew, kWide };

/// The reference, but for attention and choice of rows, whose kernels are emulated.
class EmulatedBackend final : public WrappedBackend {
 public:
  explicit EmulatedBackend(EmulatedKernelSet set)
      : WrappedBackend(make_reference_backend(pool())), set_(set), stream_(nullptr, false) {}

  void sparse_attention(const SparseAttentionArgs& args) override {
    if (set_ == EmulatedKernelSet::kWide && cuda::takes_wide_attention(args)) {
      ++wide_calls_;
      return cuda::sparse_attention_wide(args, args.queries.data(), stream_);
    }
    if (set_ == EmulatedKernelSet::kFew && static_cast<int64_t>(args.queries.size()) <= cuda::kFewRows)
      return attend_few(args, {});
    const int64_t longest = longest_of(args);
    const auto pairs =
        static_cast<size_t>(std::min(cuda::kAttentionRows, static_cast<int64_t>(args.queries.size())) * args.heads);
    const auto keys = static_cast<size_t>(cuda::padded_keys(longest));
    std::vector<float> scores(pairs * keys), totals(pairs);
    std::vector<bf16> weights(pairs * keys + 8);
    cuda::AttentionScratch scratch{scores.data(), weights.data(), totals.data()};
    while (reinterpret_cast<uintptr_t>(scratch.weights) % 16 != 0) ++scratch.weights;
    cuda::sparse_attention(args, args.queries.data(), longest, scratch, stream_);
  }

  void rotated_attention(const SparseAttentionArgs& args, bf16* q, const RopeRows& rotation) override {
    if (set_ != EmulatedKernelSet::kFew || static_cast<int64_t>(args.queries.size()) > cuda::kFewRows)
      return Backend::rotated_attention(args, q, rotation);
    attend_few(args, rotation);
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
    const auto count = static_cast<int64_t>(rows.size());
    const bool few = set_ == EmulatedKernelSet::kFew && count <= cuda::kFewRows;
    const cuda::IndexWays ways = cuda::index_ways(args, set_ == EmulatedKernelSet::kWide, few);
    const cuda::IndexSizes sizes = cuda::index_sizes(args, ways);
    // What a kernel reads though nobody wrote it shows.
    std::vector<uint16_t> rank(static_cast<size_t>(count * sizes.row_stride), 0xffff),
        blocks(static_cast<size_t>(count * sizes.block_stride), 0xffff), eights(rank.size() / 8, 0xffff),
        groups(rank.size() / 64, 0xffff);
    std::vector<int32_t> list(static_cast<size_t>(count * sizes.list_stride), -1), listed(static_cast<size_t>(count), -1);
    std::vector<uint32_t> histogram(static_cast<size_t>(2 * count * 256)),
        counts(static_cast<size_t>(2 * count * (sizes.pieces + 1)));
    const cuda::IndexScratch scratch{.rank = rank.data(),
                                     .block_rank = blocks.data(),
                                     .eights = eights.data(),
                                     .groups = groups.data(),
                                     .list = list.data(),
                                     .listed = listed.data(),
                                     .histogram = histogram.data(),
                                     .counts = counts.data(),
                                     .row_stride = sizes.row_stride,
                                     .block_stride = sizes.block_stride};
    wide_calls_ += ways.wide != cuda::WideIndex::kNo ? 1 : 0;
    cuda::select_rows(args, rows.data(), sizes, scratch, ways, stream_);
  }

  int wide_calls() const { return wide_calls_; }

 private:
  static int64_t longest_of(const SparseAttentionArgs& args) {
    int64_t longest = 0;
    for (const AttentionQuery& q : args.queries) longest = std::max(longest, q.window_last - q.window_first + 1 + q.chosen_count);
    return longest;
  }
  void attend_few(const SparseAttentionArgs& args, const RopeRows& rotation) {
    const int64_t longest = longest_of(args);
    std::vector<float> scores(args.queries.size() * static_cast<size_t>(args.heads * cuda::padded_keys(longest)));
    cuda::sparse_attention_few(args, args.queries.data(), longest, rotation, scores.data(), stream_);
  }
  static ThreadPool* pool() {
    static ThreadPool one(1);
    return &one;
  }
  void around(const char* /*name*/, int64_t /*rows*/, FunctionRef<void()> call) override { call(); }

  EmulatedKernelSet set_;
  cuda::LaunchStream stream_;
  int wide_calls_ = 0;
};

}  // namespace deepinfer::testing
