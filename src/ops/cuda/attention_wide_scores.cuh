#pragma once

// What a block of attention_wide.cu has in shared memory, and its scores: a tile of 64 keys a warpgroup at a time.

#include "ops/cuda/attention_keys.cuh"
#include "ops/cuda/warpgroup.cuh"

namespace deepinfer::cuda {

inline constexpr int kTileKeys = 64;
inline constexpr int kWideDim = 512;
inline constexpr int kWideHeads = 64;     ///< of a block
inline constexpr int kWideQuarter = 128;  ///< dims of a chain of scores
inline constexpr int kWideQuarters = 4;
inline constexpr uint32_t kQueryBlock = kWideHeads * kSwizzledRow;  ///< 64 columns of all heads
inline constexpr uint32_t kQueryBytes = kWideDim / 64 * kQueryBlock;
inline constexpr int kStageKeys = 32;                               ///< of values
inline constexpr uint32_t kValueBlock = kStageKeys * kSwizzledRow;  ///< 64 dims of a stage's keys
inline constexpr int kValueStages = 3;
inline constexpr int kGroupDims = 128;  ///< that a warpgroup multiplies

/// Blocks of kGroupCount warpgroups for up to kKeys keys, which are of the window alone if not kHasCompressed.
template <int kGroupCount, int kKeys, bool kHasCompressed>
struct AttentionShape {
  static constexpr int kGroups = kGroupCount;
  static constexpr int kThreads = kGroups * kWarpgroup;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kMostKeys = kKeys;
  static constexpr bool kCompressed = kHasCompressed;
  static constexpr int kScoreStride = kMostKeys + 4;  // fp32: the lanes of a store meet in no bank, nor rows of an ldmatrix
  static constexpr int kMultipliers = kGroups / 2;    // warpgroups that multiply values; the others widen them
  static constexpr int kStageDims = kMultipliers * kGroupDims;
  static constexpr uint32_t kStageBytes = kStageDims / 64 * kValueBlock;
  static constexpr int kMultiplyWarps = kMultipliers * kWarpgroup / kWarp;
  static constexpr int kWidenWarps = kWarps - kMultiplyWarps;
  static constexpr int kBlocks = 4 / kGroups;  // of a multiprocessor

  struct Shared {
    float scores[kWideHeads][kScoreStride];  // then probabilities, bf16, from the beginning of each row
    union {
      uint8_t queries[kQueryBytes];
      struct {
        uint8_t stages[kValueStages][kStageBytes];
        const uint8_t* rows[kMostKeys];
      } values;
    };
    float totals[kWideHeads];
    uint32_t odd_rows;  // whether any row begins at no multiple of 16 bytes
    uint64_t full[kValueStages];
    uint64_t empty[kValueStages];
  };
  static_assert(sizeof(Shared) <= (228 << 10) / kBlocks - 1024);
  static_assert(offsetof(Shared, queries) % kEightRows == 0);

  // Queries in the order of FP8 keys: where scores go, if the others need the room, so that none is written before all keys of
  // the window are multiplied.
  static constexpr bool kQueriesInScores = kCompressed;
  static_assert(!kQueriesInScores || kQueryBytes <= sizeof(Shared::scores));
  __device__ static uint8_t* window_queries(Shared& s) {
    return kQueriesInScores ? reinterpret_cast<uint8_t*>(s.scores) : s.queries;
  }
};

__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ inline uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Queries of all heads in the orders of the two formats of keys: at `compressed` and at `window` blocks of 64 columns, swizzled.
// Heads that are not there are zero. A warp has four heads and, of each 64 columns, eight of every lane that will widen
// compressed keys: stores in that order meet in no bank, those in the other in two.
inline constexpr int kParts = kWideDim / 64;
__device__ inline int query_head(int first) { return first + thread_index() / kWarp * 4 + thread_index() % kWarp / 8; }
__device__ inline int query_column(int part) {  // of a quarter
  const int lane = thread_index() % kWarp;
  return lane % 8 / 2 * 32 + part % 2 * 16 + lane % 2 * 8;
}
__device__ inline void load_queries(const bf16* q, int first_head, int own_heads, uint4 (&v)[kParts]) {
  const int head = query_head(first_head);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    v[part] = make_uint4(0, 0, 0, 0);
    if (head < own_heads) v[part] = load_again(q + head * kWideDim + part / 2 * kWideQuarter + query_column(part));
  }
}
template <bool kCompressed>
__device__ inline void order_queries(const uint4 (&v)[kParts], int first_head, uint8_t* compressed, uint8_t* window) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint4 ordered = interleave(v[part]);
    const uint32_t pairs[4] = {ordered.x, ordered.y, ordered.z, ordered.w};
#pragma unroll
    for (const bool fp8 : {false, true}) {
      if (!fp8 && !kCompressed) continue;
#pragma unroll
      for (uint32_t pair = 0; pair < 4; ++pair) {
        const PairPlace p = pair_place(fp8, static_cast<uint32_t>(query_column(part)), pair);
        uint8_t* block = (fp8 ? window : compressed) + (static_cast<uint32_t>(part) / 2 * 2 + p.block) * kQueryBlock;
        *reinterpret_cast<uint32_t*>(block + swizzled_piece(static_cast<uint32_t>(query_head(first_head)), p.piece) +
                                     p.word * 4) = pairs[pair];
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
inline constexpr int kSlots = 2;
struct WarpRows {
  const uint8_t* row[kSlots];
  bool whole;  // of all lanes
};
__device__ inline int row_in_tile(int row) { return thread_index() % kWarpgroup / kWarp * 16 + row; }
template <int kGroups>
__device__ inline WarpRows look_up(const AttentionQuery& a, const Tiles& tiles, int group) {
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
template <typename Shape>
__device__ inline void list_rows(typename Shape::Shared& s, const WarpRows& rows, const Tiles& tiles, int group) {
  const int lane = thread_index() % kWarp;
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int tile = group + (slot * 2 + lane / 16) * Shape::kGroups;
    const int row = row_in_tile(lane % 16);
    if (tile < tiles.all && row < tiles.keys(tile)) s.values.rows[tiles.first(tile) + row] = rows.row[slot];
  }
}

// The lane's two keys of the group's tile `number`: rows lane / 4 and 8 behind it of the warp's 16.
struct LaneRows {
  const uint8_t* row[2];
};
__device__ inline LaneRows lane_rows(const WarpRows& rows, int number) {
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

__device__ inline void load_piece(const LaneRows& keys, bool whole, int chunk, WindowPiece& piece) {
  const int column = chunk * 64 + thread_index() % 4 * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    piece.data[i] = load_row(keys.row[i] + column, whole);
    piece.scales[i] = keys.row[i][kWideDim + column / kScaleGroup];
  }
}
__device__ inline void load_piece(const LaneRows& keys, bool whole, int quarter, CompressedPiece& piece) {
  const int column = quarter * kWideQuarter + thread_index() % 4 * 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    piece.codes[i] = load_row(keys.row[i] + column / 2, whole);
    piece.scales[i] = load_scales(keys.row[i] + kWideDim / 2 + column / kCacheScaleGroup, whole);
  }
}

// c (+)= products 2 kFirst .. 2 (kFirst + kPairs) - 1 of a quarter's eight, the first of which sets it. `queries`: address of the
// quarter's two blocks. `widen(i, pair, r)`: eight dims of key i, of which (0, 4) and (1, 5), then (2, 6) and (3, 7) are in one
// product. `a`: double, the units read one while the other is widened.
template <int kFirst, int kPairs, typename Widen>
__device__ inline void add_products(uint32_t queries, const Widen& widen, uint32_t (&a)[2][2][4], float (&c)[kWideHeads / 8][4]) {
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
      multiply_rows<kWideHeads>(c, now[half], swizzled_rows(queries + product_offset(product, kWideHeads)), product > 0);
    }
    commit_products();
    wait_products<1>();
  }
}
// After the last product of a quarter: its chain is added to the sums.
__device__ inline void end_quarter(float (&c)[kWideHeads / 8][4], float (&sum)[kWideHeads / 8][4]) {
  wait_products<0>();
  settle(c);
#pragma unroll
  for (int j = 0; j < kWideHeads / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[j][i] += c[j][i];
  }
}

__device__ inline void widen_window(uint32_t w0, uint32_t w1, uint32_t byte, uint32_t (&r)[4]) {
  const uint32_t scale = scale_pair(byte, kFp8Bias);
  const uint32_t excess = excess_pair(byte, kFp8Bias);
  widen_fp8_interleaved(w0, w1, r);
#pragma unroll
  for (uint32_t& v : r) v = multiply_bf16x2(multiply_bf16x2(v, scale), excess);
}

// Scores of 64 keys of the window, before they are scaled.
__device__ inline void window_tile(const LaneRows& keys, bool whole, uint32_t queries, float (&sum)[kWideHeads / 8][4]) {
  WindowPiece pieces[2];  // while one is multiplied the other comes
  load_piece(keys, whole, 0, pieces[0]);
#pragma unroll 1
  for (int quarter = 0; quarter < kWideQuarters; ++quarter) {
    const auto widen = [&](int i, int pair, uint32_t(&r)[4]) {
      const WindowPiece& piece = pieces[pair / 2];
      widen_window(word_of(piece.data[i], pair % 2 * 2), word_of(piece.data[i], pair % 2 * 2 + 1), piece.scales[i], r);
    };
    float c[kWideHeads / 8][4];
    uint32_t a[2][2][4];
    const uint32_t own = queries + static_cast<uint32_t>(quarter) * 2 * kQueryBlock;
    load_piece(keys, whole, quarter * 2 + 1, pieces[1]);
    add_products<0, 2>(own, widen, a, c);
    if (quarter + 1 < kWideQuarters) load_piece(keys, whole, quarter * 2 + 2, pieces[0]);
    add_products<2, 2>(own, widen, a, c);
    end_quarter(c, sum);
  }
}

// The same of the group's compressed tile `number`. `piece`: its first quarter; afterwards that of the next tile.
__device__ inline void compressed_tile(const WarpRows& rows, int number, CompressedPiece& piece, uint32_t queries,
                                       float (&sum)[kWideHeads / 8][4]) {
  LaneRows keys = lane_rows(rows, number);
#pragma unroll 1
  for (int quarter = 0; quarter < kWideQuarters; ++quarter) {
    const CompressedPiece now = piece;
    if (quarter + 1 == kWideQuarters) keys = lane_rows(rows, number + 1);
    load_piece(keys, rows.whole, (quarter + 1) % kWideQuarters, piece);
    uint32_t scales[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) scales[i][0] = scale_of(now.scales[i], 0), scales[i][1] = scale_of(now.scales[i], 1);
    float c[kWideHeads / 8][4];
    uint32_t a[2][2][4];
    add_products<0, 4>(
        queries + static_cast<uint32_t>(quarter) * 2 * kQueryBlock,
        [&](int i, int pair, uint32_t(&r)[4]) { widen_compressed(word_of(now.codes[i], pair), scales[i][pair / 2], r); }, a, c);
    end_quarter(c, sum);
  }
}

// Into the list's places first .. first + keys - 1.
template <typename Shape>
__device__ inline void store_scores(typename Shape::Shared& s, int first, int keys, float scale,
                                    const float (&sum)[kWideHeads / 8][4]) {
  const int lane = thread_index() % kWarp;
  const int row = thread_index() % kWarpgroup / kWarp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = row + i / 2 * 8;
    if (key >= keys) continue;
#pragma unroll
    for (int j = 0; j < kWideHeads / 8; ++j) s.scores[j * 8 + lane % 4 * 2 + i % 2][first + key] = sum[j][i] * scale;
  }
}

}  // namespace deepinfer::cuda
