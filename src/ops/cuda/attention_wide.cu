// Attention at many rows, on warpgroups: a block has one query and 64 heads, and keeps its scores. The arithmetic is that of
// attention.cu, to the bit: which 16 columns or keys are one product, the quarters they are added in and their order, the
// softmax.
//
//   scores   Four warpgroups, a tile of 64 keys each at a time. Keys are the A operand, widened in registers; the queries of all
//   heads
//            are B, in shared memory in the order of the products. Quarters of the dims are chains, added in registers.
//   softmax  A warp a head. Probabilities take the place of the scores.
//   values   Probabilities are A, 64 heads; values are B, 32 keys by 256 dims a stage, widened once into shared memory by two
//            warpgroups for the two that multiply. Quarters of the keys are chains; half of the dims comes after the other, so
//            that sums and chains are in registers.
//
// Shared memory: scores [heads][kScoreStride] fp32, then queries in the order of FP4 keys; the queries in the order of FP8 keys
// lie where scores go, so none is written before all keys of the window are multiplied. Values lie where the queries were.
//
// For 640 keys a block multiplies for 14 us at the matrix rate and widens 2 x 327,680 values, some 19,000 instructions of each of
// the four schedulers, in 11 us at 1.75 GHz; it moves 2 x 215 kB of keys and 128 kB of queries and outputs.

#include <algorithm>
#include <cmath>

#include "ops/cuda/attention.h"
#include "ops/cuda/attention_keys.cuh"
#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kDim = 512;
constexpr int kHeads = 64;     // of a block
constexpr int kQuarter = 128;  // dims of a chain of scores
constexpr int kQuarters = 4;
constexpr int kGroups = 4;  // warpgroups
constexpr int kThreads = kGroups * kWarpgroup;
constexpr int kTileKeys = 64;
constexpr int kMostKeys = 640;
constexpr int kScoreStride = kMostKeys + 4;              // fp32: the lanes of a store meet in no bank, nor rows of an ldmatrix
constexpr uint32_t kQueryBlock = kHeads * kSwizzledRow;  // 64 columns of all heads
constexpr uint32_t kQueryBytes = kDim / 64 * kQueryBlock;
constexpr int kSteps = 16;  // keys of one product
constexpr int kStageKeys = 32;
constexpr int kStageDims = 256;
constexpr uint32_t kValueBlock = kStageKeys * kSwizzledRow;  // 64 dims of a stage's keys
constexpr uint32_t kStageBytes = kStageDims / 64 * kValueBlock;
constexpr int kValueStages = 3;
constexpr int kMultipliers = 2;  // warpgroups that multiply values; the others widen them
constexpr int kGroupDims = kStageDims / kMultipliers;
constexpr int kWidenWarps = (kGroups - kMultipliers) * kWarpgroup / kWarp;
constexpr int kMultiplyWarps = kMultipliers * kWarpgroup / kWarp;

struct Shared {
  float scores[kHeads][kScoreStride];  // then probabilities, bf16, from the beginning of each row
  union {
    uint8_t queries[kQueryBytes];
    struct {
      uint8_t stages[kValueStages][kStageBytes];
      const uint8_t* rows[kMostKeys];
    } values;
  };
  float totals[kHeads];
  uint32_t odd_rows;  // whether any row begins at no multiple of 16 bytes
  uint64_t full[kValueStages];
  uint64_t empty[kValueStages];
};
static_assert(sizeof(Shared) <= 227 << 10);
static_assert(offsetof(Shared, queries) % kEightRows == 0);
static_assert(kQueryBytes <= sizeof(Shared::scores));

__device__ int thread_index() { return static_cast<int>(threadIdx.x); }

// Queries of all heads in the orders of the two formats of keys: at `compressed` and at `window` blocks of 64 columns, swizzled.
// Heads that are not there are zero. A warp has four heads and, of each 64 columns, eight of every lane that will widen
// compressed keys: stores in that order meet in no bank, those in the other in two.
constexpr int kParts = kDim / 64;
static_assert(kThreads / kWarp * 4 == kHeads);
__device__ int query_head() { return thread_index() / kWarp * 4 + thread_index() % kWarp / 8; }
__device__ int query_column(int part) {  // of a quarter
  const int lane = thread_index() % kWarp;
  return lane % 8 / 2 * 32 + part % 2 * 16 + lane % 2 * 8;
}
__device__ void load_queries(const bf16* q, int own_heads, uint4 (&v)[kParts]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    v[part] = make_uint4(0, 0, 0, 0);
    if (query_head() < own_heads) v[part] = load_again(q + query_head() * kDim + part / 2 * kQuarter + query_column(part));
  }
}
__device__ void order_queries(const uint4 (&v)[kParts], uint8_t* compressed, uint8_t* window) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint4 ordered = interleave(v[part]);
    const uint32_t pairs[4] = {ordered.x, ordered.y, ordered.z, ordered.w};
#pragma unroll
    for (const bool fp8 : {false, true}) {
#pragma unroll
      for (uint32_t pair = 0; pair < 4; ++pair) {
        const PairPlace p = pair_place(fp8, static_cast<uint32_t>(query_column(part)), pair);
        uint8_t* block = (fp8 ? window : compressed) + (static_cast<uint32_t>(part) / 2 * 2 + p.block) * kQueryBlock;
        *reinterpret_cast<uint32_t*>(block + swizzled_piece(static_cast<uint32_t>(query_head()), p.piece) + p.word * 4) =
            pairs[pair];
      }
    }
  }
}

// The list of a query in tiles of 64 keys, those of the window first. Of warpgroup g are the tiles g, g + kGroups, ...
struct Tiles {
  int window, count;   // keys
  int of_window, all;  // tiles
  __device__ explicit Tiles(const AttentionQuery& a)
      : window(window_of(a)),
        count(count_of(a)),
        of_window((window + kTileKeys - 1) / kTileKeys),
        all(of_window + (count - window + kTileKeys - 1) / kTileKeys) {}
  __device__ int first(int tile) const { return tile < of_window ? tile * kTileKeys : window + (tile - of_window) * kTileKeys; }
  __device__ int keys(int tile) const { return min(kTileKeys, (tile < of_window ? window : count) - first(tile)); }
};

// Where the keys lie that a warp multiplies, 16 of each tile of its group: lane i has row i % 16 of the group's tiles i / 16 and
// 2 + i / 16. Rows that are not there repeat the last one.
constexpr int kSlots = 2;
struct WarpRows {
  const uint8_t* row[kSlots];
  bool whole;  // of all lanes
};
__device__ int row_in_tile(int row) { return thread_index() % kWarpgroup / kWarp * 16 + row; }
__device__ WarpRows look_up(const AttentionQuery& a, const Tiles& tiles, int group) {
  // All row numbers are asked for before the first page is, and all pages before the first row.
  const int lane = thread_index() % kWarp;
  int entry[kSlots];
  uint32_t chosen[kSlots];
  const uint8_t* page[kSlots];
  WarpRows rows;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int tile = min(group + (slot * 2 + lane / 16) * kGroups, tiles.all - 1);
    entry[slot] = tiles.first(tile) + min(row_in_tile(lane % 16), tiles.keys(tile) - 1);
    chosen[slot] = entry[slot] < tiles.window ? 0 : static_cast<uint32_t>(a.chosen[entry[slot] - tiles.window]);
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) page[slot] = entry[slot] < tiles.window ? nullptr : page_of(a, chosen[slot]);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    rows.row[slot] = entry[slot] < tiles.window ? window_row(a, entry[slot]) : row_in_page(a, page[slot], chosen[slot]);
  rows.whole = whole_rows(address_of(rows.row[0]) | address_of(rows.row[1]));
  return rows;
}
// The same for everybody, once no query is read any more.
__device__ void list_rows(Shared& s, const WarpRows& rows, const Tiles& tiles, int group) {
  const int lane = thread_index() % kWarp;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int tile = group + (slot * 2 + lane / 16) * kGroups;
    const int row = row_in_tile(lane % 16);
    if (tile < tiles.all && row < tiles.keys(tile)) s.values.rows[tiles.first(tile) + row] = rows.row[slot];
  }
}

// The lane's two keys of the group's tile `number`: rows lane / 4 and 8 behind it of the warp's 16.
struct LaneRows {
  const uint8_t* row[2];
};
__device__ LaneRows lane_rows(const WarpRows& rows, int number) {
  const auto own = reinterpret_cast<unsigned long long>(number < 2 ? rows.row[0] : rows.row[1]);
  const int from = number % 2 * 16 + thread_index() % kWarp / 4;
  return {reinterpret_cast<const uint8_t*>(__shfl_sync(0xffffffffu, own, from)),
          reinterpret_cast<const uint8_t*>(__shfl_sync(0xffffffffu, own, from + 8))};
}

// The lane's part of 64 dims of the window's keys, and of a quarter of compressed ones.
struct WindowPiece {
  uint4 data[2];  // 16 dims
  uint32_t scales[2];
};
struct CompressedPiece {
  uint4 codes[2];      // 32 dims
  uint32_t scales[2];  // two bytes
};

__device__ void load_piece(const LaneRows& keys, bool whole, int chunk, WindowPiece& piece) {
  const int column = chunk * 64 + thread_index() % 4 * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    piece.data[i] = load_row(keys.row[i] + column, whole);
    piece.scales[i] = keys.row[i][kDim + column / kScaleGroup];
  }
}
__device__ void load_piece(const LaneRows& keys, bool whole, int quarter, CompressedPiece& piece) {
  const int column = quarter * kQuarter + thread_index() % 4 * 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    piece.codes[i] = load_row(keys.row[i] + column / 2, whole);
    piece.scales[i] = load_scales(keys.row[i] + kDim / 2 + column / kCacheScaleGroup, whole);
  }
}

__device__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// c (+)= products 2 kFirst .. 2 (kFirst + kPairs) - 1 of a quarter's eight, the first of which sets it. `queries`: address of the
// quarter's two blocks. `widen(i, pair, r)`: eight dims of key i, of which (0, 4) and (1, 5), then (2, 6) and (3, 7) are in one
// product. `a`: double, the units read one while the other is widened.
template <int kFirst, int kPairs, typename Widen>
__device__ void add_products(uint32_t queries, const Widen& widen, uint32_t (&a)[2][2][4], float (&c)[kHeads / 8][4]) {
#pragma unroll
  for (int pair = kFirst; pair < kFirst + kPairs; ++pair) {
    uint32_t(&now)[2][4] = a[pair % 2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t r[4];
      widen(i, pair, r);
      now[0][i] = r[0], now[0][i + 2] = r[1];
      now[1][i] = r[2], now[1][i + 2] = r[3];
    }
    begin_products();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto product = static_cast<uint32_t>(pair * 2 + half);
      multiply_rows<kHeads>(c, now[half], swizzled_rows(queries + product_offset(product, kHeads)), product > 0);
    }
    commit_products();
    wait_products<1>();
  }
}
// After the last product of a quarter: its chain is added to the sums.
__device__ void end_quarter(float (&c)[kHeads / 8][4], float (&sum)[kHeads / 8][4]) {
  wait_products<0>();
  settle(c);
#pragma unroll
  for (int j = 0; j < kHeads / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[j][i] += c[j][i];
  }
}

__device__ void widen_window(uint32_t w0, uint32_t w1, uint32_t byte, uint32_t (&r)[4]) {
  const uint32_t scale = scale_pair(byte, kFp8Bias);
  const uint32_t excess = excess_pair(byte, kFp8Bias);
  widen_fp8_interleaved(w0, w1, r);
#pragma unroll
  for (uint32_t& v : r) v = multiply_bf16x2(multiply_bf16x2(v, scale), excess);
}

// Scores of 64 keys of the window, before they are scaled.
__device__ void window_tile(const LaneRows& keys, bool whole, uint32_t queries, float (&sum)[kHeads / 8][4]) {
  WindowPiece pieces[2];  // while one is multiplied the other comes
  load_piece(keys, whole, 0, pieces[0]);
#pragma unroll 1
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    const auto widen = [&](int i, int pair, uint32_t(&r)[4]) {
      const WindowPiece& piece = pieces[pair / 2];
      widen_window(word_of(piece.data[i], pair % 2 * 2), word_of(piece.data[i], pair % 2 * 2 + 1), piece.scales[i], r);
    };
    float c[kHeads / 8][4];
    uint32_t a[2][2][4];
    const uint32_t own = queries + static_cast<uint32_t>(quarter) * 2 * kQueryBlock;
    load_piece(keys, whole, quarter * 2 + 1, pieces[1]);
    add_products<0, 2>(own, widen, a, c);
    if (quarter + 1 < kQuarters) load_piece(keys, whole, quarter * 2 + 2, pieces[0]);
    add_products<2, 2>(own, widen, a, c);
    end_quarter(c, sum);
  }
}

// The same of the group's compressed tile `number`. `piece`: its first quarter; afterwards that of the next tile.
__device__ void compressed_tile(const WarpRows& rows, int number, CompressedPiece& piece, uint32_t queries,
                                float (&sum)[kHeads / 8][4]) {
  LaneRows keys = lane_rows(rows, number);
#pragma unroll 1
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    const CompressedPiece now = piece;
    if (quarter + 1 == kQuarters) keys = lane_rows(rows, number + 1);
    load_piece(keys, rows.whole, (quarter + 1) % kQuarters, piece);
    uint32_t scales[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) scales[i][0] = scale_of(now.scales[i], 0), scales[i][1] = scale_of(now.scales[i], 1);
    float c[kHeads / 8][4];
    uint32_t a[2][2][4];
    add_products<0, 4>(
        queries + static_cast<uint32_t>(quarter) * 2 * kQueryBlock,
        [&](int i, int pair, uint32_t(&r)[4]) { widen_compressed(word_of(now.codes[i], pair), scales[i][pair / 2], r); }, a, c);
    end_quarter(c, sum);
  }
}

// Into the list's places first .. first + keys - 1.
__device__ void store_scores(Shared& s, int first, int keys, float scale, const float (&sum)[kHeads / 8][4]) {
  const int lane = thread_index() % kWarp;
  const int row = thread_index() % kWarpgroup / kWarp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = row + i / 2 * 8;
    if (key >= keys) continue;
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) s.scores[j * 8 + lane % 4 * 2 + i % 2][first + key] = sum[j][i] * scale;
  }
}

// Probabilities of kTogether heads from `head` on in place of their scores, zero behind the last key; and their sums, the sinks'
// too. `sink(i)`: of head + i.
constexpr int kTogether = 2;
template <typename Sink>
__device__ void softmax(Shared& s, int head, int count, const Sink& sink) {
  const int lane = thread_index() % kWarp;
  constexpr int kLaneKeys = kMostKeys / kWarp;
  constexpr float kNone = -INFINITY;  // its exponential is zero, and nothing in the sum
  float v[kTogether][kLaneKeys];
  float top[kTogether];
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    const float* row = s.scores[head + i] + lane;
    top[i] = -1e30f;
#pragma unroll
    for (int k = 0; k < kLaneKeys; ++k) v[i][k] = k * kWarp + lane < count ? row[k * kWarp] : kNone;
#pragma unroll
    for (int k = 0; k < kLaneKeys; ++k) top[i] = fmaxf(top[i], v[i][k]);
  }
#pragma unroll
  for (int i = 0; i < kTogether; ++i) top[i] = warp_max(top[i]);
  __syncwarp();
  float total[kTogether];
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    auto* p = reinterpret_cast<bf16*>(s.scores[head + i]) + lane;
    total[i] = 0;
#pragma unroll
    for (int k = 0; k < kLaneKeys; ++k) {
      const float e = expf(v[i][k] - top[i]);
      total[i] += e;
      p[k * kWarp] = narrow(e);
    }
  }
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    total[i] = warp_sum(total[i]);
    const float all = total[i] + expf(sink(i) - top[i]);
    if (lane == 0) s.totals[head + i] = all;
  }
}

// Values go through shared memory in stages: first all keys by half of the dims, then by the other half.
__device__ int stages_of_half(int count) { return (count + kStageKeys - 1) / kStageKeys; }

// What a lane widens of a stage: 32 dims of one key. A warp has eight keys and half of the stage's dims; the keys are the lanes
// that store together, so they meet in no bank.
__device__ int key_in_stage() {
  return (thread_index() - kMultipliers * kWarpgroup) / kWarp % (kStageKeys / 8) * 8 + thread_index() % kWarp % 8;
}
__device__ int dim_in_stage() {
  return (thread_index() - kMultipliers * kWarpgroup) / kWarp / (kStageKeys / 8) * 128 + thread_index() % kWarp / 8 * 32;
}
struct ValuePieces {
  uint4 data[2];
  uint32_t scales;  // window: one byte; compressed: two
  bool window;
};
// The lane's pieces of one stage after another. Keys behind the last one repeat it.
class ValueLoader {
 public:
  __device__ ValueLoader(const Shared& s, int window, int count, bool whole)
      : rows_(s.values.rows),
        window_(window),
        count_(count),
        keys_(stages_of_half(count) * kStageKeys),
        whole_(whole),
        key_(key_in_stage()),
        dim_(dim_in_stage()) {}
  __device__ void next(ValuePieces& v) {
    const int key = min(key_, count_ - 1);
    const uint8_t* row = rows_[key];
    v.window = key < window_;
    if (v.window) {
      v.data[0] = load_row(row + dim_, whole_);
      v.data[1] = load_row(row + dim_ + 16, whole_);
      v.scales = row[kDim + dim_ / kScaleGroup];
    } else {
      v.data[0] = load_row(row + dim_ / 2, whole_);
      v.scales = load_scales(row + kDim / 2 + dim_ / kCacheScaleGroup, whole_);
    }
    key_ += kStageKeys;
    if (key_ >= keys_) key_ -= keys_, dim_ += kStageDims;
  }

 private:
  const uint8_t* const* rows_;
  int window_, count_, keys_;
  bool whole_;
  int key_, dim_;
};

// In each eight dims in the order 0 4 1 5 2 6 3 7, as both formats are widened most easily; outputs are put in order instead.
__device__ void widen_pieces(const ValuePieces& from, uint32_t (&v)[4][4]) {
  if (from.window) {
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      const uint4& data = from.data[eight / 2];
      widen_window(word_of(data, eight % 2 * 2), word_of(data, eight % 2 * 2 + 1), from.scales, v[eight]);
    }
  } else {
#pragma unroll
    for (int eight = 0; eight < 4; ++eight)
      widen_compressed(word_of(from.data[0], eight), scale_of(from.scales, eight / 2), v[eight]);
  }
}

// The warpgroups that bring values to shared memory. `pieces`: of the first stages; as many stages are always on their way.
__device__ void widen_stages(Shared& s, int count, ValueLoader& loader, ValuePieces (&pieces)[kValueStages]) {
  const int stages = stages_of_half(count) * (kDim / kStageDims);
  const int lane = thread_index() % kWarp;
  uint8_t* to = s.values.stages[0] + dim_in_stage() / 64 * kValueBlock;
  uint32_t at[4];
#pragma unroll
  for (int piece = 0; piece < 4; ++piece)
    at[piece] = swizzled_piece(static_cast<uint32_t>(key_in_stage()), static_cast<uint32_t>(dim_in_stage() % 64 / 8 + piece));
  uint32_t parity = 1;
#pragma unroll 1
  for (int number = 0; number < stages; number += kValueStages, parity ^= 1) {
#pragma unroll
    for (int stage = 0; stage < kValueStages; ++stage) {
      if (number + stage >= stages) break;
      uint32_t v[4][4];
      widen_pieces(pieces[stage], v);
      if (number + stage + kValueStages < stages) loader.next(pieces[stage]);
      if (number > 0) barrier_wait(&s.empty[stage], parity);
#pragma unroll
      for (int piece = 0; piece < 4; ++piece)
        *reinterpret_cast<uint4*>(to + stage * kStageBytes + at[piece]) =
            make_uint4(v[piece][0], v[piece][1], v[piece][2], v[piece][3]);
      show_shared_memory();
      __syncwarp();
      if (lane == 0) barrier_arrive(&s.full[stage]);
    }
  }
}

// sums / total in place, of the lane's head i of two. Where no step leaves the range of numbers, two corrections of the product
// with the reciprocal round as a division does (Markstein), without its look at every operand.
__device__ void divide_sums(float total, int i, float (&sums)[kGroupDims / 8][4]) {
  constexpr float kLeast = 0x1p-40f;
  constexpr float kMost = 0x1p40f;
  float least = 1;
  float most = 1;
#pragma unroll
  for (int j = 0; j < kGroupDims / 8; ++j) {
#pragma unroll
    for (int k = i * 2; k < i * 2 + 2; ++k) least = fminf(least, fabsf(sums[j][k])), most = fmaxf(most, fabsf(sums[j][k]));
  }
  const bool plain = least >= kLeast && most <= kMost && total >= kLeast && total <= kMost;
  if (__any_sync(0xffffffffu, !plain)) {
#pragma unroll
    for (int j = 0; j < kGroupDims / 8; ++j) {
#pragma unroll
      for (int k = i * 2; k < i * 2 + 2; ++k) sums[j][k] /= total;
    }
    return;
  }
  const float reciprocal = 1.0f / total;
#pragma unroll
  for (int j = 0; j < kGroupDims / 8; ++j) {
#pragma unroll
    for (int k = i * 2; k < i * 2 + 2; ++k) {
      float quotient = sums[j][k] * reciprocal;
      quotient = fmaf(fmaf(-total, quotient, sums[j][k]), reciprocal, quotient);
      sums[j][k] = fmaf(fmaf(-total, quotient, sums[j][k]), reciprocal, quotient);
    }
  }
}

// Outputs of the warp's 16 heads, kGroupDims from `out` on. Columns are dims in the order of widen_pieces: a lane of four has
// dims t and t + 4 of each eight, and exchanges one with its neighbour.
__device__ void write_outputs(const Shared& s, int first_head, int own_heads, float (&sums)[kGroupDims / 8][4], bf16* out) {
  const int lane = thread_index() % kWarp;
  const int t = lane % 4;
  const bool odd = t % 2 == 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = first_head + lane / 4 + i * 8;
    const bool there = head < own_heads;
    divide_sums(there ? s.totals[head] : 1.0f, i, sums);
    bf16* row = out + head * kDim + (odd ? t + 3 : t);
#pragma unroll
    for (int j = 0; j < kGroupDims / 8; ++j) {
      const uint32_t own = narrow_pair(sums[j][i * 2], sums[j][i * 2 + 1]);
      const uint32_t other = __shfl_xor_sync(0xffffffffu, own, 1);
      const uint32_t pair = __byte_perm(own, other, odd ? 0x3276 : 0x5410);
      if (there) *reinterpret_cast<uint32_t*>(row + j * 8) = pair;
    }
  }
}

// The warpgroups that multiply values: 64 heads by 128 of a stage's dims each. `out`: the row's first head.
__device__ void multiply_stages(Shared& s, int group, int count, int own_heads, bf16* out) {
  const int lane = thread_index() % kWarp;
  const int warp = thread_index() % kWarpgroup / kWarp;
  const int steps = (count + kSteps - 1) / kSteps;
  const int share = (steps + kQuarters - 1) / kQuarters;
  const auto* p = reinterpret_cast<const bf16*>(s.scores[warp * 16 + lane % 16]) + lane / 16 * 8;
  const uint64_t values =
      swizzled_matrix(shared_address(s.values.stages[0]) + static_cast<uint32_t>(group) * (kGroupDims / 64) * kValueBlock,
                      kEightRows, kValueBlock);
  constexpr uint32_t kUnit = 16;  // of addresses in descriptors
  int stage = kValueStages - 1;
  uint32_t parity = 1;
#pragma unroll 1
  for (int half = 0; half < kDim / kStageDims; ++half) {
    float sums[kGroupDims / 8][4];
#pragma unroll
    for (auto& eight : sums) {
#pragma unroll
      for (float& sum : eight) sum = -0.0f;  // changes nothing that is added to it
    }
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const int begin = min(quarter * share, steps);
      const int end = min(begin + share, steps);
      float c[kGroupDims / 8][4] = {};
      uint32_t a[2][4];  // double: the units read one while the other is loaded
      if (begin < end) load_matrices(a[0], p + begin * kSteps);
#pragma unroll 1
      for (int first = begin; first < end; first += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int step = first + i;
          if (step >= end) break;
          const uint32_t second = static_cast<uint32_t>(step) % 2;  // of the stage's two
          const int before = stage;
          if (second == 0) {
            stage = stage + 1 < kValueStages ? stage + 1 : 0;
            if (stage == 0) parity ^= 1;
            barrier_wait(&s.full[stage], parity);
          }
          begin_products();
          multiply_rows<kGroupDims, true>(
              c, a[i], values + (static_cast<uint32_t>(stage) * kStageBytes + second * kSteps * kSwizzledRow) / kUnit, true);
          commit_products();
          wait_products<1>();  // the stage before is read no more, nor the other probabilities
          if (second == 0 && step > begin && lane == 0) barrier_arrive(&s.empty[before]);
          if (step + 1 < end) load_matrices(a[1 - i], p + (step + 1) * kSteps);
        }
      }
      wait_products<0>();
      settle(c);
      if (begin < end && (end % 2 == 0 || end == steps) && lane == 0) barrier_arrive(&s.empty[stage]);
#pragma unroll
      for (int j = 0; j < kGroupDims / 8; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[j][k] += c[j][k];
      }
    }
    write_outputs(s, warp * 16, own_heads, sums, out + half * kStageDims + group * kGroupDims);
  }
}

// Grid: rows, groups of heads.
__global__ void __launch_bounds__(kThreads, 1)
    attention_wide_kernel(const AttentionQuery* queries, const bf16* q, int heads, const float* sinks, float scale, bf16* out) {
  take_turn();
  Shared& s = *dynamic_shared<Shared>();
  if (shared_address(&s) % kEightRows != 0) __trap();
  const AttentionQuery& a = queries[blockIdx.x];
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int own_heads = min(kHeads, heads - first_head);
  const int64_t first_output = (static_cast<int64_t>(blockIdx.x) * heads + first_head) * kDim;
  const int group = thread_index() / kWarpgroup;
  const int lane = thread_index() % kWarp;
  const int warp = thread_index() / kWarp;

  // Queries begin on their way, then the look-up of keys, then the first compressed keys.
  uint4 query_parts[kParts];
  load_queries(q + first_output, own_heads, query_parts);
  constexpr int kWarpHeads = kHeads / (kThreads / kWarp);  // of the softmax
  const float sink = sinks[first_head + min(warp * kWarpHeads + lane % kWarpHeads, own_heads - 1)];
  if (thread_index() == 0) {
    s.odd_rows = 0;
    for (int i = 0; i < kValueStages; ++i) {
      barrier_init(&s.full[i], kWidenWarps);
      barrier_init(&s.empty[i], kMultiplyWarps);
    }
    show_barriers();
  }
  const Tiles tiles(a);
  const WarpRows rows = look_up(a, tiles, group);
  CompressedPiece piece{};
  load_piece(lane_rows(rows, group < tiles.of_window ? 1 : 0), rows.whole, 0, piece);
  order_queries(query_parts, s.queries, reinterpret_cast<uint8_t*>(s.scores));
  show_shared_memory();
  __syncthreads();

  const uint32_t compressed_queries = shared_address(s.queries);
#pragma unroll 1
  for (int number = 0; number == 0 || group + number * kGroups < tiles.all; ++number) {
    const int tile = group + number * kGroups;
    float sum[kHeads / 8][4] = {};
    if (tile < tiles.of_window) {
      window_tile(lane_rows(rows, 0), rows.whole, shared_address(s.scores), sum);
    } else if (tile < tiles.all) {
      compressed_tile(rows, number, piece, compressed_queries, sum);
    }
    if (number == 0) __syncthreads();  // the queries in the order of the window are read no more
    if (tile < tiles.all) store_scores(s, tiles.first(tile), tiles.keys(tile), scale, sum);
  }
  if (!rows.whole && lane == 0) s.odd_rows = 1;
  __syncthreads();

  list_rows(s, rows, tiles, group);
  __syncthreads();
  // The first values come while probabilities are made.
  ValuePieces pieces[kValueStages] = {};
  ValueLoader loader(s, tiles.window, tiles.count, s.odd_rows == 0);
  if (group >= kMultipliers) {
#pragma unroll
    for (int i = 0; i < kValueStages; ++i) {
      if (i < stages_of_half(tiles.count) * (kDim / kStageDims)) loader.next(pieces[i]);
    }
  }
#pragma unroll 1
  for (int i = 0; i < kWarpHeads; i += kTogether) {
    const int head = warp * kWarpHeads + i;
    if (head < own_heads) softmax(s, head, tiles.count, [&](int k) { return __shfl_sync(0xffffffffu, sink, i + k); });
  }
  __syncthreads();

  if (group >= kMultipliers) {
    give_registers<88>();
    widen_stages(s, tiles.count, loader, pieces);
  } else {
    take_registers<168>();
    multiply_stages(s, group, tiles.count, own_heads, out + first_output);
  }
}

}  // namespace

bool fits_wide_attention(const SparseAttentionArgs& args) {
  if (args.dim != kDim) return false;
  return std::all_of(args.queries.begin(), args.queries.end(), [](const AttentionQuery& a) {
    const int64_t window = a.window_last - a.window_first + 1;
    const int64_t count = window + a.chosen_count;
    return window <= kGroups * kTileKeys && count > 0 && count <= kMostKeys;
  });
}

void sparse_attention_wide(const SparseAttentionArgs& args, const AttentionQuery* queries, LaunchStream& stream) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.dim));
  const dim3 grid(static_cast<unsigned>(args.queries.size()), static_cast<unsigned>((args.heads + kHeads - 1) / kHeads));
  stream.launch(attention_wide_kernel, grid, kThreads, sizeof(Shared), queries, args.q, static_cast<int>(args.heads), args.sinks,
                scale, args.out);
}

}  // namespace deepinfer::cuda
