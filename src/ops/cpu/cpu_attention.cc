// Attention and indexer of the CPU backend. A step with many rows gives each row to a thread; a step with few cuts the row
// itself, by key blocks and then by heads. The arithmetic is the same.

#include <algorithm>
#include <cmath>

#include "ops/candidates.h"
#include "ops/cpu/cpu_backend.h"

namespace deepinfer {
namespace {

constexpr int64_t kIndexBlock = 512;  // index keys scored at a time

int64_t key_count(const AttentionQuery& query) { return query.window_last - query.window_first + 1 + query.chosen_count; }

float softmax_scale(int64_t dim) { return 1.0f / std::sqrt(static_cast<float>(dim)); }

}  // namespace

void CpuBackend::attend_alone(const SparseAttentionArgs& args, int64_t row) {
  pool_->run(static_cast<int64_t>(args.queries.size()) - row, [&](int64_t i, int thread) {
    const int64_t r = row + i;
    Local& local = local_[static_cast<size_t>(thread)];
    const AttentionQuery& query = args.queries[static_cast<size_t>(r)];
    const int64_t count = key_count(query);
    local.query.reserve_discard(kernels_.query_bytes(args.heads, args.dim));
    local.keys.reserve_discard(kernels_.keys_bytes(count, args.dim));
    local.scores.reserve_discard((count + 1) * cpu::padded_heads(args.heads));
    kernels_.pack_query(args.q + r * args.heads * args.dim, args.heads, args.dim, local.query.data());
    for (int64_t first = 0; first < count; first += cpu::kKeyBlock) {
      kernels_.score_block(query, first, std::min(count, first + cpu::kKeyBlock), local.query.data(), args.heads, args.dim,
                           softmax_scale(args.dim), local.keys.data(), local.scores.data());
    }
    kernels_.weigh_heads(0, args.heads, args.heads, args.dim, count, args.sinks, local.keys.data(), local.scores.data(),
                         args.out + r * args.heads * args.dim);
  });
}

void CpuBackend::attend_shared(const SparseAttentionArgs& args, int64_t row) {
  const AttentionQuery& query = args.queries[static_cast<size_t>(row)];
  const int64_t count = key_count(query);
  query_.reserve_discard(kernels_.query_bytes(args.heads, args.dim));
  keys_.reserve_discard(kernels_.keys_bytes(count, args.dim));
  scores_.reserve_discard((count + 1) * cpu::padded_heads(args.heads));
  kernels_.pack_query(args.q + row * args.heads * args.dim, args.heads, args.dim, query_.data());
  // A small row isn't worth the threads.
  const bool small = count * args.heads * args.dim < 512 << 10;
  const int64_t keys_per_chunk = small ? count : cpu::kKeyBlock;
  pool_->run_ranges(count, keys_per_chunk, [&](int64_t begin, int64_t end, int) {
    for (int64_t first = begin; first < end; first += cpu::kKeyBlock) {
      kernels_.score_block(query, first, std::min(end, first + cpu::kKeyBlock), query_.data(), args.heads, args.dim,
                           softmax_scale(args.dim), keys_.data(), scores_.data());
    }
  });
  pool_->run_ranges(args.heads, small ? args.heads : cpu::kHeadLanes, [&](int64_t begin, int64_t end, int) {
    kernels_.weigh_heads(begin, end, args.heads, args.dim, count, args.sinks, keys_.data(), scores_.data(),
                         args.out + row * args.heads * args.dim);
  });
}

void CpuBackend::sparse_attention(const SparseAttentionArgs& args) {
  const auto rows = static_cast<int64_t>(args.queries.size());
  // Few rows, or the odd ones over: cut them up. The limit is a constant, not the number of threads.
  if (rows >= 8) return attend_alone(args, 0);
  for (int64_t r = 0; r < rows; ++r) attend_shared(args, r);
}

void CpuBackend::index_select(const IndexSelectArgs& args) {
  const auto rows = static_cast<int64_t>(args.queries.size());
  const int64_t padded = cpu::padded_heads(args.heads);
  const auto weights_of = [&](int64_t r, AlignedBuffer<float>& out) {
    out.reserve_discard(padded);
    for (int64_t h = 0; h < padded; ++h) out[h] = h < args.heads ? to_float(args.weights[r * args.heads + h]) : 0.0f;
  };
  const auto choose = [&](int64_t r, float* scores, Local& local) {
    IndexQuery& query = args.queries[static_cast<size_t>(r)];
    uint64_t* bits = args.candidates + r * args.candidate_words;
    if (args.mode == IndexSelectArgs::Candidates::kBuild) {
      build_candidates(scores, query.visible, args, local.rank_keys, local.block_scores, local.blocks, bits);
    } else if (args.mode == IndexSelectArgs::Candidates::kRestrict) {
      apply_candidates(scores, query.visible, args, bits);
    }
    query.chosen_count = args.topk;
    choose_top(scores, query.visible, args.topk, local.rank_keys, query.chosen);
  };
  if (rows >= 8) {
    pool_->run(rows, [&](int64_t r, int thread) {
      IndexQuery& query = args.queries[static_cast<size_t>(r)];
      if (choose_all(query, args.topk)) return;
      Local& local = local_[static_cast<size_t>(thread)];
      local.query.reserve_discard(kernels_.query_bytes(args.heads, args.dim));
      local.scores.reserve_discard(query.visible);
      weights_of(r, local.weights);
      kernels_.pack_query(args.q + r * args.heads * args.dim, args.heads, args.dim, local.query.data());
      kernels_.score_index(query.keys, 0, query.visible, local.query.data(), local.weights.data(), args.heads, args.dim,
                           local.scores.data());
      choose(r, local.scores.data(), local);
    });
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    IndexQuery& query = args.queries[static_cast<size_t>(r)];
    if (choose_all(query, args.topk)) continue;
    query_.reserve_discard(kernels_.query_bytes(args.heads, args.dim));
    scores_.reserve_discard(query.visible);
    weights_of(r, index_weights_);
    kernels_.pack_query(args.q + r * args.heads * args.dim, args.heads, args.dim, query_.data());
    pool_->run_ranges(query.visible, kIndexBlock, [&](int64_t begin, int64_t end, int) {
      kernels_.score_index(query.keys, begin, end, query_.data(), index_weights_.data(), args.heads, args.dim,
                           scores_.data() + begin);
    });
    choose(r, scores_.data(), local_[0]);
  }
}

}  // namespace deepinfer
