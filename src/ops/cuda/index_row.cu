// Index scores of rows whose keys are their own, on warpgroups (index_wide.cuh). A block has one row and a range of its keys, or
// of those of listed blocks. A warp brings the 16 keys of its part of a tile to shared memory, some tiles ahead: two pieces of
// eight keys, wherever they lie. So widening and products wait for nothing. They are what bounds this: some 350
// instructions of a warp for 16 keys, where memory would do with the time of 235. Products are those of index_narrow.cuh, where
// the scales of a warp's 16 keys allow it.

#include <algorithm>

#include "ops/cuda/index_narrow.cuh"
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
  NarrowQueries narrow;  // first: rows of 128 bytes, exchanged within eight
  alignas(kEightRows) Row::Shared row;
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
    own_ = lane / 4 * kRowBytes;
    own_codes_ = own_ + lane % 4 * 4;
    for (uint32_t* kept : {&shift_, &piece_, &to_, &from_, &own_, &own_codes_}) forget_uses(*kept);
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
  __device__ void load(uint32_t stage, NarrowPiece& piece) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
#pragma unroll
      for (uint32_t group = 0; group < kNarrowGroups; ++group)
        piece.codes[i][group] = word(stage + own_codes_ + i * kPieceBytes + group * (kScaleGroup / 2));
      piece.scales[i] = word(stage + own_ + i * kPieceBytes + kDim / 2);
    }
  }
  // The row of the first of them.
  __device__ const uint8_t* row(uint32_t stage) const { return ring_ + stage + own_; }
  // A scale of the warp's first key.
  __device__ uint32_t first_scale(uint32_t stage) const { return ring_[stage + kDim / 2]; }
  // The warp's first key of a tile.
  __device__ uint32_t first(uint32_t tile) const { return first_ + tile * kTileKeys; }

 private:
  __device__ uint32_t word(uint32_t at) const { return *reinterpret_cast<const uint32_t*>(ring_ + at); }
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
  uint32_t begin_, last_, shift_, odd_, first_, piece_, to_, from_, own_, own_codes_;
  bool last_copy_;
  const int32_t* listed_;
  uint8_t* ring_;
};

// The same sums as add_narrow, of any queries and scales, by chains of bf16 products: of a warp's 16 keys, the lane's first of
// which lies at `key`.
__device__ __attribute__((noinline)) float2 add_widened(const uint8_t* key, const Row::Shared& s) {
  const uint32_t g = threadIdx.x % kWarp / 4;
  const uint32_t t = threadIdx.x % 4;
  uint32_t scales[2], excess[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t scale = key[i * kPieceBytes + kDim / 2 + t];
    scales[i] = scale_pair(scale, kFp4Bias);
    excess[i] = excess_pair(scale, kFp4Bias);
  }
  float c[kHeads / 8][4] = {};
#pragma unroll 1
  for (uint32_t pair = 0; pair < 4; ++pair) {
    uint32_t a[2][4];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      uint32_t r[4];
      widen_fp4(*reinterpret_cast<const uint32_t*>(key + i * kPieceBytes + t * 16 + pair * 4), r);
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) a[k / 2][i + k % 2 * 2] = multiply_bf16x2(multiply_bf16x2(r[k], scales[i]), excess[i]);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t product = pair * 2 + half;
      const uint8_t* queries = s.queries + product / 4 * Row::kBlockBytes + t * 4;
#pragma unroll
      for (uint32_t eight = 0; eight < kHeads / 8; ++eight) {
        uint32_t b[2];
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k)
          b[k] = *reinterpret_cast<const uint32_t*>(queries + swizzled_piece(eight * 8 + g, product % 4 * 2 + k));
        mma(c[eight], a[half], b[0], b[1]);
      }
    }
  }
  float sums[1][2];
  add_heads<Row>(
      c, [&](int /*row*/, int eight) { return s.weights[0][eight * 4 + static_cast<int>(t)]; }, sums);
  return make_float2(sums[0][0], sums[0][1]);
}

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
  load_narrow(args, r, s.narrow);
  show_shared_memory();
  __syncthreads();
  const uint32_t t = threadIdx.x % 4;
  const bool restricted = kBits && s.row.restricted[0];
  // A key's lanes 0 and 1 have a score each.
  uint32_t own_key = t < 2 ? keys.first(0) + threadIdx.x % kWarp / 4 + t * 8 : ~0u >> 1;
  forget_uses(own_key);
  uint16_t* ranks = args.rank + r * args.row_stride;
  constexpr auto kMatrix = static_cast<uint32_t>(swizzled_matrix(0, kEightRows, 16) >> 32);
  const auto queries = static_cast<uint32_t>(swizzled_rows(shared_address(s.narrow.queries)));
  const NarrowLimits limits = narrow_limits(s.narrow);
  uint32_t stage = 0;
  wait_copies<kStages - 2>();
  __syncwarp();
  uint32_t lowest = lowest_scales(limits, keys.first_scale(stage));
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
    NarrowPiece piece;
    keys.load(stage, piece);
    uint32_t a[kNarrowGroups][4];
    narrow_keys(piece, a);
    const bool far = __any_sync(0xffffffffu, too_far(piece, limits, lowest));
    float sums[1][2];
    add_narrow(piece, a, kMatrix, queries, s.narrow.weights[t], sums);
    if (far) {
      const float2 widened = add_widened(keys.row(stage), s.row);
      sums[0][0] = widened.x;
      sums[0][1] = widened.y;
      lowest = lowest_scales(limits, keys.first_scale(stage));
    }
    stage = stage == (kStages - 1) * kStageBytes ? 0 : stage + kStageBytes;
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
