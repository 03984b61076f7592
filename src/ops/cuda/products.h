#pragma once

// Matrix products of the CUDA backend. Every one of them adds in the order of fragments.cuh.

#include <cuda_runtime.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/scratch_sizes.h"
#include "ops/cuda/weight_view.h"
#include "ops/ops.h"

namespace deepinfer::cuda {

/// One matrix of several with the same inputs; y is bf16 or fp32.
struct ProductOutput {
  WeightView weight;
  void* y = nullptr;
};

struct ProductArgs {
  static constexpr int kMostOutputs = 4;
  const bf16* x = nullptr;  ///< row r of group g at x + r * x_stride + g * x_group
  int64_t rows = 0;
  int64_t x_stride = 0;
  int64_t groups = 1;   ///< the weight rows are cut into as many, each with its part of the input (spec §3.11)
  int64_t x_group = 0;  ///< from one part of an input row to the next
  ProductOutput outputs[kMostOutputs];
  int output_count = 0;
  bool fp32 = false;
  bool staged = false;      ///< weights may come by way of shared memory (CudaFeatures::staged)
  bool widened = false;     ///< weights may be widened before they are multiplied (CudaFeatures::widened)
  bf16* room = nullptr;     ///< for widened_weights of them, or ordered_bf16_room
  int64_t fetch_bytes = 0;  ///< of its weights that a block asks for while it waits for its turn, at most
  bool alone = false;       ///< streamed, dealt: nothing before it is under way when the next kernel begins (take_turn_alone)
};

/// How the rows of a product are cut for the kernels of products_staged.cu.
struct StagedProduct {
  bool pays = false;  ///< there is work enough for them
  int inputs = 0;     ///< of a tile at most, one of staged_inputs
  int row_blocks = 0;
  int block_rows = 0;  ///< of all but the last block: as equal sizes as steps of 8 allow
  int panels = 0;      ///< of 256 weight rows of all outputs, in one group
};
StagedProduct staged_product(const ProductArgs& args);

/// How a product is cut for the kernels of products_widened.cu.
struct WidenedProduct {
  static constexpr int kBand = 8;  ///< blocks of rows that share weights while they are at work
  bool fits = false;               ///< they can multiply it
  bool pays = false;               ///< and there is work enough for them
  int inputs = 0;                  ///< of a tile at most, one of kWidenedInputs
  int row_blocks = 0;
  int block_rows = 0;   ///< of all but the last block
  int panels = 0;       ///< of kWidenedRows weight rows of all outputs, in one group
  int panel_count = 0;  ///< of all groups, that are widened at a time
  int first_panel = 0;  ///< of those
};
/// How a product is cut for the kernels of products_mixed.cu.
struct MixedProduct {
  bool fits = false;  ///< they can multiply it
  bool pays = false;  ///< and it is theirs: rows and work enough
  int inputs = 0;     ///< of a tile at most, one of kMixedInputs
  int row_blocks = 0;
  int block_rows = 0;      ///< of all but the last block
  int panels = 0;          ///< of kMixedRows weight rows of all outputs, in one group
  bool exchanged = false;  ///< of bf16: activations are the panels' rows, and weights the inputs
};
MixedProduct mixed_product(const ProductArgs& args);

/// bf16 values of the widened weights that there are at a time; 0: it does not pay.
int64_t widened_weights(const ProductArgs& args);
WidenedProduct widened_product(const ProductArgs& args);

/// y [rows, ordered_columns] = x [rows, columns] rounded to E4M3 times a power of two in groups of 32 (spec §6.1).
void quantize_rows(const bf16* x, int64_t rows, int64_t columns, InputOrder order, bf16* y, LaunchStream& stream);

/// x is quantised first. `scratch`: fp8_scratch values.
void multiply_fp8_quantized(const ProductArgs& args, bf16* scratch, LaunchStream& stream);
/// x is used as it is.
void multiply_fp8(const ProductArgs& args, bf16* scratch, LaunchStream& stream);
/// x is quantised, if `quantized`, and in the order of kWideFp8.
void multiply_fp8_staged(const ProductArgs& args, const StagedProduct& cut, bool quantized, LaunchStream& stream);
/// x [rows, groups, columns], quantised if `quantize`, as [groups, columns / 64, rows, 64] in the order of shared memory,
/// swizzled: for products whose weights lie there too, or come from registers.
enum class ChunkOrder : uint8_t { kShared, kRegisters, kBf16Registers };
void order_widened(const bf16* x, int64_t rows, int64_t groups, int64_t columns, bool quantize, bf16* y, LaunchStream& stream,
                   ChunkOrder order = ChunkOrder::kShared);
/// x is in that order.
void multiply_fp8_ordered(const ProductArgs& args, const WidenedProduct& cut, bool quantized, LaunchStream& stream);
/// x is not quantised or ordered yet. `scratch`: fp8_scratch values.
void multiply_fp8_widened(const ProductArgs& args, const WidenedProduct& cut, bool quantize, bf16* scratch, LaunchStream& stream);
/// x is not quantised or ordered yet. `scratch`: fp8_scratch values.
void multiply_fp8_mixed(const ProductArgs& args, const MixedProduct& cut, bool quantize, bf16* scratch, LaunchStream& stream);
void multiply_bf16(const ProductArgs& args, LaunchStream& stream);
/// The same for more rows or, if there are few weight rows, for many: `pays` then. `room` of the arguments: ordered_bf16_room
/// values.
MixedProduct mixed_bf16_product(const ProductArgs& args);
int64_t ordered_bf16_room(const ProductArgs& args);
void multiply_bf16_mixed(const ProductArgs& args, const MixedProduct& cut, LaunchStream& stream);

// products_few.cu: the same bits for few rows and small matrices.
/// Whether they are taken: few rows, and matrices of which not too many columns are added.
bool takes_few_products(const ProductArgs& args);
void multiply_fp8_quantized_few(const ProductArgs& args, bf16* scratch, LaunchStream& stream);
void multiply_fp8_few(const ProductArgs& args, LaunchStream& stream);
/// `apart`: y, fp32, is [segments, rows, out]; who reads it adds the segments in ascending order.
void multiply_bf16_few(const ProductArgs& args, bool apart, LaunchStream& stream);

// products_streamed.cu: the same bits for one or two rows and larger matrices.
/// Whether they are taken.
bool takes_streamed_products(const ProductArgs& args, WeightFormat format);
void multiply_fp8_quantized_streamed(const ProductArgs& args, LaunchStream& stream);
void multiply_bf16_streamed(const ProductArgs& args, LaunchStream& stream);

// products_split.cu: the same bits for steps of some rows, by blocks that have a segment of the columns each.
/// Whether they are taken: they are faster than the others.
bool takes_split_products(const ProductArgs& args);
/// Floats for `parts` of steps of args.rows rows or fewer; 0: none of them are taken.
int64_t split_parts(const ProductArgs& args);
void multiply_fp8_quantized_split(const ProductArgs& args, bf16* scratch, float* parts, LaunchStream& stream);
void multiply_fp8_split(const ProductArgs& args, float* parts, LaunchStream& stream);

}  // namespace deepinfer::cuda
