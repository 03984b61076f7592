// Index scores of many rows, on warpgroups. The arithmetic is that of index.cu, to the bit. A block has 16 rows of one sequence,
// their queries in shared memory in the order of the products, and a range of keys. A warpgroup takes 64 keys at a time, widens
// them once in registers as the A operand, and multiplies them by four queries of 32 heads at a time. While it adds the heads,
// the others multiply.
//
// For 8,192 rows by 36,864 keys that is 3.1 ms at the matrix rate; adding the heads of a score takes some 75 instructions of a
// thread, 0.8 ms of the schedulers if nothing waits; ranks are 0.6 GB.

#include <algorithm>

#include "ops/cuda/index_scores.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kRows = 16;  // of a block
constexpr int kHeads = 32;
constexpr int kDim = 128;
constexpr int kGroups = 3;  // warpgroups
constexpr int kThreads = kGroups * kWarpgroup;
constexpr int kTileKeys = 64;
constexpr int kTileRows = 4;  // queries of a product
constexpr int kInputs = kTileRows * kHeads;
constexpr int kProducts = kDim / 16;
constexpr uint32_t kBlockBytes = kInputs * kSwizzledRow;  // 64 columns of a product's queries
constexpr uint32_t kTileBytes = kDim / 64 * kBlockBytes;

struct Shared {
  uint8_t queries[kRows / kTileRows * kTileBytes];
  uint32_t weights[kRows][kHeads / 2];  // pairs
  int64_t visible[kRows];               // 0: not scored
  bool restricted[kRows];
};

__device__ int thread_index() { return static_cast<int>(threadIdx.x); }

// Queries and weights of rows first .. first + count - 1; others, and heads and dims that are not there, are zero.
__device__ void load_rows(const ScoreArgs& args, int64_t first, int count, Shared& s) {
  const int lane = thread_index() % kWarp;
  // A warp takes four heads and, of each 64 columns, eight of every lane that widens keys: stores meet in no bank.
  constexpr int kFours = kRows * kHeads / 4;
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
      uint8_t* to = s.queries + input / kInputs * kTileBytes;
      const uint4 ordered = interleave(v[k]);
      const uint32_t pairs[4] = {ordered.x, ordered.y, ordered.z, ordered.w};
#pragma unroll
      for (uint32_t pair = 0; pair < 4; ++pair) {
        const PairPlace p = pair_place(false, static_cast<uint32_t>(column), pair);
        *reinterpret_cast<uint32_t*>(to + p.block * kBlockBytes +
                                     swizzled_piece(static_cast<uint32_t>(input % kInputs), p.piece) + p.word * 4) = pairs[pair];
      }
    }
  }
  for (int i = thread_index(); i < kRows * kHeads; i += kThreads) {
    const int row = i / kHeads;
    const int head = i % kHeads;
    reinterpret_cast<bf16*>(s.weights)[i] =
        row < count && head < args.heads ? args.weights[(first + row) * args.heads + head] : bf16{};
  }
  if (thread_index() < kRows) {
    const bool there = thread_index() < count;
    const IndexRow& row = args.rows[first + (there ? thread_index() : 0)];
    s.visible[thread_index()] = there && row.scored ? row.visible : 0;
    s.restricted[thread_index()] = args.restrict_rows && row.restricted;
  }
}

// The lane's part of two keys: 32 dims each of rows lane / 4 and 8 behind it of the warp's 16.
struct KeyPiece {
  uint4 codes[2];
  uint32_t scales[2];
};
__device__ void load_keys(const PagedRows& keys, int dim, int64_t base, int64_t last, KeyPiece& piece) {
  const int lane = thread_index() % kWarp;
  const int row = thread_index() % kWarpgroup / kWarp * 16 + lane / 4;
  const int column = lane % 4 * 32;
  const auto rows_per_page = static_cast<uint32_t>(keys.rows_per_page);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto j = static_cast<uint32_t>(min(base + row + 8 * i, last));
    const uint8_t* key = keys.pages[j / rows_per_page] + keys.offset + static_cast<int64_t>(j % rows_per_page) * keys.row_bytes;
    piece.codes[i] = make_uint4(0, 0, 0, 0);
    piece.scales[i] = 127;
    if (column >= dim) continue;
    piece.codes[i] = load_unaligned(key + column / 2);
    piece.scales[i] = key[dim / 2 + column / kScaleGroup];
  }
}

// A operands of all products.
__device__ void widen_keys(const KeyPiece& piece, uint32_t (&a)[kProducts][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t scale = scale_pair(piece.scales[i], kFp4Bias);
    const uint32_t excess = excess_pair(piece.scales[i], kFp4Bias);
    const uint32_t words[4] = {piece.codes[i].x, piece.codes[i].y, piece.codes[i].z, piece.codes[i].w};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t r[4];
      widen_fp4(words[pair], r);
#pragma unroll
      for (int k = 0; k < 4; ++k) a[pair * 2 + k / 2][i + k % 2 * 2] = multiply_bf16x2(multiply_bf16x2(r[k], scale), excess);
    }
  }
}

// Of the lane's two keys, the score of query lane % 4 of the tile: `c` has heads 2 t and 2 t + 1 of every eight, t: lane % 4. The
// lanes of a key add theirs as (0 + 1) + (2 + 3).
__device__ void add_heads(const float (&c)[kInputs / 8][4], const uint32_t (*weights)[kHeads / 2], float (&score)[2]) {
  const int t = thread_index() % 4;
  float sums[kTileRows][2] = {};
#pragma unroll
  for (int row = 0; row < kTileRows; ++row) {
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
  const bool odd = t % 2 == 1;
  const bool high = t / 2 == 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float first = odd ? sums[1][half] : sums[0][half];
    float second = odd ? sums[3][half] : sums[2][half];
    first += __shfl_xor_sync(0xffffffffu, odd ? sums[0][half] : sums[1][half], 1);
    second += __shfl_xor_sync(0xffffffffu, odd ? sums[2][half] : sums[3][half], 1);
    score[half] = (high ? second : first) + __shfl_xor_sync(0xffffffffu, high ? first : second, 2);
  }
}

__device__ bool same_keys(const PagedRows& a, const PagedRows& b) {
  return a.pages == b.pages && a.rows_per_page == b.rows_per_page && a.offset == b.offset && a.row_bytes == b.row_bytes;
}

// Keys [begin, end) for rows first .. first + count - 1, whose keys are the same.
__device__ void score_rows(const ScoreArgs& args, int64_t first, int count, int64_t begin, int64_t end, Shared& s) {
  const PagedRows keys = args.rows[first].keys;
  const int lane = thread_index() % kWarp;
  const int key_in_tile = thread_index() % kWarpgroup / kWarp * 16 + lane / 4;
  int64_t base = begin + thread_index() / kWarpgroup * kTileKeys;
  KeyPiece piece;
  load_keys(keys, args.dim, base, end - 1, piece);
  load_rows(args, first, count, s);
  show_shared_memory();
  __syncthreads();
#pragma unroll 1
  for (; base < end; base += kGroups * kTileKeys) {
    uint32_t a[kProducts][4];
    widen_keys(piece, a);
    load_keys(keys, args.dim, base + kGroups * kTileKeys, end - 1, piece);
#pragma unroll 1
    for (int tile = 0; tile * kTileRows < count; ++tile) {
      const uint32_t queries = shared_address(s.queries) + static_cast<uint32_t>(tile) * kTileBytes;
      float c[kInputs / 8][4];
      begin_products();
#pragma unroll
      for (uint32_t product = 0; product < kProducts; ++product)
        multiply_rows<kInputs>(c, a[product], swizzled_rows(queries + product_offset(product, kInputs)), product > 0);
      commit_products();
      wait_products<0>();
      settle(c);
      float score[2];
      add_heads(c, s.weights + tile * kTileRows, score);
      const int row = tile * kTileRows + lane % 4;
      const int64_t r = first + row;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t j = base + key_in_tile + half * 8;
        if (j >= min(s.visible[row], end)) continue;
        uint16_t rank = rank_of(round_to_bf16(score[half]));
        if (s.restricted[row]) {
          const int64_t b = j / args.block_size;
          if ((args.bits[r * args.words + b / 64] >> (b % 64) & 1) == 0) rank = kMinusInfinity;
        }
        args.rank[r * args.row_stride + j] = rank;
      }
    }
  }
}

// Grid: ranges of keys, blocks of rows. Rows of several sequences take their turns.
__global__ void __launch_bounds__(kThreads, 1) score_wide_kernel(const __grid_constant__ ScoreArgs args) {
  take_turn();
  Shared& s = *dynamic_shared<Shared>();
  if (shared_address(&s) % kEightRows != 0) __trap();
  const int64_t last = min(static_cast<int64_t>(blockIdx.y + 1) * kRows, args.row_count);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * args.block_keys;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * kRows; first < last;) {
    int64_t visible = 0;
    int64_t behind = first;
    for (; behind < last && same_keys(args.rows[behind].keys, args.rows[first].keys); ++behind) {
      if (args.rows[behind].scored) visible = max(visible, args.rows[behind].visible);
    }
    const int64_t end = min(begin + args.block_keys, visible);
    if (begin < end) {
      score_rows(args, first, static_cast<int>(behind - first), begin, end, s);
      __syncthreads();  // before other rows come
    }
    first = behind;
  }
}

}  // namespace

bool takes_wide_index(const IndexSelectArgs& args) {
  // Rows whose keys are their own would be multiplied four at a time and one by one; a few candidates are found faster by the
  // kernel that looks at each tile.
  constexpr int64_t kLeastRows = 8;
  const auto rows = static_cast<int64_t>(args.queries.size());
  if (rows < kLeastRows || args.heads > kHeads || args.dim > kDim) return false;
  int64_t sequences = 0;
  int64_t longest = 0;
  for (size_t i = 0; i < args.queries.size(); ++i) {
    if (i == 0 || args.queries[i].keys.pages != args.queries[i - 1].keys.pages) ++sequences;
    longest = std::max(longest, args.queries[i].visible);
  }
  const bool few =
      args.mode == IndexSelectArgs::Candidates::kRestrict && longest > 4 * args.candidate_blocks * args.candidate_block_size;
  return rows >= kTileRows * sequences && !few;
}

void score_wide(ScoreArgs args, int64_t longest, LaunchStream& stream) {
  // Each block brings its queries to shared memory: few blocks, as long as they fill the device several times.
  constexpr int64_t kBlocks = 132 * 6;
  constexpr int64_t kRound = kGroups * kTileKeys;
  const int64_t row_blocks = (args.row_count + kRows - 1) / kRows;
  args.block_keys = std::clamp<int64_t>(longest * row_blocks / kBlocks / kRound, 2, 48) * kRound;
  const dim3 grid(static_cast<unsigned>((longest + args.block_keys - 1) / args.block_keys), static_cast<unsigned>(row_blocks));
  stream.launch(score_wide_kernel, grid, kThreads, sizeof(Shared), args);
}

}  // namespace deepinfer::cuda
