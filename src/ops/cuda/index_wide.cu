// Index scores of many rows, on warpgroups. The arithmetic is that of index.cu, to the bit. A block has 16 rows of one sequence,
// or one row, their queries in shared memory in the order of the products, and a range of keys. A warpgroup takes 64 keys at a
// time, widens them once in registers as the A operand, and multiplies them by four queries of 32 heads at a time, or by the one.
// While it adds the heads, the others multiply. One row that is restricted to candidates has no other keys looked at.
//
// For 8,192 rows by 36,864 keys that is 3.1 ms at the matrix rate; adding the heads of a score takes some 75 instructions of a
// thread, 0.8 ms of the schedulers if nothing waits; ranks are 0.6 GB. Rows whose keys are their own are bound by the widening,
// some 16 instructions of a warp a key: 256 rows by 32,768 keys take the schedulers 0.15 ms, and memory as long.

#include <algorithm>

#include "ops/cuda/index_scores.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/scratch_sizes.h"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHeads = 32;
constexpr int kDim = 128;
constexpr int kGroups = 3;  // warpgroups
constexpr int kThreads = kGroups * kWarpgroup;
constexpr int kTileKeys = 64;
constexpr int kProducts = kDim / 16;
constexpr int kRound = kGroups * kTileKeys;
constexpr int kMostRounds = 48;    // of a block
constexpr int kCandidateKeys = 8;  // of a candidate block that is found ahead
constexpr int kTileCandidates = kTileKeys / kCandidateKeys;
constexpr int kMostCandidates = kMostRounds * kRound / kCandidateKeys;
static_assert(kMostCandidates % kThreads == 0 && kRound % kCandidateKeys == 0);

// Blocks of many rows, and of one.
template <int kBlockRows, int kProductRows>
struct Shape {
  static constexpr int kRows = kBlockRows;
  static constexpr int kTileRows = kProductRows;  // queries of a product
  static constexpr int kInputs = kTileRows * kHeads;
  static constexpr uint32_t kBlockBytes = kInputs * kSwizzledRow;  // 64 columns of a product's queries
  static constexpr uint32_t kTileBytes = kDim / 64 * kBlockBytes;
  static constexpr int kBlocks = kRows == 1 ? 2 : 1;  // of a multiprocessor

  struct Shared {
    uint8_t queries[kRows / kTileRows * kTileBytes];
    uint32_t weights[kRows][kHeads / 2];                    // pairs
    uint16_t candidates[kRows == 1 ? kMostCandidates : 1];  // of the block's keys
    uint32_t warp_candidates[kThreads / kWarp];
    int visible[kRows];  // 0: not scored
    bool restricted[kRows];
  };
};
using ManyRows = Shape<16, 4>;
using OneRow = Shape<1, 1>;

__device__ int thread_index() { return static_cast<int>(threadIdx.x); }

// Queries and weights of rows first .. first + count - 1; others, and heads and dims that are not there, are zero.
template <typename Rows>
__device__ void load_rows(const ScoreArgs& args, int64_t first, int count, typename Rows::Shared& s) {
  const int lane = thread_index() % kWarp;
  // A warp takes four heads and, of each 64 columns, eight of every lane that widens keys: stores meet in no bank.
  constexpr int kFours = Rows::kRows * kHeads / 4;
  constexpr int kBatch = 4;  // loads under way
  for (int first_four = thread_index() / kWarp * kBatch; first_four < kFours * (kDim / 64);
       first_four += kThreads / kWarp * kBatch) {
    const int part = first_four / kFours;
    const int column = lane % 8 / 2 * 32 + part * 16 + lane % 2 * 8;
    const int first_input = first_four % kFours * 4 + lane / 8;
    uint4 v[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int row = (first_input + k * 4) / kHeads;
      const int head = (first_input + k * 4) % kHeads;
      v[k] = make_uint4(0, 0, 0, 0);
      if (row < count && head < args.heads && column < args.dim) {
        const bf16* from = args.q + ((first + row) * args.heads + head) * args.dim + column;
        v[k] = load_unaligned(reinterpret_cast<const uint8_t*>(from));
      }
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int input = first_input + k * 4;
      uint8_t* to = s.queries + input / Rows::kInputs * Rows::kTileBytes;
      const uint4 ordered = interleave(v[k]);
      const uint32_t pairs[4] = {ordered.x, ordered.y, ordered.z, ordered.w};
#pragma unroll
      for (uint32_t pair = 0; pair < 4; ++pair) {
        const PairPlace p = pair_place(false, static_cast<uint32_t>(column), pair);
        *reinterpret_cast<uint32_t*>(to + p.block * Rows::kBlockBytes +
                                     swizzled_piece(static_cast<uint32_t>(input % Rows::kInputs), p.piece) + p.word * 4) =
            pairs[pair];
      }
    }
  }
  for (int i = thread_index(); i < Rows::kRows * kHeads; i += kThreads) {
    const int row = i / kHeads;
    const int head = i % kHeads;
    reinterpret_cast<bf16*>(s.weights)[i] =
        row < count && head < args.heads ? args.weights[(first + row) * args.heads + head] : bf16{};
  }
  if (thread_index() < Rows::kRows) {
    const bool there = thread_index() < count;
    const IndexRow& row = args.rows[first + (there ? thread_index() : 0)];
    s.visible[thread_index()] = there && row.scored ? static_cast<int>(row.visible) : 0;
    s.restricted[thread_index()] = args.restrict_rows && row.restricted;
  }
}

// The lane's two keys of a tile: rows lane / 4 and 8 behind it of the warp's 16. Keys that are not there repeat the last one.
__device__ int row_in_tile() { return thread_index() % kWarpgroup / kWarp * 16 + thread_index() % kWarp / 4; }
struct LaneKeys {
  const uint8_t* row[2];
};
// Where the keys of some rows lie, in 32 bits: a page's rows are fewer bytes than that.
struct KeyPages {
  uint8_t* const* pages;
  int64_t offset;
  uint32_t rows_per_page, row_bytes;
  __device__ explicit KeyPages(const PagedRows& keys)
      : pages(keys.pages),
        offset(keys.offset),
        rows_per_page(static_cast<uint32_t>(keys.rows_per_page)),
        row_bytes(static_cast<uint32_t>(keys.row_bytes)) {}
  __device__ const uint8_t* row(uint32_t j) const { return pages[j / rows_per_page] + offset + j % rows_per_page * row_bytes; }
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
// Those of them that lie in some blocks of kCandidateKeys, counted from the first key's.
class CandidateList {
 public:
  __device__ CandidateList(const KeyPages& pages, int begin, int end, const uint16_t* blocks, int count)
      : pages_(pages), blocks_(blocks), begin_(begin), end_(end), count_(count) {}
  __device__ int tiles() const { return (count_ + kTileCandidates - 1) / kTileCandidates; }
  __device__ LaneKeys find(int tile) const {
    LaneKeys own;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      own.row[i] = pages_.row(static_cast<uint32_t>(min(key_of(min(entry(tile, i), count_ - 1)), end_ - 1)));
    return own;
  }
  __device__ int key(int tile, int i) const { return entry(tile, i) < count_ ? key_of(entry(tile, i)) : end_; }

 private:
  // A warp's 16 rows are two blocks.
  __device__ int entry(int tile, int i) const { return tile * kTileCandidates + row_in_tile() / kCandidateKeys + i; }
  __device__ int key_of(int entry) const { return begin_ + blocks_[entry] * kCandidateKeys + row_in_tile() % kCandidateKeys; }

  const KeyPages& pages_;
  const uint16_t* blocks_;
  int begin_, end_, count_;
};

// The lane's part of them: 32 dims each.
struct KeyPiece {
  uint4 codes[2];
  uint32_t scales[2];
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

// A operands of all products.
__device__ void widen_keys(const KeyPiece& piece, uint32_t (&a)[kProducts][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t scale = scale_pair(piece.scales[i], kFp4Bias);
    const uint32_t words[4] = {piece.codes[i].x, piece.codes[i].y, piece.codes[i].z, piece.codes[i].w};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t r[4];
      widen_fp4(words[pair], r);
#pragma unroll
      for (int k = 0; k < 4; ++k) a[pair * 2 + k / 2][i + k % 2 * 2] = multiply_bf16x2(r[k], scale);
    }
  }
  if (!__any_sync(0xffffffffu, max(piece.scales[0], piece.scales[1]) > kMostScale<WeightFormat::kFp4>)) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t excess = excess_pair(piece.scales[i], kFp4Bias);
#pragma unroll
    for (auto& product : a) {
      product[i] = multiply_bf16x2(product[i], excess);
      product[i + 2] = multiply_bf16x2(product[i + 2], excess);
    }
  }
}

// Sums of the lane's two keys by each query of the tile: `c` has heads 2 t and 2 t + 1 of every eight, t: lane % 4.
template <typename Rows>
__device__ void add_heads(const float (&c)[Rows::kInputs / 8][4], const uint32_t (*weights)[kHeads / 2],
                          float (&sums)[Rows::kTileRows][2]) {
  const int t = thread_index() % 4;
#pragma unroll
  for (int row = 0; row < Rows::kTileRows; ++row) {
    sums[row][0] = sums[row][1] = 0;
#pragma unroll
    for (int eight = 0; eight < kHeads / 8; ++eight) {
      const uint32_t w = weights[row][eight * 4 + t];
      const float(&dots)[4] = c[row * (kHeads / 8) + eight];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t product = multiply_bf16x2(positive_pair(round_pair(dots[2 * half], dots[2 * half + 1])), w);
        sums[row][half] += widen_low(product);
        sums[row][half] += widen_high(product);
      }
    }
  }
}
// The four lanes of a key add theirs as (0 + 1) + (2 + 3). Of four queries each lane gets the scores of query t, by both keys; of
// one, lanes 0 and 1 get that of their key.
__device__ void add_lanes(const float (&sums)[4][2], float (&score)[2]) {
  const bool odd = thread_index() % 2 == 1;
  const bool high = thread_index() % 4 / 2 == 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float first = odd ? sums[1][half] : sums[0][half];
    float second = odd ? sums[3][half] : sums[2][half];
    first += __shfl_xor_sync(0xffffffffu, odd ? sums[0][half] : sums[1][half], 1);
    second += __shfl_xor_sync(0xffffffffu, odd ? sums[2][half] : sums[3][half], 1);
    score[half] = (high ? second : first) + __shfl_xor_sync(0xffffffffu, high ? first : second, 2);
  }
}
__device__ void add_lanes(const float (&sums)[1][2], float (&score)[1]) {
  const bool odd = thread_index() % 2 == 1;
  float sum = odd ? sums[0][1] : sums[0][0];
  sum += __shfl_xor_sync(0xffffffffu, odd ? sums[0][0] : sums[0][1], 1);
  score[0] = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

__device__ bool same_keys(const PagedRows& a, const PagedRows& b) {
  return a.pages == b.pages && a.rows_per_page == b.rows_per_page && a.offset == b.offset && a.row_bytes == b.row_bytes;
}

// `keys`, some, all before `end`, for rows first .. first + count - 1. `bring_queries`: after it the rows' queries are there.
template <typename Rows, typename Keys, typename Bring>
__device__ void score_keys(const ScoreArgs& args, int64_t first, int count, const Keys& keys, int end,
                           const typename Rows::Shared& s, const Bring& bring_queries) {
  const int t = thread_index() % 4;
  const int tiles = keys.tiles();
  int tile = thread_index() / kWarpgroup;
  KeyPiece piece;
  load_keys(keys.find(min(tile, tiles - 1)), args.dim, piece);
  LaneKeys next = keys.find(min(tile + kGroups, tiles - 1));  // a tile's rows are found while the one before it is loaded
  bring_queries();
#pragma unroll 1
  for (; tile < tiles; tile += kGroups) {
    uint32_t a[kProducts][4];
    widen_keys(piece, a);
    load_keys(next, args.dim, piece);
    next = keys.find(min(tile + 2 * kGroups, tiles - 1));
    // The lane's scores of a turn: of one query by both keys, or of the one by one of them.
    constexpr int kScores = Rows::kTileRows == 4 ? 2 : 1;
    int key[kScores];
    uint32_t block[kScores];
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      key[i] = keys.key(tile, kScores == 2 ? i : t % 2);
      block[i] = args.restrict_rows ? static_cast<uint32_t>(key[i]) / static_cast<uint32_t>(args.block_size) : 0;
    }
#pragma unroll 1
    for (int turn = 0; turn * Rows::kTileRows < count; ++turn) {
      const uint32_t queries = shared_address(s.queries) + static_cast<uint32_t>(turn) * Rows::kTileBytes;
      const int row = kScores == 2 ? turn * Rows::kTileRows + t : turn;
      const int behind = kScores == 2 || t < 2 ? min(s.visible[row], end) : 0;
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
      add_heads<Rows>(c, s.weights + turn * Rows::kTileRows, sums);
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

// The candidates of row r among keys begin .. end - 1, in order; ranks of the other keys are written. Returns their number.
template <typename Shared>
__device__ int list_candidates(const ScoreArgs& args, int64_t r, int begin, int end, Shared& s) {
  constexpr int kOwn = kMostCandidates / kThreads;
  const int lane = thread_index() % kWarp;
  const int warp = thread_index() / kWarp;
  const int first = thread_index() * kOwn;
  bool is[kOwn];
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int b = begin / kCandidateKeys + first + i;
    is[i] = b * kCandidateKeys < end && (args.bits[r * args.words + b / 64] >> (b % 64) & 1) != 0;
    own += is[i];
  }
  uint32_t behind = own;  // with the thread's own
#pragma unroll
  for (int step = 1; step < kWarp; step <<= 1) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, behind, step);
    if (lane >= step) behind += other;
  }
  if (lane == kWarp - 1) s.warp_candidates[warp] = behind;
  __syncthreads();
  const uint32_t of_warp = lane < kThreads / kWarp ? s.warp_candidates[lane] : 0;
  uint32_t at = __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0) + behind - own;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (is[i]) {
      s.candidates[at++] = static_cast<uint16_t>(first + i);
      continue;
    }
    const int key = begin + (first + i) * kCandidateKeys;
    uint16_t* to = args.rank + r * args.row_stride + key;
    if (key + kCandidateKeys <= end && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      constexpr uint32_t kPair = kMinusInfinity * 0x10001u;
      *reinterpret_cast<uint4*>(to) = make_uint4(kPair, kPair, kPair, kPair);
    } else {
      for (int k = 0; k < kCandidateKeys && key + k < end; ++k) to[k] = kMinusInfinity;
    }
  }
  return static_cast<int>(__reduce_add_sync(0xffffffffu, of_warp));
}

// Keys [begin, end) for rows first .. first + count - 1, whose keys are the same.
template <typename Rows>
__device__ void score_rows(const ScoreArgs& args, int64_t first, int count, int begin, int end, typename Rows::Shared& s) {
  const KeyPages pages(args.rows[first].keys);
  const auto bring_queries = [&] {
    load_rows<Rows>(args, first, count, s);
    show_shared_memory();
    __syncthreads();
  };
  if constexpr (Rows::kRows == 1) {
    if (args.restrict_rows && args.rows[first].restricted && args.block_size == kCandidateKeys) {
      const int candidates = list_candidates(args, first, begin, end, s);
      bring_queries();
      if (thread_index() == 0) s.restricted[0] = false;  // no other keys are looked at
      __syncthreads();
      if (candidates > 0)
        score_keys<Rows>(args, first, count, CandidateList(pages, begin, end, s.candidates, candidates), end, s, [] {});
      return;
    }
  }
  score_keys<Rows>(args, first, count, KeyRange(pages, begin, end), end, s, bring_queries);  // the first keys come meanwhile
}

// Grid: ranges of keys, blocks of rows. Rows of several sequences take their turns.
template <typename Rows>
__global__ void __launch_bounds__(kThreads, Rows::kBlocks) score_wide_kernel(const __grid_constant__ ScoreArgs args) {
  take_turn();
  auto& s = *dynamic_shared<typename Rows::Shared>();
  if (shared_address(&s) % kEightRows != 0) __trap();
  const int64_t last = min(static_cast<int64_t>(blockIdx.y + 1) * Rows::kRows, args.row_count);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * args.block_keys;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * Rows::kRows; first < last;) {
    int64_t visible = 0;
    int64_t behind = first;
    for (; behind < last && same_keys(args.rows[behind].keys, args.rows[first].keys); ++behind) {
      if (args.rows[behind].scored) visible = max(visible, args.rows[behind].visible);
    }
    const int64_t end = min(begin + args.block_keys, visible);
    if (begin < end) {
      score_rows<Rows>(args, first, static_cast<int>(behind - first), static_cast<int>(begin), static_cast<int>(end), s);
      __syncthreads();  // before other rows come
    }
    first = behind;
  }
}

template <typename Rows>
void launch_scores(ScoreArgs args, int64_t longest, LaunchStream& stream) {
  // Each block brings its queries to shared memory: few blocks, as long as they fill the device several times.
  constexpr int64_t kBlocks = 132 * 6 * Rows::kBlocks;
  const int64_t row_blocks = (args.row_count + Rows::kRows - 1) / Rows::kRows;
  args.block_keys = std::clamp<int64_t>(longest * row_blocks / kBlocks / kRound, 2, kMostRounds) * kRound;
  const dim3 grid(static_cast<unsigned>((longest + args.block_keys - 1) / args.block_keys), static_cast<unsigned>(row_blocks));
  stream.launch(score_wide_kernel<Rows>, grid, kThreads, sizeof(typename Rows::Shared), args);
}

}  // namespace

WideIndex wide_index_of(const IndexSelectArgs& args) {
  constexpr int64_t kLeastRows = 8;
  const auto rows = static_cast<int64_t>(args.queries.size());
  if (rows < kLeastRows || args.heads > kHeads || args.dim > kDim) return WideIndex::kNo;
  int64_t sequences = 0;
  int64_t longest = 0;
  for (size_t i = 0; i < args.queries.size(); ++i) {
    if (i == 0 || args.queries[i].keys.pages != args.queries[i - 1].keys.pages) ++sequences;
    longest = std::max(longest, args.queries[i].visible);
  }
  // Candidates that are few among what a row sees are found ahead, if they may be, or by the kernel that looks at each tile.
  const int64_t candidates = args.candidate_blocks * args.candidate_block_size;
  if (args.mode == IndexSelectArgs::Candidates::kRestrict) {
    if (longest > 3 * candidates && args.candidate_block_size == kCandidateKeys && rows > kFewRows) return WideIndex::kOneRow;
    if (longest > 4 * candidates) return WideIndex::kNo;
  }
  // Rows whose keys are their own would be multiplied four at a time and one by one.
  if (rows >= ManyRows::kTileRows * sequences) return WideIndex::kManyRows;
  return rows > kFewRows ? WideIndex::kOneRow : WideIndex::kNo;
}

void score_wide(const ScoreArgs& args, WideIndex way, int64_t longest, LaunchStream& stream) {
  if (way == WideIndex::kManyRows) {
    launch_scores<ManyRows>(args, longest, stream);
  } else {
    launch_scores<OneRow>(args, longest, stream);
  }
}

}  // namespace deepinfer::cuda
