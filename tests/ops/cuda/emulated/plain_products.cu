#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cuda/emulated/plain_products.h"
#include "ops/cuda/product_outputs.cuh"
#include "ops/cuda/segments.cuh"

namespace deepinfer::cuda {
namespace {

// Grid: panels of one output, blocks of 8 rows, groups.
template <WeightFormat kFormat, bool kInterleaved>
void plain_kernel(const ProductArgs& args, int which) {
  auto* parts = reinterpret_cast<float*>(dynamic_shared<uint4>());
  const WeightView& w = args.outputs[which].weight;
  const int64_t group_rows = w.out / args.groups;
  const int64_t first_row = blockIdx.z * group_rows + int64_t{blockIdx.x} * kPanelRows;
  const int64_t last_row = (blockIdx.z + 1) * group_rows - 1;
  const int64_t r = int64_t{blockIdx.y} * 8 + threadIdx.x / 4;
  const InputRows<1> x{{r < args.rows ? args.x + r * args.x_stride + blockIdx.z * args.x_group : nullptr}};
  const auto segments = static_cast<int>(segment_count(w.in));
  multiply_segments<kFormat, kInterleaved, 1>(w, first_row, last_row, x, 0, 1, segments, parts);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kPanelRows; i += kWarp) {
    const int64_t input = int64_t{blockIdx.y} * 8 + i / kPanelRows;
    const int64_t row = first_row + i % kPanelRows;
    if (input >= args.rows || row > last_row) continue;
    store_product(args, which, input * w.out + row, sum_parts(parts, segments, 8 * kPartStride, i / kPanelRows, i % kPanelRows));
  }
}

}  // namespace

void multiply_plainly(const ProductArgs& args, WeightFormat format, bool interleaved, LaunchStream& stream) {
  for (int which = 0; which < args.output_count; ++which) {
    const WeightView& w = args.outputs[which].weight;
    const dim3 grid(static_cast<unsigned>((w.out / args.groups + kPanelRows - 1) / kPanelRows),
                    static_cast<unsigned>((args.rows + 7) / 8), static_cast<unsigned>(args.groups));
    const size_t bytes = static_cast<size_t>(part_floats(segment_count(w.in), 1)) * sizeof(float);
    const auto kernel = format == WeightFormat::kBf16 ? plain_kernel<WeightFormat::kBf16, false>
                        : interleaved                 ? plain_kernel<WeightFormat::kFp8, true>
                                                      : plain_kernel<WeightFormat::kFp8, false>;
    stream.launch(kernel, grid, kWarp, bytes, args, which);
  }
}

// In place of products.cu's, on the host.
void quantize_rows(const bf16* x, int64_t rows, int64_t columns, InputOrder order, bf16* y, LaunchStream& /*stream*/) {
  if (order != InputOrder::kLanes) std::abort();
  for (int64_t first = 0; first < rows * columns; first += kScaleGroup) {
    float amax = 0;
    for (int64_t i = first; i < first + kScaleGroup; ++i) amax = std::fmax(amax, std::fabs(to_float(x[i])));
    const float scale = e8m0_value(fp8_scale_bits(amax));
    for (int64_t i = 0; i < kScaleGroup; ++i)
      y[first + interleaved(static_cast<int>(i))] = to_bf16(e4m3_to_float(float_to_e4m3(to_float(x[first + i]) / scale)) * scale);
  }
}

}  // namespace deepinfer::cuda
