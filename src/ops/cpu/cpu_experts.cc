// Router and experts of the CPU backend. Tokens are sorted by expert, so that each expert's weights are read once a step; the
// outputs of a token are added in ascending expert order, whatever the order of work (spec §4).

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/top_k.h"

namespace deepinfer {

using cpu::PackKind;

namespace {
// Output rows of an expert's matrix in one piece of work. The shared expert's pieces, twice as heavy, are handed out first, so
// that threads end together.
constexpr int64_t kExpertChunk = 128;
}  // namespace

void CpuBackend::route(const RouteArgs& args, int64_t rows) {
  const int64_t n = args.gate.out;
  logits_.reserve_discard(rows * n);
  linear_bf16_fp32(args.v, rows, args.gate, logits_.data());
  for_rows(rows, 16 * n, [&](int64_t r, int thread) {
    std::vector<uint64_t>& keys = local_[static_cast<size_t>(thread)].rank_keys;
    keys.resize(static_cast<size_t>(n));
    float* score = logits_.data() + r * n;
    const float* bias = args.image != nullptr && args.image[r] != 0 ? args.bias_vl : args.bias;
    for (int64_t e = 0; e < n; ++e) {
      const float z = score[e] / args.temperature;
      score[e] = std::sqrt(z > 20.0f ? z : std::log1p(std::exp(z)));
      keys[static_cast<size_t>(e)] = rank_key(score[e] + bias[e], static_cast<uint32_t>(e));
    }
    std::partial_sort(keys.begin(), keys.begin() + args.topk, keys.end());
    float total = 0;
    for (int64_t k = 0; k < args.topk; ++k) {
      const auto e = static_cast<int32_t>(keys[static_cast<size_t>(k)] & 0xffffffffu);
      args.experts[r * args.topk + k] = e;
      args.weights[r * args.topk + k] = score[e];
      total += score[e];
    }
    for (int64_t k = 0; k < args.topk; ++k) {
      float& w = args.weights[r * args.topk + k];
      if (args.normalize && args.topk > 1) w /= total + 1e-20f;
      w *= args.scale;
    }
  });
  if (args.counts == nullptr) return;
  for (int64_t i = 0; i < std::min<int64_t>(rows, *args.counted) * args.topk; ++i) ++args.counts[args.experts[i]];
}

// Counting sort of (token, slot) pairs by expert; groups_ of the experts in use, then the shared expert with every token.
void CpuBackend::sort_pairs(const ExpertsArgs& args, int64_t rows) {
  const int64_t routed = rows * args.topk;
  const auto experts = static_cast<int64_t>(args.routed.size());
  pair_token_.resize(static_cast<size_t>(routed + rows));
  pair_weight_.resize(static_cast<size_t>(routed + rows));
  pair_of_.resize(static_cast<size_t>(rows * (args.topk + 1)));
  group_at_.assign(static_cast<size_t>(experts + 1), 0);
  for (int64_t i = 0; i < routed; ++i) ++group_at_[static_cast<size_t>(args.experts[i] + 1)];
  groups_.clear();
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = group_at_[static_cast<size_t>(e + 1)];
    group_at_[static_cast<size_t>(e + 1)] += group_at_[static_cast<size_t>(e)];
    if (count > 0) groups_.push_back({e, group_at_[static_cast<size_t>(e)], count});
  }
  groups_.push_back({experts, routed, rows});
  std::vector<uint64_t>& order = local_[0].rank_keys;
  order.resize(static_cast<size_t>(args.topk));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < args.topk; ++k) {
      order[static_cast<size_t>(k)] = static_cast<uint64_t>(args.experts[r * args.topk + k]) << 32 | static_cast<uint64_t>(k);
    }
    std::sort(order.begin(), order.end());
    for (int64_t k = 0; k < args.topk; ++k) {
      const auto slot = static_cast<int64_t>(order[static_cast<size_t>(k)] & 0xffffffffu);
      const int64_t pair = group_at_[static_cast<size_t>(args.experts[r * args.topk + slot])]++;
      pair_token_[static_cast<size_t>(pair)] = r;
      pair_weight_[static_cast<size_t>(pair)] = args.weights[r * args.topk + slot];
      pair_of_[static_cast<size_t>(r * (args.topk + 1) + k)] = pair;
    }
    pair_token_[static_cast<size_t>(routed + r)] = r;
    pair_weight_[static_cast<size_t>(routed + r)] = 1.0f;  // the shared expert has no weight
    pair_of_[static_cast<size_t>(r * (args.topk + 1) + args.topk)] = routed + r;
  }
}

// Every group's inputs, tile after tile; the shared expert's in the FP8 layout, the routed ones' in the FP4 layout.
void CpuBackend::pack_expert_inputs(const ExpertsArgs& args, int64_t rows) {
  const int64_t hidden = args.shared_w1.in;
  const int64_t bytes =
      std::max(kernels_.packed_row_bytes(PackKind::kFp4, hidden), kernels_.packed_row_bytes(PackKind::kFp8, hidden));
  quantized_.reserve_discard(rows * hidden);
  for_rows(rows, hidden, [&](int64_t r, int) { rows_.round_fp8(args.v + r * hidden, hidden, quantized_.data() + r * hidden); });
  const auto pairs = static_cast<int64_t>(pair_token_.size());
  pair_inputs_.reserve_discard(pairs * bytes);
  pool_->run(static_cast<int64_t>(groups_.size()), [&](int64_t g, int) {
    const ExpertGroup& group = groups_[static_cast<size_t>(g)];
    const PackKind kind = g + 1 == static_cast<int64_t>(groups_.size()) ? PackKind::kFp8 : PackKind::kFp4;
    const int64_t tile = kernels_.tile_rows(kind);
    const int64_t row_bytes = kernels_.packed_row_bytes(kind, hidden);
    for (int64_t i = 0; i < group.count; ++i) {
      const int64_t first = i / tile * tile;
      kernels_.pack(kind, quantized_.data() + pair_token_[static_cast<size_t>(group.first + i)] * hidden, hidden,
                    pair_inputs_.data() + group.first * bytes + first * row_bytes, std::min(tile, group.count - first),
                    i - first);
    }
  });
}

// h of every pair: both input matrices, SwiGLU, weight. One piece of work: some columns of h for all tokens of an expert.
void CpuBackend::expert_hidden(const ExpertsArgs& args) {
  const int64_t hidden = args.shared_w1.in;
  const int64_t inner = args.shared_w1.out;
  const int64_t bytes =
      std::max(kernels_.packed_row_bytes(PackKind::kFp4, hidden), kernels_.packed_row_bytes(PackKind::kFp8, hidden));
  const int64_t chunks = (inner + kExpertChunk - 1) / kExpertChunk;
  const auto groups = static_cast<int64_t>(groups_.size());
  pair_hidden_.reserve_discard(static_cast<int64_t>(pair_token_.size()) * inner);
  const auto piece = [&](int64_t task, int thread) {
    const int64_t g = groups - 1 - task / chunks;
    const ExpertGroup& group = groups_[static_cast<size_t>(g)];
    const int64_t begin = task % chunks * kExpertChunk;
    const int64_t end = std::min(inner, begin + kExpertChunk);
    const int64_t n = end - begin;
    Local& local = local_[static_cast<size_t>(thread)];
    local.y.reserve_discard(group.count * n);
    local.y2.reserve_discard(group.count * n);
    const char* x = pair_inputs_.data() + group.first * bytes;
    if (g + 1 == groups) {
      kernels_.multiply_fp8(args.shared_w1, begin, end, x, group.count, scratch(thread), local.y.data(), n);
      kernels_.multiply_fp8(args.shared_w3, begin, end, x, group.count, scratch(thread), local.y2.data(), n);
    } else {
      const ExpertWeights& w = args.routed[static_cast<size_t>(group.expert)];
      kernels_.multiply_fp4(w.w1, begin, end, x, group.count, scratch(thread), local.y.data(), n);
      kernels_.multiply_fp4(w.w3, begin, end, x, group.count, scratch(thread), local.y2.data(), n);
    }
    for (int64_t i = 0; i < group.count; ++i) {
      rows_.swiglu(local.y.data() + i * n, local.y2.data() + i * n, n, args.swiglu_limit,
                   pair_weight_[static_cast<size_t>(group.first + i)], pair_hidden_.data() + (group.first + i) * inner + begin);
    }
  };
  pool_->run(groups * chunks, piece);
}

void CpuBackend::expert_output(const ExpertsArgs& args) {
  const int64_t hidden = args.shared_w1.in;
  const int64_t inner = args.shared_w1.out;
  const int64_t bytes =
      std::max(kernels_.packed_row_bytes(PackKind::kFp4, inner), kernels_.packed_row_bytes(PackKind::kFp8, inner));
  const auto groups = static_cast<int64_t>(groups_.size());
  const auto pairs = static_cast<int64_t>(pair_token_.size());
  pair_inner_.reserve_discard(pairs * bytes);
  pair_output_.reserve_discard(pairs * hidden);
  for (Local& local : local_) local.row.reserve_discard(inner);
  pool_->run(groups, [&](int64_t g, int thread) {
    const ExpertGroup& group = groups_[static_cast<size_t>(g)];
    const PackKind kind = g + 1 == groups ? PackKind::kFp8 : PackKind::kFp4;
    const int64_t tile = kernels_.tile_rows(kind);
    const int64_t row_bytes = kernels_.packed_row_bytes(kind, inner);
    bf16* rounded = local_[static_cast<size_t>(thread)].row.data();
    for (int64_t i = 0; i < group.count; ++i) {
      const int64_t first = i / tile * tile;
      rows_.round_fp8(pair_hidden_.data() + (group.first + i) * inner, inner, rounded);
      kernels_.pack(kind, rounded, inner, pair_inner_.data() + group.first * bytes + first * row_bytes,
                    std::min(tile, group.count - first), i - first);
    }
  });
  const int64_t chunks = (hidden + kExpertChunk - 1) / kExpertChunk;
  pool_->run(groups * chunks, [&](int64_t task, int thread) {
    const int64_t g = groups - 1 - task / chunks;
    const ExpertGroup& group = groups_[static_cast<size_t>(g)];
    const int64_t begin = task % chunks * kExpertChunk;
    const int64_t end = std::min(hidden, begin + kExpertChunk);
    const int64_t n = end - begin;
    Local& local = local_[static_cast<size_t>(thread)];
    local.y.reserve_discard(group.count * n);
    const char* x = pair_inner_.data() + group.first * bytes;
    if (g + 1 == groups) {
      kernels_.multiply_fp8(args.shared_w2, begin, end, x, group.count, scratch(thread), local.y.data(), n);
    } else {
      kernels_.multiply_fp4(args.routed[static_cast<size_t>(group.expert)].w2, begin, end, x, group.count, scratch(thread),
                            local.y.data(), n);
    }
    for (int64_t i = 0; i < group.count; ++i) {
      rows_.to_bf16_row(local.y.data() + i * n, n, pair_output_.data() + (group.first + i) * hidden + begin);
    }
  });
}

void CpuBackend::experts(const ExpertsArgs& args, int64_t rows) {
  const int64_t hidden = args.shared_w1.in;
  sort_pairs(args, rows);
  pack_expert_inputs(args, rows);
  expert_hidden(args);
  expert_output(args);
  for (Local& local : local_) local.y.reserve_discard(hidden);
  for_rows(rows, (args.topk + 1) * hidden, [&](int64_t r, int thread) {
    float* total = local_[static_cast<size_t>(thread)].y.data();
    std::fill_n(total, hidden, 0.0f);
    for (int64_t k = 0; k <= args.topk; ++k) {
      rows_.accumulate(pair_output_.data() + pair_of_[static_cast<size_t>(r * (args.topk + 1) + k)] * hidden, hidden, total);
    }
    rows_.to_bf16_row(total, hidden, args.y + r * hidden);
  });
}

}  // namespace deepinfer
