// The tensor plan: every name, dtype and shape that a config implies (spec/backbone §2, dspark.md §2, vision.md §3).

#include <utility>

#include "checkpoint/checkpoint.h"

namespace deepinfer {
namespace {

using Shape = std::vector<int64_t>;

class Plan {
 public:
  void add(std::string name, DType dtype, Shape shape, std::string_view group) {
    entries_.push_back({std::move(name), dtype, std::move(shape), std::string(draft_ ? draft_group(group) : group)});
  }
  void bf16(const std::string& name, Shape shape, std::string_view group) { add(name, DType::kBF16, std::move(shape), group); }
  void f32(const std::string& name, Shape shape, std::string_view group) { add(name, DType::kF32, std::move(shape), group); }
  /// FP8 matrix with one E8M0 scale per 32x32 tile.
  void fp8(const std::string& name, int64_t out, int64_t in, std::string_view group) {
    add(name + ".weight", DType::kF8E4M3, {out, in}, group);
    add(name + ".scale", DType::kF8E8M0, {out / 32, in / 32}, group);
  }
  /// FP4 matrix, two codes a byte along K, one E8M0 scale per row and 32 columns.
  void fp4(const std::string& name, int64_t out, int64_t in, std::string_view group) {
    add(name + ".weight", DType::kI8, {out, in / 2}, group);
    add(name + ".scale", DType::kF8E8M0, {out, in / 32}, group);
  }
  void set_draft(bool draft) { draft_ = draft; }
  std::vector<CatalogueEntry> take() { return std::move(entries_); }

 private:
  static std::string_view draft_group(std::string_view group) { return group == "experts" ? "draft_experts" : "draft"; }
  std::vector<CatalogueEntry> entries_;
  bool draft_ = false;
};

void add_attention(Plan& plan, const ModelConfig& c, const std::string& at, int64_t layer) {
  const int64_t query = c.num_attention_heads * c.head_dim;
  plan.fp8(at + "wq_a", c.q_lora_rank, c.hidden_size, "attention");
  plan.bf16(at + "q_norm.weight", {c.q_lora_rank}, "norms");
  plan.fp8(at + "wq_b", query, c.q_lora_rank, "attention");
  plan.fp8(at + "wkv", c.head_dim, c.hidden_size, "attention");
  plan.bf16(at + "kv_norm.weight", {c.head_dim}, "norms");
  plan.fp8(at + "wo_a", c.o_groups * c.o_lora_rank, query / c.o_groups, "attention");
  plan.fp8(at + "wo_b", c.hidden_size, c.o_groups * c.o_lora_rank, "attention");
  plan.f32(at + "attn_sink", {c.num_attention_heads}, "attention");
  if (layer >= c.num_hidden_layers) return;  // draft stages have a window only

  if (c.is_kv_source(layer)) {
    plan.bf16(at + "compressor.wkv.weight", {c.head_dim, c.hidden_size}, "compressor");
    // Ratio 1 pools nothing, so it has no gate (spec §2.4).
    if (c.compress_ratio(layer) > 1) plan.bf16(at + "compressor.wgate.weight", {c.head_dim, c.hidden_size}, "compressor");
    plan.bf16(at + "compressor.norm.weight", {c.head_dim}, "norms");
    plan.bf16(at + "indexer.wk.weight", {c.index_head_dim, c.head_dim}, "indexer");
    plan.bf16(at + "indexer.k_norm.weight", {c.index_head_dim}, "norms");
  }
  if (c.is_index_source(layer)) {
    plan.fp8(at + "indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank, "indexer");
    plan.bf16(at + "indexer.weights_proj.weight", {c.index_n_heads, c.hidden_size}, "indexer");
  }
}

void add_ffn(Plan& plan, const ModelConfig& c, const std::string& at, int64_t experts) {
  plan.bf16(at + "gate.weight", {experts, c.hidden_size}, "router");
  plan.f32(at + "gate.bias", {experts}, "router");
  plan.f32(at + "gate.bias_vl", {experts}, "router");
  for (int64_t e = 0; e < experts; ++e) {
    const std::string expert = at + "experts." + std::to_string(e);
    plan.fp4(expert + ".w1", c.moe_intermediate_size, c.hidden_size, "experts");
    plan.fp4(expert + ".w2", c.hidden_size, c.moe_intermediate_size, "experts");
    plan.fp4(expert + ".w3", c.moe_intermediate_size, c.hidden_size, "experts");
  }
  plan.fp8(at + "shared_experts.w1", c.moe_intermediate_size, c.hidden_size, "shared_experts");
  plan.fp8(at + "shared_experts.w2", c.hidden_size, c.moe_intermediate_size, "shared_experts");
  plan.fp8(at + "shared_experts.w3", c.moe_intermediate_size, c.hidden_size, "shared_experts");
}

void add_engram(Plan& plan, const ModelConfig& c, const std::string& at, int64_t slot) {
  const int64_t rows = c.engram_num_embeddings[static_cast<size_t>(slot)];
  plan.add(at + "embed.weight", DType::kF8E4M3, {rows, c.engram_head_dim}, "engram_table");
  plan.add(at + "embed.scale", DType::kF8E8M0, {rows, c.engram_head_dim / 32}, "engram_table");
  plan.fp8(at + "wkv", c.hidden_size * (c.hc_mult + 1), c.engram_columns() * c.engram_head_dim, "engram");
  plan.bf16(at + "q_weight", {c.hc_mult, c.hidden_size}, "engram");
  plan.bf16(at + "k_weight", {c.hc_mult, c.hidden_size}, "engram");
}

void add_block(Plan& plan, const ModelConfig& c, const std::string& at, int64_t layer) {
  plan.bf16(at + "attn_norm.weight", {c.hidden_size}, "norms");
  plan.bf16(at + "ffn_norm.weight", {c.hidden_size}, "norms");
  const int64_t mixes = (2 + c.hc_mult) * c.hc_mult;
  for (const char* part : {"hc_attn", "hc_ffn"}) {
    plan.f32(at + part + "_fn", {mixes, c.hc_mult * c.hidden_size}, "hyper_connections");
    plan.f32(at + part + "_base", {mixes}, "hyper_connections");
    plan.f32(at + part + "_scale", {3}, "hyper_connections");
  }
  add_attention(plan, c, at + "attn.", layer);
  add_ffn(plan, c, at + "ffn.", layer < c.num_hidden_layers ? c.n_routed_experts : c.dspark_n_routed_experts);
  if (const int64_t slot = c.engram_slot(layer); slot >= 0) add_engram(plan, c, at + "engram.", slot);
}

void add_draft(Plan& plan, const ModelConfig& c) {
  plan.set_draft(true);
  for (int64_t stage = 0; stage < c.num_nextn_predict_layers; ++stage) {
    const std::string at = "mtp." + std::to_string(stage) + ".";
    add_block(plan, c, at, c.num_hidden_layers + stage);
    if (stage == 0) {
      plan.bf16(at + "main_norm.weight", {c.hidden_size}, "norms");
      plan.fp8(at + "main_proj", c.hidden_size, c.hidden_size * static_cast<int64_t>(c.dspark_target_layer_ids.size()), "draft");
    }
    if (stage == c.num_nextn_predict_layers - 1) {
      plan.bf16(at + "norm.weight", {c.hidden_size}, "norms");
      plan.bf16(at + "markov_head.embed.weight", {c.vocab_size, c.dspark_markov_rank}, "draft");
      plan.bf16(at + "markov_head.head.weight", {c.vocab_size, c.dspark_markov_rank}, "draft");
      plan.bf16(at + "confidence_head.proj.weight", {1, c.hidden_size + c.dspark_markov_rank}, "draft");
    }
  }
  plan.set_draft(false);
}

void add_vision(Plan& plan, const ModelConfig& c) {
  const int64_t d = c.vision_hidden_size;
  for (const char* name : {"image_start", "image_end", "image_newline"}) plan.bf16(name, {c.hidden_size}, "vision");
  plan.bf16("vision.patch_embed.proj.weight", {d, 3 * c.vision_patch_size * c.vision_patch_size}, "vision");
  plan.bf16("vision.patch_embed.proj.bias", {d}, "vision");
  for (int64_t i = 0; i < c.vision_num_hidden_layers; ++i) {
    const std::string at = "vision.blocks." + std::to_string(i) + ".";
    plan.bf16(at + "norm1.weight", {d}, "vision");
    plan.bf16(at + "attn.wqkv.weight", {3 * d, d}, "vision");
    plan.bf16(at + "attn.wqkv.bias", {3 * d}, "vision");
    plan.bf16(at + "attn.wo.weight", {d, d}, "vision");
    plan.bf16(at + "attn.wo.bias", {d}, "vision");
    plan.bf16(at + "norm2.weight", {d}, "vision");
    plan.bf16(at + "mlp.w1.weight", {2 * c.vision_intermediate_size, d}, "vision");
    plan.bf16(at + "mlp.w2.weight", {d, c.vision_intermediate_size}, "vision");
  }
  plan.bf16("vision.norm.weight", {d}, "vision");
  plan.bf16("aligner.w1.weight", {c.hidden_size, d * c.vision_downsample_ratio * c.vision_downsample_ratio}, "vision");
  plan.bf16("aligner.w1.bias", {c.hidden_size}, "vision");
  plan.bf16("aligner.w2.weight", {c.hidden_size, c.hidden_size}, "vision");
  plan.bf16("aligner.w2.bias", {c.hidden_size}, "vision");
}

}  // namespace

int64_t CatalogueEntry::bytes() const {
  int64_t n = dtype_bytes(dtype);
  for (const int64_t d : shape) n *= d;
  return n;
}

std::vector<CatalogueEntry> make_catalogue(const ModelConfig& config) {
  Plan plan;
  plan.bf16("embed.weight", {config.vocab_size, config.hidden_size}, "embedding");
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) add_block(plan, config, "layers." + std::to_string(l) + ".", l);
  plan.bf16("norm.weight", {config.hidden_size}, "norms");
  plan.bf16("head.weight", {config.vocab_size, config.hidden_size}, "head");
  add_draft(plan, config);
  if (config.has_vision) add_vision(plan, config);
  return plan.take();
}

}  // namespace deepinfer
