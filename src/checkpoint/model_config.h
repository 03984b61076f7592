#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

/// Shapes and constants of a deepseek_v41 model, as config.json gives them (spec/backbone §1). Field names are those of the
/// published `text_config`. After `Parse` every relation that the model relies on has been checked; see `validate`.
struct ModelConfig {
  // text_config
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;  ///< the last dims of every head and of every index head are rotated
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  float swiglu_limit = 10.0f;
  float rms_norm_eps = 1e-20f;
  int64_t max_position_embeddings = 0;
  float rope_theta = 10000.0f;            ///< layers with compress ratio 0
  float compress_rope_theta = 160000.0f;  ///< layers with compress ratio > 0, with YaRN
  float rope_factor = 1.0f;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  int64_t original_max_position_embeddings = 0;  ///< 0 switches YaRN off
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 1;
  int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
  float gate_temp = 1.0f;
  int64_t sliding_window = 0;                   ///< keys a query sees, its own included
  std::vector<int64_t> compress_ratios;         ///< one per layer, draft stages included
  std::vector<int64_t> kv_source_layer_ids;     ///< ascending
  std::vector<int64_t> index_source_layer_ids;  ///< ascending; contains every KV source
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source_layer_id = -1;  ///< -1: no two-level choice
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;
  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  float hc_eps = 1e-6f;
  std::vector<int64_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  ///< table rows per Engram layer
  int64_t engram_max_ngram_size = 0;
  int64_t engram_vocab_size = 0;  ///< where the prime search starts
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  int64_t engram_pad_token_id = 0;
  int64_t engram_compressed_vocab_size = 0;
  int64_t num_nextn_predict_layers = 0;  ///< DSpark stages
  int64_t dspark_block_size = 0;
  int64_t dspark_noise_token_id = 0;
  std::vector<int64_t> dspark_target_layer_ids;
  int64_t dspark_markov_rank = 0;
  int64_t dspark_n_routed_experts = 0;
  int64_t dspark_num_experts_per_tok = 0;
  // root
  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t pad_token_id = 2;
  int64_t image_token_id = -1;
  // vision_config; has_vision false means text only
  bool has_vision = false;
  int64_t vision_num_hidden_layers = 0;
  int64_t vision_hidden_size = 0;
  int64_t vision_num_attention_heads = 0;
  int64_t vision_intermediate_size = 0;
  int64_t vision_patch_size = 0;
  int64_t vision_downsample_ratio = 0;
  int64_t vision_max_image_tokens = 0;
  int64_t vision_min_pixels = 0;     ///< smaller images are enlarged to this area; 0: no lower bound
  float vision_max_wh_ratio = 0.0f;  ///< 0: off
  float vision_rope_theta = 10000.0f;

  /// Reads config.json, nested (published) or flat (DeepSeek's inference names). `source` is named in errors.
  static Result<ModelConfig> Parse(std::string_view json, std::string_view source);
  static Result<ModelConfig> Load(const std::string& path);

  /// Every field present, in range and consistent with the others; the error names the field, its value and the limit.
  Status validate() const;

  // ---- derived (spec/backbone §3.6) ----
  int64_t compress_ratio(int64_t layer) const { return compress_ratios[static_cast<size_t>(layer)]; }
  bool is_kv_source(int64_t layer) const;
  bool is_index_source(int64_t layer) const;
  /// Largest KV / index source <= layer; -1 for layers with ratio 0.
  int64_t kv_source_of(int64_t layer) const;
  int64_t index_source_of(int64_t layer) const;
  /// The last KV source: it and the layers behind it write no global KV for others, so most prompt tokens can do without them
  /// (spec §8.3). num_hidden_layers where no layer has global KV: then every layer is of the encoder.
  int64_t first_decoder_layer() const { return kv_source_layer_ids.empty() ? num_hidden_layers : kv_source_layer_ids.back(); }
  /// Position in engram_layer_ids, or -1.
  int64_t engram_slot(int64_t layer) const;
  /// n-gram orders x heads: table rows looked up per token and Engram layer.
  int64_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
  /// Packed bytes of one compressed row: main KV (FP4 codes + E4M3 scales) and index key (FP4 codes + E8M0 scales).
  int64_t main_row_bytes() const { return head_dim / 2 + head_dim / 16; }
  int64_t index_row_bytes() const { return index_head_dim / 2 + index_head_dim / 32; }
  /// Bytes of one window row: E4M3 values + E8M0 scales.
  int64_t window_row_bytes() const { return head_dim + head_dim / 32; }
  /// Global cache bytes per token, all KV sources together (890 for the released model).
  double kv_bytes_per_token() const;
};

}  // namespace deepinfer
