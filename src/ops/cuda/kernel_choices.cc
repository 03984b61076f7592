#include "ops/cuda/kernel_choices.h"

#include <string>

namespace deepinfer::cuda {

std::vector<KernelChoice> kernel_choices(const CudaFeatures& features) {
  return {
      {"linear_fp8, output_lora",
       std::string("weights widened in registers: mma bf16, tiles of 8, 16 and 32 rows; wgmma bf16, tiles of 32 to 128, ") +
           (features.staged ? "weights staged in shared memory, from 17; inputs in its order, tiles of 48 to 128, from 65"
                            : "from 17") +
           (features.widened ? "; wgmma bf16, weights widened before, tiles of 96 to 192, from 1536 (3072 if rows are long)"
                             : "") +
           (features.few_rows ? "; mma fp16, equal shares of all warps, by a ring each, up to 2; smaller panels, weights asked "
                                "for ahead, up to 16"
                              : "") +
           (features.split ? "; mma bf16, a segment of the columns a block, from 9 to 256" : "")},
      {"linear_bf16, markov_logits", std::string("mma bf16, tiles of 8, 16 and 32 rows, of 64 in shared memory from 49") +
                                         (features.staged ? "; wgmma bf16 from 512" : "")},
      {"experts (FP4, shared FP8)",
       std::string(features.streamed ? "up to 16 rows of an expert: mma bf16, a ring of weights a warp; " : "") +
           (features.staged
                ? std::string("sorted on the device; wgmma bf16, weights staged in shared memory, tiles of 32 to 96 rows of an "
                              "expert, up to 128 of the shared one; ") +
                      (features.panels && features.arranged
                           ? "from 6 rows of an expert on average in bulk copies, widened in registers, tiles of 8 to 160; "
                           : "") +
                      "few experts: mma bf16"
                : "sorted on the device; mma bf16, tiles of 8 and 16 rows of an expert; wgmma bf16, tiles of 32 to 128, from "
                  "15")},
      {"sparse_attention", std::string("scores, softmax and values apart, mma bf16, 64 heads a block") +
                               (features.few_rows ? "; 16 heads a block, up to 8 rows" : "") +
                               (features.wide_attention ? "; wgmma bf16, one pass over the keys, from 9 rows" : "")},
      {"index_select", std::string("mma bf16 on FP4 keys") +
                           (features.wide_index ? "; wgmma bf16, 16 rows of a sequence a block or one, from 8" : "") +
                           "; 16-bit ranks, two levels of histogram" +
                           (features.wide_index ? "; a block a row, of many ranks by levels"
                            : features.few_rows ? "; a block a row, of many ranks by levels, up to 16 rows"
                                                : "")},
      {"hyper_mix", "mma bf16, weights as three bf16"},
      {"draw", "a block a row, eight without filters; radix select, 2048 tokens sorted for top-p"},
      {"row by row: norms, rotation, streams, packing, router, Engram", "a block or a warp a row"},
      {"features (--cuda-features)", cuda_features_text(features)}};
}

}  // namespace deepinfer::cuda
