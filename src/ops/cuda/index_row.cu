// Index scores of rows whose keys are their own, on warpgroups (index_wide.cuh). A block has one row and a range of its keys, or
// of those of listed blocks. A warp brings the 16 keys of its part of a tile to shared memory, some tiles ahead: two pieces of
// eight keys, wherever they lie. So widening and products wait for nothing. They are what bounds this: some 360
// instructions of a warp for 16 keys, where memory would do with the time of 235.

#include <algorithm>

#include "ops/cuda/index_wide.cuh"
#include "ops/cuda/launch_order.cuh"

namespace deepinfer::cuda {
namespace {

using namespace wide_index;  // NOLINT(google-build-using-namespace)

using Row = Shape<1, 1>;
constexpr int kWarpKeys = 16;
constexpr int kStages = 4;  // tiles of a warp
constexpr int kRowBytes = kDim / 2 + kDim / kScaleGroup;
constexpr int kPieceBytes = kListedKeys * kRowBytes;
constexpr uint32_t kStageBytes = 2 * kPieceBytes;
constexpr int kMostListed = kMostRounds * kRound / kListedKeys;
static_assert(kRound % kListedKeys == 0 && kWarpKeys == 2 * kListedKeys);
static_assert(kPieceBytes % 16 == 0 && kPieceBytes / 16 > 32 && kPieceBytes / 16 <= 48);

struct Shared {
  Row::Shared row;
  int32_t listed[kMostListed];  // blocks of the block's keys
  alignas(16) uint8_t keys[kThreads / kWarp][kStages][kStageBytes];
};

// The keys [begin, end) of a row, or of its list, as a warp has them: 16 of each tile. Half a warp is for eight of them. What a
// lane needs for every tile is computed once, without signs: remainders of what may be negative take four instructions.
class Keys {
 public:
  __device__ Keys(const ScoreArgs& args, const PagedRows& rows, uint32_t begin, uint32_t end, Shared& s)
      : pages_(rows.pages), begin_(begin), last_(end - 1), listed_(args.list != nullptr ? s.listed : nullptr) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t q = lane % 16;
    const auto rows_per_page = static_cast<uint32_t>(rows.rows_per_page);
    shift_ = static_cast<uint32_t>(__popc(rows_per_page - 1));
    const bool whole = args.dim == kDim && rows.row_bytes == kRowBytes && rows_per_page % kListedKeys == 0 &&
                       (rows_per_page & (rows_per_page - 1)) == 0;
    odd_ = whole ? static_cast<uint32_t>(rows.offset % 16) : 1;
    first_ = begin + threadIdx.x % kWarpgroup / kWarp * kWarpKeys;
    piece_ = first_ + lane / 16 * kListedKeys;
    ring_ = s.keys[threadIdx.x / kWarp][0];
    to_ = shared_address(ring_) + lane / 16 * kPieceBytes + q * 16;
    from_ = static_cast<uint32_t>(rows.offset) + q * 16;
    last_copy_ = q < kPieceBytes / 16 - 32;
    own_ = lane / 4 * kRowBytes + lane % 4 * 16;
    own_scale_ = lane / 4 * kRowBytes + kDim / 2 + lane % 4;
    for (uint32_t* kept : {&shift_, &piece_, &to_, &from_, &own_, &own_scale_}) forget_uses(*kept);
  }

  // Where the lane's eight keys of a tile lie, asked for ahead.
  struct Place {
    const uint8_t* page;
    uint32_t row;
  };
  __device__ Place find(uint32_t tile) const {
    const uint32_t key = key_at(min(piece_ + tile * kTileKeys, last_ & ~(kListedKeys - 1u)));
    if (odd_ != 0) return {nullptr, 0};
    const uint32_t page = key >> shift_;
    return {pages_[page], key - (page << shift_)};
  }
  // To the stage that begins at byte `stage`.
  __device__ void bring(const ScoreArgs& args, uint32_t tile, const Place& at, uint32_t stage) const {
    const uint32_t odd = odd_ | (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at.page)) & 15);
    if (__any_sync(0xffffffffu, odd != 0)) return bring_bytes(args, tile, stage);
    const uint8_t* from = at.page + (from_ + at.row * kRowBytes);
    const uint32_t to = to_ + stage;
    copy_async_if(true, to, from);
    copy_async_if(true, to + 256, from + 256);
    copy_async_if(last_copy_, to + 512, from + 512);
  }
  // The lane's part of its two keys.
  __device__ void load(uint32_t stage, KeyPiece& piece) const {
    const auto* words = reinterpret_cast<const uint32_t*>(ring_ + (own_ + stage));
    const uint8_t* scales = ring_ + (own_scale_ + stage);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t* w = words + i * (kPieceBytes / 4);
      piece.codes[i] = make_uint4(w[0], w[1], w[2], w[3]);
      piece.scales[i] = scales[i * kPieceBytes];
    }
  }
  // The warp's first key of a tile.
  __device__ uint32_t first(uint32_t tile) const { return first_ + tile * kTileKeys; }

 private:
  __device__ uint32_t key_at(uint32_t at) const {
    if (listed_ == nullptr) return at;
    return static_cast<uint32_t>(listed_[(at - begin_) / kListedKeys]) * kListedKeys + at % kListedKeys;
  }
  // Keys of any dims that lie anyhow.
  __device__ void bring_bytes(const ScoreArgs& args, uint32_t tile, uint32_t stage) const {
    const PagedRows& rows = args.rows[blockIdx.y].keys;
    const auto codes = static_cast<uint32_t>(args.dim / 2);
    const auto scales = static_cast<uint32_t>(args.dim / kScaleGroup);
#pragma unroll 1
    for (uint32_t i = threadIdx.x % kWarp; i < kWarpKeys * kRowBytes; i += kWarp) {
      const uint32_t byte = i % kRowBytes;
      const uint32_t key = key_at(min(first(tile) + i / kRowBytes, last_));
      const auto rows_per_page = static_cast<uint32_t>(rows.rows_per_page);
      const uint8_t* row = rows.pages[key / rows_per_page] + rows.offset + key % rows_per_page * rows.row_bytes;
      uint8_t v = byte < kDim / 2 ? 0 : 127;
      if (byte < kDim / 2) {
        if (byte < codes) v = row[byte];
      } else if (byte - kDim / 2 < scales) {
        v = row[codes + byte - kDim / 2];
      }
      ring_[stage + i] = v;
    }
  }

  uint8_t* const* pages_;
  uint32_t begin_, last_, shift_, odd_, first_, piece_, to_, from_, own_, own_scale_;
  bool last_copy_;
  const int32_t* listed_;
  uint8_t* ring_;
};

// Grid: ranges of keys, rows. kBits: keys of blocks whose bits are not set are at -inf.
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
  const Keys keys(args, args.rows[r].keys, begin, end, s);
  const uint32_t tiles = (end - begin + kTileKeys - 1) / kTileKeys;
  uint32_t tile = threadIdx.x / kWarpgroup;
  Keys::Place next = keys.find(tile);
#pragma unroll 1
  for (uint32_t i = 0; i < kStages - 1; ++i) {
    const Keys::Place now = next;
    next = keys.find(tile + (i + 1) * kGroups);
    if (tile + i * kGroups < tiles) keys.bring(args, tile + i * kGroups, now, i * kStageBytes);
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
  // A key's lanes 0 and 1 have a score each.
  uint32_t own_key = t < 2 ? keys.first(0) + threadIdx.x % kWarp / 4 + t * 8 : ~0u >> 1;
  forget_uses(own_key);
  uint16_t* ranks = args.rank + r * args.row_stride;
  constexpr auto kMatrix = static_cast<uint32_t>(swizzled_matrix(0, kEightRows, 16) >> 32);
  const auto queries = static_cast<uint32_t>(swizzled_rows(shared_address(s.row.queries)));
  uint32_t stage = 0;
#pragma unroll 1
  for (; tile < tiles; tile += kGroups) {
    wait_copies<kStages - 2>();
    __syncwarp();
    // What comes takes the place of the tile before this one.
    const uint32_t ahead = tile + (kStages - 1) * kGroups;
    const uint32_t free = stage == 0 ? (kStages - 1) * kStageBytes : stage - kStageBytes;
    if (ahead < tiles) keys.bring(args, ahead, next, free);
    commit_copies();
    next = keys.find(ahead + kGroups);
    KeyPiece piece;
    keys.load(stage, piece);
    stage = stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes;
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
    float sums[1][2];
    add_heads<Row>(
        c, [&](int /*row*/, int eight) { return weights[eight]; }, sums);
    float score[1];
    add_lanes(sums, score);
    const uint32_t key = own_key + tile * kTileKeys;
    if (key >= end) continue;
    uint16_t rank = rank_of(round_to_bf16(score[0]));
    if (restricted) {
      const uint32_t block = key / static_cast<uint32_t>(args.block_size);
      const auto* bits = reinterpret_cast<const uint32_t*>(args.bits + r * args.words);
      if ((bits[block / 32] >> block % 32 & 1) == 0) rank = kMinusInfinity;
    }
    ranks[key] = rank;
  }
}

}  // namespace

void score_each_row(const ScoreArgs& all, int64_t longest, LaunchStream& stream) {
  // Each block brings its query to shared memory: few blocks, as long as they fill the device several times.
  constexpr int64_t kBlocks = 132 * 2 * 6;
  ScoreArgs args = all;
  args.block_keys = std::clamp<int64_t>(longest * args.row_count / kBlocks / kRound, 2, kMostRounds) * kRound;
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
