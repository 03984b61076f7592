// Dense FP8 products of steps that are too short to have their weights widened first (products_widened.cu), with the bits of
// those of products.cu. A block multiplies 128 weight rows by a tile of inputs, item after item. Weights come to shared memory as
// they are, whole lines of 128 bytes of every row, copied by a warpgroup of their own; inputs lie in memory in the order of
// shared memory already, so a chunk of them is one copy. Two warpgroups have 64 rows each: they widen four products' weights in
// registers while the units multiply the four before. Stages are filled across the end of an item, those of weights before a
// kernel's turn.

#include <algorithm>

#include "ops/cuda/launch_order.cuh"
#include "ops/cuda/mixed_layout.h"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/widened.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kWarpgroup;
constexpr int kHalfLine = static_cast<int>(kMixedLine) / 2;
constexpr int kSegmentStages = kSegment / kMixedColumns;

// Registers of a thread that multiplies and of one that copies: together those that the block begins with.
constexpr int kMultiplyRegisters = 216;
constexpr int kCopyRegisters = 72;
static_assert(kMultipliers * kMultiplyRegisters + kCopyRegisters <= 3 * 168);

template <WeightFormat kFormat>
constexpr bool kIsBf16 = kFormat == WeightFormat::kBf16;

template <WeightFormat kFormat, int kInputs>
struct Shared {
  static constexpr MixedLayout kLayout = mixed_layout(kInputs, kIsBf16<kFormat>);
  uint32_t memory;

  __device__ uint32_t weights(int stage) const { return memory + static_cast<uint32_t>(stage) * kLayout.stage_bytes; }
  __device__ uint32_t inputs(int stage, int chunk) const {
    return weights(stage) + kLayout.weight_bytes + static_cast<uint32_t>(chunk * kInputs) * kSwizzledRow;
  }
  __device__ uint32_t scales(int stage) const { return memory + kLayout.scales + static_cast<uint32_t>(stage) * kMixedScales; }
  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(dynamic_shared<uint8_t>() + kLayout.barriers) + stage * 2;
  }
  __device__ uint64_t* empty(int stage) const { return full(stage) + 1; }
  __device__ bf16* outputs(int group) const {
    return reinterpret_cast<bf16*>(dynamic_shared<uint8_t>() + kLayout.outputs +
                                   static_cast<uint32_t>(group) * kLayout.group_outputs);
  }
};

struct Item {
  int64_t input;  // first row
  int64_t first_row, last_row;
  int count;  // inputs
  int part, which;
};

struct Work {
  const ProductArgs& args;
  const MixedProduct& cut;

  __device__ int items() const { return cut.panels * static_cast<int>(args.groups) * cut.row_blocks; }
  __device__ int stages() const { return static_cast<int>(args.outputs[0].weight.in) / kMixedColumns; }
  // Those that share weights come one after the other.
  __device__ Item find(int number) const {
    Item item;
    const int block = number % cut.row_blocks;
    const int panel_number = number / cut.row_blocks;
    item.part = panel_number / cut.panels;
    int64_t panel = panel_number % cut.panels;
    item.which = find_output(args, kMixedRows, panel);
    const int64_t part_rows = args.outputs[item.which].weight.out / args.groups;
    item.first_row = item.part * part_rows + panel * kMixedRows;
    item.last_row = (item.part + 1) * part_rows - 1;
    item.input = static_cast<int64_t>(block) * cut.block_rows;
    item.count = static_cast<int>(min(static_cast<int64_t>(cut.block_rows), args.rows - item.input));
    return item;
  }
  // Rows of chunk `chunk` of the item's inputs.
  __device__ const bf16* inputs(const Item& item, int chunk) const {
    const int64_t chunks = args.outputs[0].weight.in / kWidenedColumns;
    return args.x + ((item.part * chunks + chunk) * args.rows + item.input) * kWidenedColumns;
  }
};

// A piece of 16 bytes of every sixteenth row of an item. Halves of a line have changed places in every second row, so that eight
// lanes that read four pieces of two rows meet every bank once. Rows that do not exist repeat the last one.
template <WeightFormat kFormat>
class Lines {
 public:
  __device__ Lines(const WeightView& w, const Item& item) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const auto last = static_cast<int>(min(item.last_row - item.first_row, static_cast<int64_t>(kMixedRows - 1)));
    const int64_t row_bytes = w.in * kBytes;
    const int row = thread / kPieces;
    first_ = w.values + item.first_row * row_bytes + thread % kPieces * 16;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      row_[i] = static_cast<uint32_t>(min(row + i * kRows, last)) * static_cast<uint32_t>(row_bytes / 16);
      forget_uses(row_[i]);  // or it would be computed at every copy
    }
    place_ = static_cast<uint32_t>(row) * kMixedLine + static_cast<uint32_t>((thread % kPieces ^ row % 2 * 4) * 16);
    scales_ = nullptr;
    if (kBytes == 1 && thread < kMixedRows / kScaleGroup)
      scales_ = w.scales + (item.first_row + min(thread * kScaleGroup, last)) / kScaleGroup * (w.in / kScaleGroup);
  }
  __device__ void copy(uint32_t weights, uint32_t scales, int stage) const {
    const uint8_t* from = first_ + static_cast<int64_t>(stage) * kMixedColumns * kBytes;
#pragma unroll
    for (uint32_t line = 0; line < kBytes; ++line) {
#pragma unroll
      for (int i = 0; i < kRounds; ++i)
        copy_weights_async(weights + place_ + line * kMixedLines + static_cast<uint32_t>(i * kRows) * kMixedLine,
                           place_behind(from + line * kMixedLine, row_[i]), 16);
    }
    if (kBytes == 1 && scales_ != nullptr)
      copy_word_async(scales + threadIdx.x % kWarpgroup * 4, scales_ + stage * (kMixedColumns / kScaleGroup));
  }

 private:
  static constexpr int kBytes = kIsBf16<kFormat> ? 2 : 1;  // of a value, and lines of a stage
  static constexpr int kPieces = kMixedLine / 16;
  static constexpr int kRows = kWarpgroup / kPieces;  // of a round, an even number
  static constexpr int kRounds = kMixedRows / kRows;
  const uint8_t* first_;
  uint32_t row_[kRounds];  // from there, in units of 16 bytes
  uint32_t place_;
  const uint8_t* scales_;  // most threads have none
};

// Before the turn of the warpgroup that copies: weights of the first item, as far as there are stages. How many it has asked for;
// activations that take the place of weights are asked for by nobody this early.
template <WeightFormat kFormat, int kInputs>
__device__ int copy_early(const Shared<kFormat, kInputs>& s, const Work& work) {
  if (work.cut.exchanged) return 0;
  const Item item = work.find(static_cast<int>(blockIdx.x));
  const Lines<kFormat> lines(work.args.outputs[item.which].weight, item);
  const int stages = min(Shared<kFormat, kInputs>::kLayout.stages, work.stages());
  for (int stage = 0; stage < stages; ++stage) {
    lines.copy(s.weights(stage), s.scales(stage), stage);
    barrier_arrive_copied(s.full(stage));
  }
  return stages;
}

// The warpgroup that copies, behind `early` stages' weights.
template <WeightFormat kFormat, int kInputs>
__device__ void copy_items(const Shared<kFormat, kInputs>& s, const Work& work, int early) {
  const bool first_thread = threadIdx.x == kMultipliers * kWarpgroup;
  const int stages = work.stages();
  RingPlace at{0, 1};  // nobody has to leave the stages of the first turn
  for (auto number = static_cast<int>(blockIdx.x); number < work.items(); number += static_cast<int>(gridDim.x)) {
    const Item item = work.find(number);
    const Lines<kFormat> lines(work.args.outputs[item.which].weight, item);
    const auto bytes = static_cast<uint32_t>(item.count) * kSwizzledRow;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      if (early > 0) {
        --early;
      } else {
        barrier_wait(s.empty(at.stage), at.parity);
        lines.copy(s.weights(at.stage), s.scales(at.stage), stage);
        barrier_arrive_copied(s.full(at.stage));
      }
      if (first_thread) {
        barrier_arrive_expecting(s.full(at.stage), 2 * bytes);
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk)
          copy_bulk(s.inputs(at.stage, chunk), work.inputs(item, stage * 2 + chunk), bytes, s.full(at.stage));
      }
      at.next(Shared<kFormat, kInputs>::kLayout.stages);
    }
  }
}

// c (+)= the products of four steps of 16 columns.
template <int kInputs>
__device__ void multiply_chunk_rows(float (&c)[kInputs / 8][4], const uint32_t (&a)[4][4], uint32_t inputs, bool& add) {
  const uint64_t rows = swizzled_rows(inputs);
  begin_products();
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    if constexpr (kInputs == 48 || kInputs == 88) {
      multiply_more_rows<kInputs>(c, a[step], rows + step * 2, add);
    } else {
      multiply_rows<kInputs>(c, a[step], rows + step * 2, add);
    }
    add = true;
  }
  commit_products();
}

// A lane's two rows of a chunk as the registers of four products. `scale`: byte of the rows' scales; `large`: one that the warp
// has may need two factors, which is rare.
template <bool kInterleaved>
__device__ void widen_chunk(const uint4 (&row)[2], uint32_t scale, bool large, uint32_t (&a)[4][4]) {
  uint32_t factor = scale * 0x00800080u + kFp8Bias * 0x00800080u;
  if (large) factor = scale_pair(scale, kFp8Bias);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t r[2];
      widen_half<WeightFormat::kFp8, kInterleaved>(row[i], step / 2, step % 2, factor, r);
      a[step][i] = r[0];
      a[step][i + 2] = r[1];
    }
  }
  if (!large) return;
  const uint32_t excess = excess_pair(scale, kFp8Bias);
#pragma unroll
  for (int i = 0; i < 16; ++i) a[i / 4][i % 4] = multiply_bf16x2(a[i / 4][i % 4], excess);
}

// Two halves of a line of a lane's two rows as the registers of four products.
__device__ void take_line(const uint4 (&row)[2][2], uint32_t (&a)[4][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4& r0 = row[half][0];
    const uint4& r1 = row[half][1];
    const uint32_t words[2][4] = {{r0.x, r1.x, r0.y, r1.y}, {r0.z, r1.z, r0.w, r1.w}};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[half * 2 + step][i] = words[step][i];
    }
  }
}

// Sums of bf16 products, of which the thread has rows own and own + 8. Eight lanes have eight of them beside each other, or a
// lane two inputs, whatever lies together in memory.
template <int kInputs>
__device__ void store_sums(const Work& work, const Item& item, int own, const float (&total)[kInputs / 8][4]) {
  const ProductArgs& args = work.args;
  const int64_t row_step = work.cut.exchanged ? args.rows : 1;
  const int64_t input_step = work.cut.exchanged ? 1 : args.outputs[0].weight.out;
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = item.first_row + own + i * 8;
    if (row > item.last_row) continue;
    const int64_t at = row * row_step + item.input * input_step;
#pragma unroll
    for (int j = 0; j < kInputs / 4; ++j) {
      const int input = j / 2 * 8 + first + j % 2;
      if (input < item.count) store_product(args, 0, at + input * input_step, total[j / 2][i * 2 + j % 2]);
    }
  }
}

// One of the warpgroups that multiply.
template <WeightFormat kFormat, bool kInterleaved, int kInputs>
__device__ void multiply_items(const Shared<kFormat, kInputs>& s, const Work& work) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int own = static_cast<int>(threadIdx.x) / kWarp * 16 + lane / 4;
  const auto line = static_cast<uint32_t>(own) * kMixedLine + static_cast<uint32_t>((lane % 4 ^ own % 2 * 4) * 16);
  const auto scales = static_cast<uint32_t>(own / kScaleGroup) * 4;
  const int stages = work.stages();
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) barrier_arrive(s.empty(stage));
  };
  RingPlace at;
#pragma unroll 1
  for (auto number = static_cast<int>(blockIdx.x); number < work.items(); number += static_cast<int>(gridDim.x)) {
    float c[kInputs / 8][4], total[kInputs / 8][4];
#pragma unroll
    for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[j][i] = 0, total[j][i] = -0.0f;  // minus zero and any number is that number
    }
    const auto end_segment = [&] {
      wait_products<0>();
      settle(c);
#pragma unroll
      for (int j = 0; j < kInputs / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[j][i] += c[j][i];
      }
    };
    uint32_t a[2][4][4];  // the units read one while the other is widened
    bool add = false;
    int held = 0;  // the stage before
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      barrier_wait(s.full(at.stage), at.parity);
      uint32_t bytes = 0;
      bool large = false;
      if constexpr (!kIsBf16<kFormat>) {
        bytes = load_shared_word(s.scales(at.stage) + scales);
        large = __any_sync(0xffffffffu, (bytes & 0x80808080u) != 0);
      }
      const auto piece = [&](uint32_t from, int half, int i) {
        return load_shared(from + (line ^ static_cast<uint32_t>(half * kHalfLine)) + static_cast<uint32_t>(i * 8) * kMixedLine);
      };
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const uint32_t from = s.weights(at.stage);
        if constexpr (kIsBf16<kFormat>) {
          uint4 row[2][2];
#pragma unroll
          for (int k = 0; k < 4; ++k) row[k / 2][k % 2] = piece(from + static_cast<uint32_t>(chunk) * kMixedLines, k / 2, k % 2);
          take_line(row, a[chunk]);
        } else {
          const uint4 row[2] = {piece(from, chunk, 0), piece(from, chunk, 1)};
          widen_chunk<kInterleaved>(row, bytes >> (chunk * 16 + lane % 4 / 2 * 8) & 0xff, large, a[chunk]);
        }
        if (chunk == 0 && stage % kSegmentStages == 0 && stage > 0) {
          end_segment();
          add = false;
        }
        multiply_chunk_rows<kInputs>(c, a[chunk], s.inputs(at.stage, chunk), add);
        wait_products<1>();
        if (chunk == 0 && stage > 0) release(held);
      }
      held = at.stage;
      at.next(Shared<kFormat, kInputs>::kLayout.stages);
    }
    end_segment();
    release(held);
    const Item item = work.find(number);
    if constexpr (kIsBf16<kFormat>) {
      store_sums<kInputs>(work, item, own, total);
    } else {
      named_barrier(1 + group, kWarpgroup);  // outputs of the item before are stored
      widened::narrow_outputs<kInputs>(total, s.outputs(group));
      named_barrier(1 + group, kWarpgroup);
      const int64_t out = work.args.outputs[item.which].weight.out;
      store_widened_outputs(s.outputs(group), group, item.first_row, item.last_row, item.count,
                            static_cast<bf16*>(work.args.outputs[item.which].y) + item.input * out, out);
    }
  }
}

// Grid: as many blocks as run at a time; each takes every so many-th item.
template <WeightFormat kFormat, bool kInterleaved, int kInputs>
__global__ void __launch_bounds__(kThreads, 1)
    product_mixed_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ MixedProduct cut) {
  let_next_begin();
  const Shared<kFormat, kInputs> s{shared_address(dynamic_shared<uint8_t>())};
  if (threadIdx.x == 0) {
    if (s.memory % kEightRows != 0) __trap();
    for (int i = 0; i < Shared<kFormat, kInputs>::kLayout.stages; ++i) {
      barrier_init(s.full(i), kWarpgroup + 1);
      barrier_init(s.empty(i), kMultipliers * kWarpgroup / kWarp);
    }
    show_barriers();
  }
  __syncthreads();
  const Work work{args, cut};
  const bool copies = static_cast<int>(threadIdx.x) >= kMultipliers * kWarpgroup;
  const int early = copies ? copy_early(s, work) : 0;
  wait_for_earlier();
  if (copies) {
    give_registers<kCopyRegisters>();
    copy_items(s, work, early);
  } else {
    take_registers<kMultiplyRegisters>();
    multiply_items<kFormat, kInterleaved>(s, work);
  }
}

template <WeightFormat kFormat, bool kInterleaved, int kInputs>
void launch(const ProductArgs& args, const MixedProduct& cut, LaunchStream& stream) {
  const int64_t items = int64_t{cut.panels} * args.groups * cut.row_blocks;
  stream.launch(product_mixed_kernel<kFormat, kInterleaved, kInputs>,
                static_cast<unsigned>(std::min<int64_t>(kMultiprocessors, items)), kThreads,
                mixed_layout(kInputs, kIsBf16<kFormat>).bytes, args, cut);
}

template <WeightFormat kFormat, bool kInterleaved>
void launch(const ProductArgs& args, const MixedProduct& cut, LaunchStream& stream) {
  if constexpr (kIsBf16<kFormat>) {
    if (cut.inputs == 16) launch<kFormat, kInterleaved, 16>(args, cut, stream);
    if (cut.inputs == 32) launch<kFormat, kInterleaved, 32>(args, cut, stream);
  }
  if (cut.inputs == 48) launch<kFormat, kInterleaved, 48>(args, cut, stream);
  if (cut.inputs == 64) launch<kFormat, kInterleaved, 64>(args, cut, stream);
  if (cut.inputs == 88) launch<kFormat, kInterleaved, 88>(args, cut, stream);
  if (cut.inputs == 128) launch<kFormat, kInterleaved, 128>(args, cut, stream);
}

}  // namespace

// As measured on an H200. Fewer rows go sooner where the columns are cut, or to larger panels. More have their weights widened
// first, if that may be; the sooner the more panels there are, unless rows are long: those products are in few tiles then.
MixedProduct mixed_product(const ProductArgs& args) {
  constexpr int64_t kLeastRows = 65;
  constexpr int64_t kItems = 80;  // with fewer too many multiprocessors would be idle
  constexpr int64_t kMostRows = 1535;
  constexpr int64_t kMostRowsLong = 3071;
  MixedProduct cut;
  if (!args.staged || args.fp32 || args.rows == 0) return cut;
  const int64_t in = args.outputs[0].weight.in;
  if (in % kMixedColumns != 0 || args.x_stride != in * args.groups || in > INT32_MAX / kMixedRows) return cut;
  for (int i = 0; i < args.output_count; ++i) {
    const WeightView& w = args.outputs[i].weight;
    // Whole blocks of scales, and copies of 16 bytes and of words.
    if (args.groups > 1 && w.out / args.groups % kScaleGroup != 0) return cut;
    if (reinterpret_cast<uintptr_t>(w.values) % 16 != 0 || reinterpret_cast<uintptr_t>(w.scales) % 4 != 0) return cut;
    cut.panels += static_cast<int>((w.out / args.groups + kMixedRows - 1) / kMixedRows);
  }
  const WidenedRows rows = mixed_rows(args.rows, cut.panels * args.groups, in, false);
  cut.inputs = rows.inputs, cut.row_blocks = rows.blocks, cut.block_rows = rows.block_rows;
  cut.fits = true;
  const int64_t panels = cut.panels * args.groups;
  const bool is_long = in >= 4096 && panels >= 40 && panels <= 132;
  const bool others_do = args.widened && args.rows > (is_long ? kMostRowsLong : kMostRows);
  cut.pays = args.rows >= kLeastRows && panels * cut.row_blocks >= kItems && !others_do;
  return cut;
}

void multiply_fp8_mixed(const ProductArgs& args, const MixedProduct& cut, bool quantize, bf16* scratch, LaunchStream& stream) {
  order_widened(args.x, args.rows, args.groups, args.outputs[0].weight.in, quantize, scratch, stream, ChunkOrder::kRegisters);
  ProductArgs ordered = args;
  ordered.x = scratch;
  if (quantize) return launch<WeightFormat::kFp8, true>(ordered, cut, stream);
  launch<WeightFormat::kFp8, false>(ordered, cut, stream);
}

MixedProduct mixed_bf16_product(const ProductArgs& args) {
  constexpr int64_t kLeastRows = 3;         // fewer are products_streamed.cu's
  constexpr int64_t kItems = 80;            // with fewer too many multiprocessors would be idle
  constexpr int64_t kLeastExchanged = 512;  // fewer have too few panels
  MixedProduct cut;
  if (!args.staged || args.rows < kLeastRows || args.groups != 1 || args.output_count != 1) return cut;
  const WeightView& w = args.outputs[0].weight;
  if (w.in % kMixedColumns != 0 || args.x_stride != w.in || w.in > INT32_MAX / kMixedRows / 2) return cut;
  if ((reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(w.values)) % 16 != 0) return cut;
  const auto panels = [](int64_t rows) { return static_cast<int>((rows + kMixedRows - 1) / kMixedRows); };
  cut.exchanged = panels(w.out) < kItems;
  if (cut.exchanged && (args.rows < kLeastExchanged || w.out * w.in > kMostWidened)) return cut;
  cut.panels = panels(cut.exchanged ? args.rows : w.out);
  const WidenedRows rows = mixed_rows(cut.exchanged ? w.out : args.rows, cut.panels, w.in, true);
  cut.inputs = rows.inputs, cut.row_blocks = rows.blocks, cut.block_rows = rows.block_rows;
  cut.fits = cut.pays = true;
  return cut;
}

int64_t ordered_bf16_room(const ProductArgs& args) {
  const MixedProduct cut = mixed_bf16_product(args);
  return cut.pays ? (cut.exchanged ? args.outputs[0].weight.out : args.rows) * args.outputs[0].weight.in : 0;
}

void multiply_bf16_mixed(const ProductArgs& args, const MixedProduct& cut, LaunchStream& stream) {
  const WeightView& w = args.outputs[0].weight;
  const bf16* x = cut.exchanged ? reinterpret_cast<const bf16*>(w.values) : args.x;
  ProductArgs own = args;
  if (cut.exchanged) {
    own.rows = w.out;
    own.outputs[0].weight = {reinterpret_cast<const uint8_t*>(args.x), nullptr, args.rows, w.in};
  }
  order_widened(x, own.rows, 1, w.in, false, args.room, stream, ChunkOrder::kBf16Registers);
  own.x = args.room;
  launch<WeightFormat::kBf16, false>(own, cut, stream);
}

}  // namespace deepinfer::cuda
