// Index scores of many rows, on warpgroups. The arithmetic is that of index.cu, to the bit. A block has 16 rows of one sequence,
// their queries in shared memory in the order of the products, and a range of keys. A warpgroup takes 64 keys at a time, widens
// them once in registers as the A operand, and multiplies them by four queries of 32 heads at a time. While it adds the heads,
// the others multiply. Rows whose keys are their own are done one by one (index_row.cu).
//
// For 8,192 rows by 36,864 keys that is 3.1 ms at the matrix rate; adding the heads of a score takes some 75 instructions of a
// thread, 0.8 ms of the schedulers if nothing waits; ranks are 0.6 GB.

#include <algorithm>

#include "ops/cuda/index_wide.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/scratch_sizes.h"

namespace deepinfer::cuda {
namespace {

using namespace wide_index;  // NOLINT(google-build-using-namespace)

using Rows = Shape<16, 4>;

struct LaneKeys {
  const uint8_t* row[2];
};
// Keys begin .. end - 1, tile after tile.
class KeyRange {
 public:
  __device__ KeyRange(const KeyPages& pages, int begin, int end) : pages_(pages), begin_(begin), end_(end) {}
  __device__ int tiles() const { return (end_ - begin_ + kTileKeys - 1) / kTileKeys; }
  __device__ LaneKeys find(int tile) const {
    const int base = begin_ + tile * kTileKeys;
    const int row = row_in_tile();
    LaneKeys own;
    if (pages_.rows_per_page % kTileKeys == 0) {  // tiles begin at multiples of theirs: one page has them all
      const uint8_t* first = pages_.row(static_cast<uint32_t>(base));
      const int most = min(end_ - 1 - base, kTileKeys - 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) own.row[i] = first + static_cast<uint32_t>(min(row + 8 * i, most)) * pages_.row_bytes;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) own.row[i] = pages_.row(static_cast<uint32_t>(min(base + row + 8 * i, end_ - 1)));
    }
    return own;
  }
  // The lane's key i, or one that is not there.
  __device__ int key(int tile, int i) const { return begin_ + tile * kTileKeys + row_in_tile() + 8 * i; }

 private:
  const KeyPages& pages_;
  int begin_, end_;
};
__device__ void load_keys(const LaneKeys& keys, int dim, KeyPiece& piece) {
  const int column = thread_index() % kWarp % 4 * 32;
  const bool inside = column < dim;
  // Rows of 68 bytes begin at multiples of four.
  const auto addresses = reinterpret_cast<uintptr_t>(keys.row[0]) | reinterpret_cast<uintptr_t>(keys.row[1]);
  const bool odd = __any_sync(0xffffffffu, addresses % 4 != 0);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    piece.codes[i] = make_uint4(0, 0, 0, 0);
    piece.scales[i] = 127;
    if (!inside) continue;
    const uint8_t* codes = keys.row[i] + column / 2;
    if (odd) {
      piece.codes[i] = load_unaligned(codes);
    } else {
      const auto* words = reinterpret_cast<const uint32_t*>(codes);
      piece.codes[i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    piece.scales[i] = keys.row[i][dim / 2 + column / kScaleGroup];
  }
}

__device__ bool same_keys(const PagedRows& a, const PagedRows& b) {
  return a.pages == b.pages && a.rows_per_page == b.rows_per_page && a.offset == b.offset && a.row_bytes == b.row_bytes;
}

// Keys [begin, end) for rows first .. first + count - 1, whose keys are the same.
__device__ void score_rows(const ScoreArgs& args, int64_t first, int count, int begin, int end, Rows::Shared& s) {
  const KeyPages pages(args.rows[first].keys);
  const KeyRange keys(pages, begin, end);
  const int t = thread_index() % 4;
  const int tiles = keys.tiles();
  int tile = thread_index() / kWarpgroup;
  KeyPiece piece;
  load_keys(keys.find(min(tile, tiles - 1)), args.dim, piece);
  LaneKeys next = keys.find(min(tile + kGroups, tiles - 1));  // a tile's rows are found while the one before it is loaded
  load_rows<Rows>(args, first, count, s);                     // the first keys come meanwhile
  show_shared_memory();
  __syncthreads();
#pragma unroll 1
  for (; tile < tiles; tile += kGroups) {
    uint32_t a[kProducts][4];
    widen_keys(piece, a);
    load_keys(next, args.dim, piece);
    next = keys.find(min(tile + 2 * kGroups, tiles - 1));
    // The lane's scores of a turn: of one query by both keys.
    constexpr int kScores = 2;
    int key[kScores];
    uint32_t block[kScores];
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      key[i] = keys.key(tile, i);
      block[i] = args.restrict_rows ? static_cast<uint32_t>(key[i]) / static_cast<uint32_t>(args.block_size) : 0;
    }
#pragma unroll 1
    for (int turn = 0; turn * Rows::kTileRows < count; ++turn) {
      const uint32_t queries = shared_address(s.queries) + static_cast<uint32_t>(turn) * Rows::kTileBytes;
      const int row = turn * Rows::kTileRows + t;
      const int behind = min(s.visible[row], end);
      const auto* bits = reinterpret_cast<const uint32_t*>(args.bits + (first + row) * args.words);
      uint32_t candidates[kScores];  // asked for before the products
#pragma unroll
      for (int i = 0; i < kScores; ++i) candidates[i] = s.restricted[row] && key[i] < behind ? bits[block[i] / 32] : 0xffffffffu;
      float c[Rows::kInputs / 8][4];
      begin_products();
#pragma unroll
      for (uint32_t product = 0; product < kProducts; ++product)
        multiply_rows<Rows::kInputs>(c, a[product], swizzled_rows(queries + product_offset(product, Rows::kInputs)), product > 0);
      commit_products();
      wait_products<0>();
      settle(c);
      float sums[Rows::kTileRows][2];
      add_heads<Rows>(
          c, [&](int of, int eight) { return s.weights[turn * Rows::kTileRows + of][eight * 4 + t]; }, sums);
      float score[kScores];
      add_lanes(sums, score);
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (key[i] >= behind) continue;
        const bool candidate = (candidates[i] >> (block[i] % 32) & 1) != 0;
        args.rank[(first + row) * args.row_stride + key[i]] = candidate ? rank_of(round_to_bf16(score[i])) : kMinusInfinity;
      }
    }
  }
}

// Grid: ranges of keys, blocks of rows. Rows of several sequences take their turns.
__global__ void __launch_bounds__(kThreads, 1) score_wide_kernel(const __grid_constant__ ScoreArgs args) {
  take_turn();
  auto& s = *dynamic_shared<Rows::Shared>();
  if (shared_address(&s) % kEightRows != 0) __trap();
  const int64_t last = min(static_cast<int64_t>(blockIdx.y + 1) * Rows::kRows, args.row_count);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * args.block_keys;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * Rows::kRows; first < last;) {
    int64_t visible = 0;
    int64_t behind = first;
    for (; behind < last && same_keys(args.rows[behind].keys, args.rows[first].keys); ++behind)
      visible = max(visible, static_cast<int64_t>(key_count(args, behind)));
    const int64_t end = min(begin + args.block_keys, visible);
    if (begin < end) {
      score_rows(args, first, static_cast<int>(behind - first), static_cast<int>(begin), static_cast<int>(end), s);
      __syncthreads();  // before other rows come
    }
    first = behind;
  }
}

}  // namespace

WideIndex wide_index_of(const IndexSelectArgs& args) {
  constexpr int64_t kLeastRows = 8;
  constexpr int64_t kManyKeys = int64_t{1} << 18;  // two rounds of a block on every place there is, and more
  const auto rows = static_cast<int64_t>(args.queries.size());
  if (args.heads > kHeads || args.dim > kDim) return WideIndex::kNo;
  int64_t sequences = 0;
  int64_t longest = 0;
  for (size_t i = 0; i < args.queries.size(); ++i) {
    if (i == 0 || args.queries[i].keys.pages != args.queries[i - 1].keys.pages) ++sequences;
    longest = std::max(longest, args.queries[i].visible);
  }
  const int64_t candidates = args.candidate_blocks * args.candidate_block_size;
  const bool restricts = args.mode == IndexSelectArgs::Candidates::kRestrict;
  const bool lists = restricts && args.candidate_block_size == kListedKeys;
  const bool large = rows > kFewRows || rows * (lists ? std::min(longest, candidates) : longest) >= kManyKeys;
  // Candidates that are few among what a row sees are listed, if they may be, or found by the kernel that looks at each tile.
  if (lists && longest > 3 * candidates && large) return WideIndex::kOneRow;
  if (restricts && longest > 4 * candidates) return WideIndex::kNo;
  // Rows whose keys are their own would be multiplied four at a time and one by one.
  if (rows >= std::max(kLeastRows, Rows::kTileRows * sequences)) return WideIndex::kManyRows;
  return large ? WideIndex::kOneRow : WideIndex::kNo;
}

void score_wide(const ScoreArgs& all, WideIndex way, int64_t longest, LaunchStream& stream) {
  if (way == WideIndex::kOneRow) return score_each_row(all, longest, stream);
  // Each block brings its queries to shared memory: few blocks, as long as they fill the device several times.
  constexpr int64_t kBlocks = 132 * 6;
  ScoreArgs args = all;
  const int64_t row_blocks = (args.row_count + Rows::kRows - 1) / Rows::kRows;
  args.block_keys = std::clamp<int64_t>(longest * row_blocks / kBlocks / kRound, 2, kMostRounds) * kRound;
  const dim3 grid(static_cast<unsigned>((longest + args.block_keys - 1) / args.block_keys), static_cast<unsigned>(row_blocks));
  stream.launch(score_wide_kernel, grid, kThreads, sizeof(Rows::Shared), args);
}

}  // namespace deepinfer::cuda
