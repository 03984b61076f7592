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
  uint64_t full[kValueStages];
  uint64_t empty[kValueStages];
};
static_assert(sizeof(Shared) <= 227 << 10);
static_assert(offsetof(Shared, queries) % kEightRows == 0);
static_assert(kQueryBytes <= sizeof(Shared::scores));

__device__ int thread_index() { return static_cast<int>(threadIdx.x); }

// Queries of all heads in the orders of the two formats of keys: at `compressed` and at `window` blocks of 64 columns, swizzled.
// Heads that are not there are zero.
__device__ void order_queries(const bf16* q, int own_heads, uint8_t* compressed, uint8_t* window) {
  // A warp has four heads and, of each 64 columns, eight of every lane that will widen compressed keys: stores in that order meet
  // in no bank, those in the other in two.
  static_assert(kThreads / kWarp * 4 == kHeads);
  constexpr int kParts = kDim / 64;
  const int lane = thread_index() % kWarp;
  const int head = thread_index() / kWarp * 4 + lane / 8;
  const auto column_of = [&](int part) { return lane % 8 / 2 * 32 + part % 2 * 16 + lane % 2 * 8; };  // of a quarter
  uint4 v[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    v[part] = make_uint4(0, 0, 0, 0);
    if (head < own_heads) v[part] = load_again(q + head * kDim + part / 2 * kQuarter + column_of(part));
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint4 ordered = interleave(v[part]);
    const uint32_t pairs[4] = {ordered.x, ordered.y, ordered.z, ordered.w};
#pragma unroll
    for (const bool fp8 : {false, true}) {
#pragma unroll
      for (uint32_t pair = 0; pair < 4; ++pair) {
        const PairPlace p = pair_place(fp8, static_cast<uint32_t>(column_of(part)), pair);
        uint8_t* block = (fp8 ? window : compressed) + (static_cast<uint32_t>(part) / 2 * 2 + p.block) * kQueryBlock;
        *reinterpret_cast<uint32_t*>(block + swizzled_piece(static_cast<uint32_t>(head), p.piece) + p.word * 4) = pairs[pair];
      }
    }
  }
}

// The lane's two keys of a tile: rows lane / 4 and 8 behind it of the warp's 16. Rows that are not there repeat the last one.
struct LaneRows {
  const uint8_t* row[2];
};
__device__ LaneRows lane_rows(const AttentionQuery& a, int first, int keys) {
  const int row = thread_index() % kWarpgroup / kWarp * 16 + thread_index() % kWarp / 4;
  return {key_row(a, first + min(row, keys - 1)), key_row(a, first + min(row + 8, keys - 1))};
}

// The lane's part of a quarter of the dims.
struct WindowPiece {
  uint4 data[2][2];  // 16 dims of each 64
  uint32_t scales[2][2];
};
struct CompressedPiece {
  uint4 codes[2];      // 32 dims
  uint32_t scales[2];  // two bytes
};

__device__ void load_piece(const LaneRows& keys, int quarter, WindowPiece& piece) {
  const int t = thread_index() % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      const int column = quarter * kQuarter + chunk * 64 + t * 16;
      piece.data[i][chunk] = load_unaligned(keys.row[i] + column);
      piece.scales[i][chunk] = keys.row[i][kDim + column / kScaleGroup];
    }
  }
}
__device__ void load_piece(const LaneRows& keys, int quarter, CompressedPiece& piece) {
  const int column = quarter * kQuarter + thread_index() % 4 * 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    piece.codes[i] = load_unaligned(keys.row[i] + column / 2);
    const uint8_t* scales = keys.row[i] + kDim / 2 + column / kCacheScaleGroup;
    piece.scales[i] = scales[0] | static_cast<uint32_t>(scales[1]) << 8;
  }
}

__device__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// sum += the chain of a quarter's eight products. `queries`: address of the quarter's two blocks. `widen(i, pair, r)`: eight dims
// of key i, of which (0, 4) and (1, 5), then (2, 6) and (3, 7) are in one product.
template <typename Widen>
__device__ void multiply_quarter(uint32_t queries, const Widen& widen, float (&sum)[kHeads / 8][4]) {
  float c[kHeads / 8][4];
  uint32_t a[2][2][4];  // double: the units read one while the other is widened
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
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
  wait_products<0>();
  settle(c);
#pragma unroll
  for (int j = 0; j < kHeads / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[j][i] += c[j][i];
  }
}

// Scores of 64 keys of the window, before they are scaled.
__device__ void window_tile(const LaneRows& keys, uint32_t queries, float (&sum)[kHeads / 8][4]) {
#pragma unroll 1
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    WindowPiece piece;
    load_piece(keys, quarter, piece);
    multiply_quarter(
        queries + static_cast<uint32_t>(quarter) * 2 * kQueryBlock,
        [&](int i, int pair, uint32_t(&r)[4]) {
          const uint4& data = piece.data[i][pair / 2];
          const uint32_t scale = scale_pair(piece.scales[i][pair / 2], kFp8Bias);
          const uint32_t excess = excess_pair(piece.scales[i][pair / 2], kFp8Bias);
          widen_fp8_interleaved(word_of(data, pair % 2 * 2), word_of(data, pair % 2 * 2 + 1), r);
#pragma unroll
          for (uint32_t& v : r) v = multiply_bf16x2(multiply_bf16x2(v, scale), excess);
        },
        sum);
  }
}

// The same of 64 compressed keys. `piece`: their first quarter; afterwards that of `next`.
__device__ void compressed_tile(const LaneRows& keys, const LaneRows& next, CompressedPiece& piece, uint32_t queries,
                                float (&sum)[kHeads / 8][4]) {
#pragma unroll 1
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    const CompressedPiece now = piece;
    const bool last = quarter + 1 == kQuarters;
    const LaneRows from = {last ? next.row[0] : keys.row[0], last ? next.row[1] : keys.row[1]};
    load_piece(from, last ? 0 : quarter + 1, piece);
    uint32_t scales[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[i][0] = same_pair(e4m3_value(now.scales[i] & 255));
      scales[i][1] = same_pair(e4m3_value(now.scales[i] >> 8));
    }
    multiply_quarter(
        queries + static_cast<uint32_t>(quarter) * 2 * kQueryBlock,
        [&](int i, int pair, uint32_t(&r)[4]) { widen_compressed(word_of(now.codes[i], pair), scales[i][pair / 2], r); }, sum);
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

// Probabilities of a head in place of its scores, zero behind the last key up to a multiple of 16; and their sum, the sink's too.
__device__ void softmax(Shared& s, int head, int count, float sink) {
  const int lane = thread_index() % kWarp;
  constexpr int kLaneKeys = kMostKeys / kWarp;
  float* row = s.scores[head];
  float v[kLaneKeys];
  float top = -1e30f;
#pragma unroll
  for (int k = 0; k < kLaneKeys; ++k) {
    const int i = k * kWarp + lane;
    if (i >= count) continue;
    v[k] = row[i];
    top = fmaxf(top, v[k]);
  }
  top = warp_max(top);
  __syncwarp();
  auto* p = reinterpret_cast<bf16*>(row);
  const int padded = (count + kSteps - 1) / kSteps * kSteps;
  float total = 0;
#pragma unroll
  for (int k = 0; k < kLaneKeys; ++k) {
    const int i = k * kWarp + lane;
    if (i >= padded) continue;
    const float e = i < count ? expf(v[k] - top) : 0.0f;
    total += e;
    p[i] = narrow(e);
  }
  total = warp_sum(total);
  if (lane == 0) s.totals[head] = total + expf(sink - top);
}

// 32 dims of one key.
struct ValuePieces {
  uint4 data[2];
  uint32_t scales;  // window: one byte; compressed: two
  bool window;
};

__device__ ValuePieces load_values(const uint8_t* row, bool window, int dim) {
  ValuePieces v;
  v.window = window;
  v.data[1] = make_uint4(0, 0, 0, 0);
  if (window) {
    v.data[0] = load_unaligned(row + dim);
    v.data[1] = load_unaligned(row + dim + 16);
    v.scales = row[kDim + dim / kScaleGroup];
  } else {
    v.data[0] = load_unaligned(row + dim / 2);
    const uint8_t* scales = row + kDim / 2 + dim / kCacheScaleGroup;
    v.scales = scales[0] | static_cast<uint32_t>(scales[1]) << 8;
  }
  return v;
}

// Stages of values: first all keys by half of the dims, then by the other half.
__device__ int stage_count(int count) { return (count + kStageKeys - 1) / kStageKeys * (kDim / kStageDims); }

// What a lane widens of a stage: 32 dims of one key. A warp has eight keys and half of the stage's dims; the keys are the lanes
// that store together, so they meet in no bank. Keys behind the last one repeat it.
struct StagePart {
  int key_in_stage, dim_in_stage;
  int key, dim;
};
__device__ StagePart stage_part(int number, int count) {
  const int lane = thread_index() % kWarp;
  const int warp = (thread_index() - kMultipliers * kWarpgroup) / kWarp;
  const int per_half = (count + kStageKeys - 1) / kStageKeys;
  StagePart part{};
  part.key_in_stage = warp % (kStageKeys / 8) * 8 + lane % 8;
  part.dim_in_stage = warp / (kStageKeys / 8) * 128 + lane / 8 * 32;
  part.key = min(number % per_half * kStageKeys + part.key_in_stage, count - 1);
  part.dim = number / per_half * kStageDims + part.dim_in_stage;
  return part;
}

// Stages on their way from memory. The first go before there is a list of rows.
constexpr int kAhead = kDim / kStageDims;  // no more than there are
__device__ void load_first_values(const AttentionQuery& a, int window, int count, ValuePieces (&pieces)[kAhead]) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const StagePart part = stage_part(i, count);
    pieces[i] = load_values(key_row(a, part.key), part.key < window, part.dim);
  }
}

// The warpgroups that bring values to shared memory.
__device__ void widen_stages(Shared& s, int window, int count, ValuePieces (&pieces)[kAhead]) {
  const int lane = thread_index() % kWarp;
  const StagePart own = stage_part(0, count);
  const int stages = stage_count(count);
  for (int number = 0; number < stages; number += kAhead) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int at = number + ahead;
      if (at >= stages) break;
      const ValuePieces now = pieces[ahead];
      if (at + kAhead < stages) {
        const StagePart next = stage_part(at + kAhead, count);
        pieces[ahead] = load_values(s.values.rows[next.key], next.key < window, next.dim);
      }
      const int stage = at % kValueStages;
      const int turn = at / kValueStages;
      uint8_t* to = s.values.stages[stage] + own.dim_in_stage / 64 * kValueBlock;
      uint32_t v[2][8];
      widen_values({now.data[0], now.scales & 255}, now.window, v[0]);
      const uint4 second = now.window ? now.data[1] : make_uint4(now.data[0].z, now.data[0].w, 0, 0);
      widen_values({second, now.window ? now.scales : now.scales >> 8}, now.window, v[1]);
      if (turn > 0) barrier_wait(&s.empty[stage], static_cast<uint32_t>(turn - 1) & 1);
#pragma unroll
      for (int piece = 0; piece < 4; ++piece) {
        const uint32_t* from = v[piece / 2] + piece % 2 * 4;
        *reinterpret_cast<uint4*>(to + swizzled_piece(static_cast<uint32_t>(own.key_in_stage),
                                                      static_cast<uint32_t>(own.dim_in_stage % 64 / 8 + piece))) =
            make_uint4(from[0], from[1], from[2], from[3]);
      }
      show_shared_memory();
      __syncwarp();
      if (lane == 0) barrier_arrive(&s.full[stage]);
    }
  }
}

// The warpgroups that multiply them: 64 heads by 128 of a stage's dims each. `out`: the row's first head.
__device__ void multiply_stages(Shared& s, int group, int count, int own_heads, bf16* out) {
  const int lane = thread_index() % kWarp;
  const int warp = thread_index() % kWarpgroup / kWarp;
  const int steps = (count + kSteps - 1) / kSteps;
  const int share = (steps + kQuarters - 1) / kQuarters;
  const int stages = (count + kStageKeys - 1) / kStageKeys;
  const auto* p = reinterpret_cast<const bf16*>(s.scores[warp * 16 + lane % 16]) + lane / 16 * 8;
  // Probabilities of two steps; a chain of an odd number of products ends with one by zero.
  const auto load = [&](int step, bool both, uint32_t(&a)[2][4]) {
    load_matrices(a[0], p + step * kSteps);
    load_matrices(a[1], p + (both ? step + 1 : step) * kSteps);
#pragma unroll
    for (uint32_t& v : a[1]) v = both ? v : 0;
  };
#pragma unroll 1
  for (int half = 0; half < kDim / kStageDims; ++half) {
    const auto turn_of = [&](int step) { return half * stages + step / 2; };
    const auto values_of = [&](int step) {
      return swizzled_matrix(shared_address(s.values.stages[turn_of(step) % kValueStages]) +
                                 static_cast<uint32_t>(group) * (kGroupDims / 64) * kValueBlock +
                                 static_cast<uint32_t>(step % 2) * kSteps * kSwizzledRow,
                             kEightRows, kValueBlock);
    };
    const auto wait_for = [&](int step) {
      if (step % 2 == 0)
        barrier_wait(&s.full[turn_of(step) % kValueStages], static_cast<uint32_t>(turn_of(step) / kValueStages) & 1);
    };
    // A stage is read no more after its second step or the last one.
    const auto done_with = [&](int step) {
      if (lane == 0 && (step % 2 == 1 || step + 1 == steps)) barrier_arrive(&s.empty[turn_of(step) % kValueStages]);
    };
    float sums[kGroupDims / 8][4];
#pragma unroll 1
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const int begin = min(quarter * share, steps);
      const int end = min(begin + share, steps);
      float c[kGroupDims / 8][4] = {};
      uint32_t a[2][2][4];  // double: the units read one while the other is loaded
      if (begin < end) load(begin, begin + 1 < end, a[0]);
#pragma unroll 1
      for (int first = begin; first < end; first += 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int step = first + i * 2;
          if (step >= end) break;
          const bool both = step + 1 < end;
          wait_for(step);
          if (both) wait_for(step + 1);
          const uint64_t values[2] = {values_of(step), values_of(both ? step + 1 : step)};
          begin_products();
          multiply_rows<kGroupDims, true>(c, a[i][0], values[0], true);
          multiply_rows<kGroupDims, true>(c, a[i][1], values[1], true);
          commit_products();
          if (step + 2 < end) load(step + 2, step + 3 < end, a[1 - i]);
          wait_products<0>();
          done_with(step);
          if (both) done_with(step + 1);
        }
      }
      settle(c);
#pragma unroll
      for (int j = 0; j < kGroupDims / 8; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[j][k] = quarter == 0 ? c[j][k] : sums[j][k] + c[j][k];
      }
    }
    const int dims = half * kStageDims + group * kGroupDims + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = warp * 16 + lane / 4 + i * 8;
      if (head >= own_heads) continue;
      const float total = s.totals[head];
#pragma unroll
      for (int j = 0; j < kGroupDims / 8; ++j) {
        *reinterpret_cast<uint32_t*>(out + head * kDim + dims + j * 8) =
            narrow_pair(sums[j][i * 2] / total, sums[j][i * 2 + 1] / total);
      }
    }
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
  const int window = window_of(a);
  const int count = count_of(a);
  const int window_tiles = (window + kTileKeys - 1) / kTileKeys;
  const int tiles = window_tiles + (count - window + kTileKeys - 1) / kTileKeys;
  const int group = thread_index() / kWarpgroup;

  if (thread_index() == 0) {
    for (int i = 0; i < kValueStages; ++i) {
      barrier_init(&s.full[i], kWidenWarps);
      barrier_init(&s.empty[i], kMultiplyWarps);
    }
    show_barriers();
  }
  // Keys that are compressed begin on their way before the queries are there.
  const auto first_of = [&](int tile) { return window + (tile - window_tiles) * kTileKeys; };
  int tile = group < window_tiles ? group + kGroups : group;
  LaneRows rows{};
  CompressedPiece piece{};
  if (tile < tiles) {
    rows = lane_rows(a, first_of(tile), count - first_of(tile));
    load_piece(rows, 0, piece);
  }
  order_queries(q + first_output, own_heads, s.queries, reinterpret_cast<uint8_t*>(s.scores));
  show_shared_memory();
  __syncthreads();

  const uint32_t compressed_queries = shared_address(s.queries);
  const auto multiply_compressed = [&](float(&sum)[kHeads / 8][4]) {
    const int next = tile + kGroups < tiles ? tile + kGroups : tile;
    const LaneRows next_rows = lane_rows(a, first_of(next), count - first_of(next));
    compressed_tile(rows, next_rows, piece, compressed_queries, sum);
    rows = next_rows;
  };
  {
    float sum[kHeads / 8][4] = {};
    int first = 0;
    int keys = 0;
    if (group < window_tiles) {
      first = group * kTileKeys;
      keys = window - first;
      window_tile(lane_rows(a, first, keys), shared_address(s.scores), sum);
    } else if (tile < tiles) {
      first = first_of(tile);
      keys = count - first;
      multiply_compressed(sum);
      tile += kGroups;
    }
    __syncthreads();  // the queries in the order of the window are read no more
    store_scores(s, first, keys, scale, sum);
  }
#pragma unroll 1
  for (; tile < tiles; tile += kGroups) {
    float sum[kHeads / 8][4] = {};
    multiply_compressed(sum);
    store_scores(s, first_of(tile), count - first_of(tile), scale, sum);
  }
  // Ahead of time: where keys lie, and the first values.
  constexpr int kThreadRows = (kMostKeys + kThreads - 1) / kThreads;
  const uint8_t* own_rows[kThreadRows];
#pragma unroll
  for (int k = 0; k < kThreadRows; ++k) own_rows[k] = key_row(a, min(k * kThreads + thread_index(), count - 1));
  ValuePieces pieces[kAhead] = {};
  if (group >= kMultipliers) load_first_values(a, window, count, pieces);
  __syncthreads();

#pragma unroll
  for (int k = 0; k < kThreadRows; ++k) {
    const int i = k * kThreads + thread_index();
    if (i < count) s.values.rows[i] = own_rows[k];
  }
#pragma unroll 1
  for (int head = thread_index() / kWarp; head < own_heads; head += kThreads / kWarp)
    softmax(s, head, count, sinks[first_head + head]);
  __syncthreads();

  if (group >= kMultipliers) {
    give_registers<88>();
    widen_stages(s, window, count, pieces);
  } else {
    take_registers<168>();
    multiply_stages(s, group, count, own_heads, out + first_output);
  }
}

}  // namespace

bool takes_wide_attention(const SparseAttentionArgs& args) {
  // Few rows leave most multiprocessors idle, and each takes as long as many.
  constexpr size_t kLeastRows = 8;
  if (args.dim != kDim || args.queries.size() < kLeastRows) return false;
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
