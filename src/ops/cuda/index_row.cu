// Index scores of rows whose keys are their own, on warpgroups (index_wide.cuh). A block has one row and a range of its keys, or
// of those of listed blocks. A warp brings the 32 keys of its part of a turn to shared memory, some turns ahead, as one run of
// bytes or as four, wherever they lie. So widening and products wait for nothing. They are what bounds this: some 300
// instructions of a warp for 16 keys, where memory would do with the time of 235.

#include <algorithm>

#include "ops/cuda/index_wide.cuh"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

using namespace wide_index;  // NOLINT(google-build-using-namespace)

using Row = Shape<1, 1>;
constexpr int kParts = 2;  // tiles of a turn: a warp has 16 keys of each
constexpr int kWarpKeys = kParts * 16;
constexpr int kTurnKeys = kParts * kTileKeys;  // of a warpgroup
constexpr int kStages = 3;                     // turns of a warp
constexpr int kRowBytes = kDim / 2 + kDim / kScaleGroup;
constexpr uint32_t kStageBytes = kWarpKeys * kRowBytes;
constexpr int kBlockRound = kGroups * kTurnKeys;
constexpr int kMostBlockRounds = kMostRounds * kRound / kBlockRound;
constexpr int kMostListed = kMostBlockRounds * kBlockRound / kListedKeys;
static_assert(kBlockRound % kWarpKeys == 0 && kWarpKeys % kListedKeys == 0);
static_assert(kListedKeys * kRowBytes % 16 == 0);

struct Shared {
  Row::Shared row;
  int32_t listed[kMostListed];  // blocks of the block's keys
  alignas(16) uint8_t keys[kThreads / kWarp][kStages][kStageBytes];
};

// The keys [begin, end) of a row, or of its list, as a warp has them: 32 of each turn, in runs of kRun that lie in a page, one
// behind the other; as many lanes bring a run as it has keys. What a lane needs for every turn is computed once, without signs:
// remainders of what may be negative take four instructions.
template <uint32_t kRun>
class Keys {
 public:
  __device__ Keys(const ScoreArgs& args, const PagedRows& rows, uint32_t begin, uint32_t end, Shared& s)
      : pages_(rows.pages), begin_(begin), last_(end - 1), listed_(args.list != nullptr ? s.listed : nullptr) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t q = lane % kRun;
    const auto rows_per_page = static_cast<uint32_t>(rows.rows_per_page);
    shift_ = static_cast<uint32_t>(__popc(rows_per_page - 1));
    const bool whole = args.dim == kDim && rows.row_bytes == kRowBytes && rows_per_page % kRun == 0 &&
                       (rows_per_page & (rows_per_page - 1)) == 0;
    odd_ = whole ? static_cast<uint32_t>(rows.offset % 16) : 1;
    first_ = begin + threadIdx.x % kWarpgroup / kWarp * kWarpKeys;
    run_ = first_ + lane / kRun * kRun;
    stages_ = &s.keys[0][0][0];
    const uint32_t ring = threadIdx.x / kWarp * kStages * kStageBytes;
    to_ = shared_address(stages_) + ring + lane / kRun * kRunBytes + q * 16;
    from_ = static_cast<uint32_t>(rows.offset) + q * 16;
    last_copy_ = q < kRunBytes / 16 % kRun;
    own_ = ring + lane / 4 * kRowBytes + lane % 4 * 16;
    own_scale_ = ring + lane / 4 * kRowBytes + kDim / 2 + lane % 4;
    // By way of another lane's register, as it were: what can be computed again would be, every turn.
    for (uint32_t* kept : {&run_, &to_, &from_, &own_, &own_scale_}) *kept = __shfl_sync(0xffffffffu, *kept, lane);
  }

  // Where the lane's run of a turn lies, asked for ahead.
  struct Place {
    const uint8_t* page;
    uint32_t row;
  };
  __device__ Place find(uint32_t turn) const {
    const uint32_t key = key_at(min(run_ + turn * kTurnKeys, last_ & ~(kRun - 1u)));
    if (odd_ != 0) return {nullptr, 0};
    const uint32_t page = key >> shift_;
    return {pages_[page], key - (page << shift_)};
  }
  // To the stage that begins at byte `stage`.
  __device__ void bring(const ScoreArgs& args, uint32_t turn, const Place& at, uint32_t stage) const {
    const uint32_t odd = odd_ | (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.page)) & 15);
    if (__any_sync(0xffffffffu, odd != 0)) return bring_bytes(args, turn, stage);
    const uint8_t* from = at.page + (from_ + at.row * kRowBytes);
    const uint32_t to = to_ + stage;
    constexpr uint32_t kCopies = kRunBytes / 16 / kRun;
#pragma unroll
    for (uint32_t i = 0; i < kCopies; ++i) copy_async_if(true, to + i * kRun * 16, from + i * kRun * 16);
    copy_async_if(last_copy_, to + kCopies * kRun * 16, from + kCopies * kRun * 16);
  }
  // The lane's part of its two keys of a tile of the turn.
  __device__ void load(uint32_t stage, int part, KeyPiece& piece) const {
    const auto* words = reinterpret_cast<const uint32_t*>(stages_ + (own_ + stage));
    const uint8_t* scales = stages_ + (own_scale_ + stage);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int eight = (part * 2 + i) * 8 * kRowBytes;
      const uint32_t* w = words + eight / 4;
      piece.codes[i] = make_uint4(w[0], w[1], w[2], w[3]);
      piece.scales[i] = scales[eight];
    }
  }
  // The warp's first key of a turn.
  __device__ uint32_t first(uint32_t turn) const { return first_ + turn * kTurnKeys; }

 private:
  static constexpr uint32_t kRunBytes = kRun * kRowBytes;

  __device__ uint32_t key_at(uint32_t at) const {
    if (listed_ == nullptr) return at;
    return static_cast<uint32_t>(listed_[(at - begin_) / kListedKeys]) * kListedKeys + at % kListedKeys;
  }
  // Keys of any dims that lie anyhow.
  __device__ void bring_bytes(const ScoreArgs& args, uint32_t turn, uint32_t stage) const {
    const PagedRows& rows = args.rows[blockIdx.y].keys;
    const auto codes = static_cast<uint32_t>(args.dim / 2);
    const auto scales = static_cast<uint32_t>(args.dim / kScaleGroup);
#pragma unroll 1
    for (uint32_t i = threadIdx.x % kWarp; i < kWarpKeys * kRowBytes; i += kWarp) {
      const uint32_t byte = i % kRowBytes;
      const uint32_t key = key_at(min(first(turn) + i / kRowBytes, last_));
      const auto rows_per_page = static_cast<uint32_t>(rows.rows_per_page);
      const uint8_t* row = rows.pages[key / rows_per_page] + rows.offset + key % rows_per_page * rows.row_bytes;
      uint8_t v = byte < kDim / 2 ? 0 : 127;
      if (byte < kDim / 2) {
        if (byte < codes) v = row[byte];
      } else if (byte - kDim / 2 < scales) {
        v = row[codes + byte - kDim / 2];
      }
      stages_[threadIdx.x / kWarp * kStages * kStageBytes + stage + i] = v;
    }
  }

  uint8_t* const* pages_;
  uint32_t begin_, last_, shift_, odd_, first_, run_, to_, from_, own_, own_scale_;
  bool last_copy_;
  const int32_t* listed_;
  uint8_t* stages_;  // of all warps
};

// The scores of a turn's keys from each lane's sums: lane t of four has that of key t % 2 of the quad's two of tile t / 2, added
// as add_lanes does.
__device__ float add_turn(const float (&sums)[kParts][2]) {
  const bool odd = thread_index() % 2 == 1;
  const bool high = thread_index() % 4 / 2 == 1;
  float pair[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    pair[part] = odd ? sums[part][1] : sums[part][0];
    pair[part] += __shfl_xor_sync(0xffffffffu, odd ? sums[part][0] : sums[part][1], 1);
  }
  return (high ? pair[1] : pair[0]) + __shfl_xor_sync(0xffffffffu, high ? pair[0] : pair[1], 2);
}

// For a block: the keys [begin, end) of row r, or of its list. kBits: keys of blocks whose bits are not set are at -inf.
template <uint32_t kRun, bool kBits>
__device__ void score_keys(const ScoreArgs& args, int64_t r, uint32_t begin, uint32_t end, Shared& s) {
  using RowKeys = Keys<kRun>;
  const RowKeys keys(args, args.rows[r].keys, begin, end, s);
  const uint32_t turns = (end - begin + kTurnKeys - 1) / kTurnKeys;
  uint32_t turn = threadIdx.x / kWarpgroup;
  typename RowKeys::Place next = keys.find(turn);
#pragma unroll 1
  for (uint32_t i = 0; i < kStages - 1; ++i) {
    const typename RowKeys::Place now = next;
    next = keys.find(turn + (i + 1) * kGroups);
    if (turn + i * kGroups < turns) keys.bring(args, turn + i * kGroups, now, i * kStageBytes);
    commit_copies();
  }
  load_rows<Row>(args, r, 1, s.row);  // the first keys come meanwhile
  show_shared_memory();
  __syncthreads();
  const uint32_t t = threadIdx.x % 4;
  uint32_t weights[kHeads / 8];
#pragma unroll
  for (uint32_t eight = 0; eight < kHeads / 8; ++eight) weights[eight] = s.row.weights[0][eight * 4 + t];
  const bool restricted = kBits && s.row.restricted[0];
  // A lane has the score of one key (add_turn).
  uint32_t own_key = keys.first(0) + threadIdx.x % kWarp / 4 + t % 2 * 8 + t / 2 * 16;
  forget_uses(own_key);
  uint16_t* ranks = args.rank + r * args.row_stride;
  constexpr auto kMatrix = static_cast<uint32_t>(swizzled_matrix(0, kEightRows, 16) >> 32);
  const auto queries = static_cast<uint32_t>(swizzled_rows(shared_address(s.row.queries)));
  uint32_t stage = 0;
#pragma unroll 1
  for (; turn < turns; turn += kGroups) {
    wait_copies<kStages - 2>();
    __syncwarp();
    // What comes takes the place of the turn before this one.
    const uint32_t ahead = turn + (kStages - 1) * kGroups;
    const uint32_t free = stage == 0 ? (kStages - 1) * kStageBytes : stage - kStageBytes;
    if (ahead < turns) keys.bring(args, ahead, next, free);
    commit_copies();
    next = keys.find(ahead + kGroups);
    float sums[kParts][2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      KeyPiece piece;
      keys.load(stage, part, piece);
      uint32_t a[kProducts][4];
      widen_keys(piece, a);
      float c[Row::kInputs / 8][4];
      begin_products();
#pragma unroll
      for (uint32_t product = 0; product < kProducts; ++product) {
        const uint32_t low = queries + product_offset(product, Row::kInputs) / 16;
        multiply_rows<Row::kInputs>(c, a[product], static_cast<uint64_t>(kMatrix) << 32 | low, product > 0);
      }
      commit_products();
      wait_products<0>();
      settle(c);
      float own[1][2];
      add_heads<Row>(
          c, [&](int /*row*/, int eight) { return weights[eight]; }, own);
      sums[part][0] = own[0][0], sums[part][1] = own[0][1];
    }
    stage = stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes;
    const float score = add_turn(sums);
    const uint32_t key = own_key + turn * kTurnKeys;
    if (key >= end) continue;
    uint16_t rank = rank_of(round_to_bf16(score));
    if (restricted) {
      const uint32_t block = key / static_cast<uint32_t>(args.block_size);
      const auto* bits = reinterpret_cast<const uint32_t*>(args.bits + r * args.words);
      if ((bits[block / 32] >> block % 32 & 1) == 0) rank = kMinusInfinity;
    }
    ranks[key] = rank;
  }
}

// Grid: ranges of keys, rows.
template <bool kBits>
__global__ void __launch_bounds__(kThreads, 2) score_row_kernel(const __grid_constant__ ScoreArgs args) {
  take_turn();
  auto& s = *dynamic_shared<Shared>();
  if (shared_address(&s) % kEightRows != 0) __trap();
  const int64_t r = blockIdx.y;
  const auto block_keys = static_cast<uint32_t>(args.block_keys);
  const uint32_t begin = blockIdx.x * block_keys;
  uint32_t end = min(begin + block_keys, static_cast<uint32_t>(key_count(args, r)));
  forget_uses(end);
  if (begin >= end) return;
  if (args.list != nullptr) {
    const int32_t* list = args.list + r * args.list_stride + begin / kListedKeys;
    for (uint32_t i = threadIdx.x; i * kListedKeys < end - begin; i += kThreads) s.listed[i] = list[i];
    __syncthreads();
  }
  if (args.list == nullptr && args.rows[r].keys.rows_per_page % kWarpKeys == 0) {
    score_keys<kWarpKeys, kBits>(args, r, begin, end, s);
  } else {
    score_keys<kListedKeys, kBits>(args, r, begin, end, s);
  }
}

// Rounds of a block. Each brings its query to shared memory, which takes some 0.6 of a round: few blocks, but several for each
// place, as rows may have fewer keys than the longest, and places that end together.
int64_t block_rounds(int64_t longest, int64_t rows) {
  constexpr int64_t kPlaces = 132 * 2;
  const int64_t all = (longest + kBlockRound - 1) / kBlockRound;
  int64_t best = 1;
  int64_t least = INT64_MAX;
  for (int64_t rounds = 1; rounds <= std::min<int64_t>(all, kMostBlockRounds); ++rounds) {
    const int64_t blocks = (all + rounds - 1) / rounds * rows;
    if (rounds > 1 && blocks < 3 * kPlaces) break;
    const int64_t time = (blocks + kPlaces - 1) / kPlaces * (10 * rounds + 6);
    if (time < least) least = time, best = rounds;
  }
  return best;
}

}  // namespace

void score_each_row(const ScoreArgs& all, int64_t longest, LaunchStream& stream) {
  ScoreArgs args = all;
  args.block_keys = block_rounds(longest, args.row_count) * kBlockRound;
  const dim3 grid(static_cast<unsigned>((longest + args.block_keys - 1) / args.block_keys),
                  static_cast<unsigned>(args.row_count));
  const auto launch = [&](auto kernel) { stream.launch(kernel, grid, kThreads, sizeof(Shared), args); };
  if (args.restrict_rows) {
    launch(score_row_kernel<true>);
  } else {
    launch(score_row_kernel<false>);
  }
}

}  // namespace deepinfer::cuda
