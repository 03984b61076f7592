// Index scores, rounded as profile R does, as 16-bit ranks: a bf16 score has no more values.

#include <algorithm>

#include "ops/cuda/choose.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/index.h"
#include "ops/cuda/index_scores.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/shape_buckets.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKeysPerWarp = 32;
constexpr int64_t kKeysPerBlock = 512;  // at least
constexpr int64_t kMostKeysPerBlock = 8192;
constexpr uint16_t kForced = 0xffff;

// Whether any candidate block meets the keys [begin, end).
__device__ bool any_candidate(const uint64_t* bits, int64_t block_size, int64_t begin, int64_t end) {
  for (int64_t b = begin / block_size; b <= (end - 1) / block_size; ++b) {
    if ((bits[b / 64] >> (b % 64) & 1) != 0) return true;
  }
  return false;
}

// Grid: blocks of keys, rows. Keys are the A operand, 32 a warp; heads are B, interleaved in shared memory
// [heads up to 8s][dim + padding]; a warp goes through all heads, 32 at a time.
__global__ void __launch_bounds__(kThreads) score_kernel(const ScoreArgs args) {
  take_turn();
  auto* shared = dynamic_shared<uint4>();
  auto* query = reinterpret_cast<bf16*>(shared);
  const int64_t r = blockIdx.y;
  const IndexRow& row = args.rows[r];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * args.block_keys;
  const int64_t visible = args.list != nullptr ? args.listed[r] : row.visible;  // or listed
  if (!row.scored || first >= visible) return;
  const int heads = args.heads;
  const int padded = (heads + 31) / 32 * 32;
  const int chunks = (args.dim + 127) / 128;
  const int stride = chunks * 128 + 8;  // 16 bytes of padding: the rows of a load lie in different banks
  auto* weights = reinterpret_cast<uint32_t*>(query + padded * stride);  // pairs
  for (int h = static_cast<int>(threadIdx.x); h < padded; h += kThreads)
    reinterpret_cast<bf16*>(weights)[h] = h < heads ? args.weights[r * heads + h] : bf16{};
  const int slots = stride / 8;
  for (int i = static_cast<int>(threadIdx.x); i < padded * slots; i += kThreads) {
    const int h = i / slots;
    const int d = i % slots * 8;
    // Heads begin at any even address: an odd number of 16 bytes is possible in small models.
    uint4 v = make_uint4(0, 0, 0, 0);
    if (h < heads && d < args.dim) v = load_unaligned(reinterpret_cast<const uint8_t*>(args.q + (r * heads + h) * args.dim + d));
    *reinterpret_cast<uint4*>(query + h * stride + d) = interleave(v);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  for (int64_t base = first + warp * kKeysPerWarp; base < min(first + args.block_keys, visible);
       base += kThreads / kWarp * kKeysPerWarp) {
    const int64_t behind = min(base + kKeysPerWarp, visible);
    if (args.restrict_rows && row.restricted && !any_candidate(args.bits + r * args.words, args.block_size, base, behind)) {
      if (base + lane < behind) args.rank[r * args.row_stride + base + lane] = kMinusInfinity;
      continue;
    }
    float sums[4] = {};
    const uint8_t* keys[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      auto j = static_cast<uint32_t>(min(base + g + 8 * i, visible - 1));  // 64-bit divisions are slow
      if (args.list != nullptr)
        j = static_cast<uint32_t>(args.list[r * args.list_stride + j / kListedKeys]) * kListedKeys + j % kListedKeys;
      const auto rows_per_page = static_cast<uint32_t>(row.keys.rows_per_page);
      keys[i] = row.keys.pages[j / rows_per_page] + row.keys.offset + j % rows_per_page * row.keys.row_bytes;
    }
    for (int h0 = 0; h0 < padded; h0 += 32) {
      float c[2][4][4] = {};
      for (int chunk = 0; chunk < chunks; ++chunk) {
        WeightChunk<WeightFormat::kFp4> k;
        const int column = chunk * 128 + t * 32;
        const bool inside = column < args.dim;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          k.rows[i] = inside ? load_unaligned(keys[i] + column / 2) : make_uint4(0, 0, 0, 0);
          k.scales[i] = inside ? keys[i][args.dim / 2 + column / kScaleGroup] : 127;
        }
        const auto inputs = [&](int tile, int pair) {
          return *reinterpret_cast<const uint4*>(query + (h0 + tile * 8 + g) * stride + chunk * 128 + t * 32 + pair * 8);
        };
        multiply_chunk<WeightFormat::kFp4, true, 4>(k, inputs, c);
      }
      // Dots, products and sums are rounded as spec §6.4 says; a lane has heads 2t and 2t + 1 of each tile.
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        const uint32_t w = weights[(h0 + tile * 8) / 2 + t];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t product =
                multiply_bf16x2(positive_pair(round_pair(c[m][tile][2 * half], c[m][tile][2 * half + 1])), w);
            sums[m * 2 + half] += widen_low(product);
            sums[m * 2 + half] += widen_high(product);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 1);
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], 2);
    }
    const int64_t j = base + g + 8 * t;  // lane t of a key's four writes for its rank
    float score = t == 0 ? sums[0] : t == 1 ? sums[1] : t == 2 ? sums[2] : sums[3];
    uint16_t rank = rank_of(round_to_bf16(score));
    if (j >= visible) continue;
    if (args.restrict_rows && row.restricted) {
      const uint32_t b = static_cast<uint32_t>(j) / static_cast<uint32_t>(args.block_size);
      if ((args.bits[r * args.words + b / 64] >> (b % 64) & 1) == 0) rank = kMinusInfinity;
    }
    args.rank[r * args.row_stride + j] = rank;
  }
}

// Queries that take all they see.
__global__ void all_kernel(const IndexRow* rows) {
  take_turn();
  const IndexRow& row = rows[blockIdx.x];
  if (row.scored) return;
  for (int64_t j = threadIdx.x; j < row.visible; j += blockDim.x) row.chosen[j] = static_cast<int32_t>(j);
}

// Best rank of each candidate block; the block of the newest row is always kept. Clears the bits.
__global__ void block_kernel(const IndexRow* rows, const uint16_t* rank, int64_t row_stride, int64_t block_size,
                             uint16_t* block_rank, int64_t block_stride, uint64_t* bits, int64_t words) {
  take_turn();
  const int64_t r = blockIdx.y;
  const IndexRow& row = rows[r];
  if (!row.scored || !row.restricted) return;
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (b < words) bits[r * words + b] = 0;
  const int64_t count = (row.visible + block_size - 1) / block_size;
  if (b >= count) return;
  const uint16_t* own = rank + r * row_stride + b * block_size;
  const auto length = static_cast<int>(min(block_size, row.visible - b * block_size));
  uint16_t best = kMinusInfinity;
  if (length == 8 && reinterpret_cast<uintptr_t>(own) % 16 == 0) {  // the release's blocks: one load
    const uint4 v = *reinterpret_cast<const uint4*>(own);
    for (const uint32_t pair : {v.x, v.y, v.z, v.w}) best = max(best, static_cast<uint16_t>(max(pair & 0xffff, pair >> 16)));
  } else {
    for (int j = 0; j < length; ++j) best = max(best, own[j]);
  }
  block_rank[r * block_stride + b] = b == count - 1 ? kForced : best;
}

void launch_scores(ScoreArgs args, int64_t longest, bool few, LaunchStream& stream) {
  const int64_t heads = (args.heads + 31) / 32 * 32;
  const int64_t stride = (args.dim + 127) / 128 * 128 + 8;
  const auto shared = static_cast<size_t>(heads * stride * 2 + heads * 4);
  if (shared > 220 << 10) cuda_failed(__FILE__, __LINE__, "index_select", "too many index heads");
  // Each block brings its query to shared memory: few blocks, as long as they fill the device several times.
  constexpr int64_t kBlocks = 132 * 16;
  const int64_t share = longest * args.row_count / kBlocks / kKeysPerBlock * kKeysPerBlock;
  constexpr int64_t kOneTurn = kThreads / kWarp * kKeysPerWarp;  // of a block's warps
  args.block_keys = std::clamp(share, few ? kOneTurn : kKeysPerBlock, kMostKeysPerBlock);
  const dim3 grid(static_cast<unsigned>((longest + args.block_keys - 1) / args.block_keys),
                  static_cast<unsigned>(args.row_count));
  stream.launch(score_kernel, grid, kThreads, shared, args);
}

}  // namespace

IndexWays index_ways(const IndexSelectArgs& args, bool wide, bool few) {
  IndexWays ways{.wide = wide ? wide_index_of(args) : WideIndex::kNo, .few = few, .by_row = few || wide};
  int64_t longest = 0;
  for (const IndexQuery& q : args.queries) longest = std::max(longest, q.visible);
  ways.listed = ways.by_row && ways.wide != WideIndex::kManyRows && args.mode == IndexSelectArgs::Candidates::kRestrict &&
                args.candidate_block_size == kListedKeys && args.candidate_blocks * kListedKeys < longest &&
                args.candidate_blocks * kListedKeys <= kMostLevelRanks && args.topk <= kMostLevelKeep;
  return ways;
}

IndexSizes index_sizes(const IndexSelectArgs& args, const IndexWays& ways) {
  IndexSizes sizes;
  for (const IndexQuery& q : args.queries) {
    if (q.visible > args.topk) sizes.longest = std::max(sizes.longest, q.visible);
  }
  sizes.longest = length_bucket(sizes.longest);  // few shapes; what lies behind a row's own end is not looked at
  if (ways.listed) {
    sizes.longest = args.candidate_blocks * kListedKeys;
    sizes.list_stride = args.candidate_blocks;
  }
  sizes.row_stride = (sizes.longest + kLevelStride - 1) / kLevelStride * kLevelStride;
  if (args.mode == IndexSelectArgs::Candidates::kBuild && args.candidate_block_size > 0)
    sizes.block_stride = (sizes.longest + args.candidate_block_size - 1) / args.candidate_block_size;
  sizes.pieces = (sizes.longest + kChoicePiece - 1) / kChoicePiece;
  return sizes;
}

void select_rows(const IndexSelectArgs& args, const IndexRow* rows, const IndexSizes& sizes, const IndexScratch& scratch,
                 const IndexWays& ways, LaunchStream& stream) {
  const auto count = static_cast<unsigned>(args.queries.size());
  const bool builds = sizes.block_stride > args.candidate_blocks;
  LevelChoice levels{.rank = scratch.rank,
                     .eights = scratch.eights,
                     .groups = scratch.groups,
                     .stride = sizes.row_stride,
                     .keep = args.topk,
                     .bits = args.candidates,
                     .words = args.candidate_words,
                     .list = ways.listed ? scratch.list : nullptr,
                     .listed = ways.listed ? scratch.listed : nullptr,
                     .list_stride = sizes.list_stride};
  const bool by_levels = ways.listed || (ways.by_row && sizes.longest > kMostRowRanks && sizes.row_stride <= kMostLevelRanks &&
                                         args.topk <= kMostLevelKeep);
  const bool by_row = !by_levels && ways.by_row && sizes.longest > 0 && sizes.longest <= kMostRowRanks;
  if (!by_levels && !by_row) stream.launch(all_kernel, count, kThreads, 0, rows);  // the others take care of all of them
  if (sizes.longest == 0) return;
  if (ways.listed) list_blocks(levels, rows, count, stream);
  const ScoreArgs score{.q = args.q,
                        .weights = args.weights,
                        .rows = rows,
                        .row_count = static_cast<int64_t>(count),
                        .heads = static_cast<int>(args.heads),
                        .dim = static_cast<int>(args.dim),
                        .rank = scratch.rank,
                        .row_stride = sizes.row_stride,
                        .restrict_rows = args.mode == IndexSelectArgs::Candidates::kRestrict && !ways.listed,
                        .bits = args.candidates,
                        .words = args.candidate_words,
                        .block_size = args.candidate_block_size,
                        .list = levels.list,
                        .listed = levels.listed,
                        .list_stride = levels.list_stride};
  if (ways.wide != WideIndex::kNo) {
    score_wide(score, ways.wide, sizes.longest, stream);
  } else {
    launch_scores(score, sizes.longest, ways.few && ways.by_row, stream);
  }
  if (builds && by_levels && args.candidate_block_size == kListedKeys && args.candidate_blocks <= kMostLevelBlocks) {
    levels.blocks = args.candidate_blocks;
  } else if (builds) {
    const dim3 blocks(static_cast<unsigned>((std::max(sizes.block_stride, args.candidate_words) + kThreads - 1) / kThreads),
                      count);
    stream.launch(block_kernel, blocks, kThreads, 0, rows, scratch.rank, sizes.row_stride, args.candidate_block_size,
                  scratch.block_rank, sizes.block_stride, args.candidates, args.candidate_words);
    const Choice choice{.rank = scratch.block_rank,
                        .stride = sizes.block_stride,
                        .pieces = (sizes.block_stride + kChoicePiece - 1) / kChoicePiece,
                        .keep = args.candidate_blocks,
                        .blocks = true,
                        .block_size = args.candidate_block_size,
                        .words = args.candidate_words,
                        .bits = args.candidates};
    if (ways.by_row && sizes.block_stride <= kMostRowRanks) {
      choose_by_row(choice, rows, count, stream);
    } else {
      choose(choice, rows, count, scratch, stream);
    }
  }
  if (by_levels) return choose_by_levels(levels, rows, count, stream);
  const Choice choice{.rank = scratch.rank, .stride = sizes.row_stride, .pieces = sizes.pieces, .keep = args.topk};
  if (by_row) return choose_by_row(choice, rows, count, stream);
  choose(choice, rows, count, scratch, stream);
}

}  // namespace deepinfer::cuda
