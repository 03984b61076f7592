#include "checkpoint/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "checkpoint/config_fields.h"

namespace deepinfer {
namespace internal {
namespace {

constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = int64_t{1} << 17;
constexpr int64_t kMaxVocab = int64_t{1} << 22;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

using C = ModelConfig;
// Name, flat name, member, low, high, multiple of, needed when.
constexpr std::array kTextFields = {
    IntField{"vocab_size", "", &C::vocab_size, 1, kMaxVocab, 1, Need::kAlways},
    IntField{"hidden_size", "dim", &C::hidden_size, 32, kMaxWidth, 32, Need::kAlways},
    IntField{"moe_intermediate_size", "moe_inter_dim", &C::moe_intermediate_size, 32, kMaxWidth, 32, Need::kAlways},
    IntField{"num_hidden_layers", "n_layers", &C::num_hidden_layers, 1, kMaxLayers, 1, Need::kAlways},
    IntField{"num_attention_heads", "n_heads", &C::num_attention_heads, 1, 4096, 1, Need::kAlways},
    IntField{"head_dim", "", &C::head_dim, 32, 4096, 32, Need::kAlways},
    IntField{"qk_rope_head_dim", "rope_head_dim", &C::qk_rope_head_dim, 2, 4096, 2, Need::kAlways},
    IntField{"q_lora_rank", "", &C::q_lora_rank, 32, kMaxWidth, 32, Need::kAlways},
    IntField{"o_lora_rank", "", &C::o_lora_rank, 1, kMaxWidth, 1, Need::kAlways},
    IntField{"o_groups", "", &C::o_groups, 1, 4096, 1, Need::kAlways},
    IntField{"n_routed_experts", "", &C::n_routed_experts, 1, 65536, 1, Need::kAlways},
    IntField{"n_shared_experts", "", &C::n_shared_experts, 1, 1, 1, Need::kAlways},
    IntField{"num_experts_per_tok", "n_activated_experts", &C::num_experts_per_tok, 1, 1024, 1, Need::kAlways},
    IntField{"sliding_window", "window_size", &C::sliding_window, 1, 1 << 20, 1, Need::kAlways},
    IntField{"index_n_heads", "", &C::index_n_heads, 1, 4096, 1, Need::kCompressed},
    IntField{"index_head_dim", "", &C::index_head_dim, 32, 4096, 32, Need::kCompressed},
    IntField{"index_topk", "", &C::index_topk, 1, 1 << 20, 1, Need::kCompressed},
    IntField{"candidate_topk_blocks", "", &C::candidate_topk_blocks, 1, 1 << 20, 1, Need::kCandidate},
    IntField{"candidate_block_size", "", &C::candidate_block_size, 1, 1 << 16, 1, Need::kCandidate},
    IntField{"hc_mult", "", &C::hc_mult, 1, 8, 1, Need::kAlways},
    IntField{"hc_sinkhorn_iters", "", &C::hc_sinkhorn_iters, 1, 1000, 1, Need::kAlways},
    IntField{"engram_max_ngram_size", "", &C::engram_max_ngram_size, 2, 8, 1, Need::kEngram},
    IntField{"engram_vocab_size", "", &C::engram_vocab_size, 2, 1 << 30, 1, Need::kEngram},
    IntField{"engram_n_heads", "", &C::engram_n_heads, 1, 64, 1, Need::kEngram},
    IntField{"engram_head_dim", "", &C::engram_head_dim, 32, 4096, 32, Need::kEngram},
    IntField{"engram_pad_token_id", "engram_pad_id", &C::engram_pad_token_id, 0, kMaxVocab, 1, Need::kEngram},
    IntField{"engram_compressed_vocab_size", "", &C::engram_compressed_vocab_size, 1, kMaxVocab, 1, Need::kEngram},
    IntField{"dspark_block_size", "", &C::dspark_block_size, 1, 64, 1, Need::kDraft},
    IntField{"dspark_noise_token_id", "", &C::dspark_noise_token_id, 0, kMaxVocab, 1, Need::kDraft},
    IntField{"dspark_markov_rank", "", &C::dspark_markov_rank, 32, 1 << 14, 32, Need::kDraft},
    // 0 or absent: as in the backbone.
    IntField{"dspark_n_routed_experts", "", &C::dspark_n_routed_experts, 0, 65536, 1, Need::kOptional},
    IntField{"dspark_num_experts_per_tok", "dspark_n_activated_experts", &C::dspark_num_experts_per_tok, 0, 1024, 1,
             Need::kOptional},
};

constexpr std::array kVisionFields = {
    IntField{"num_hidden_layers", "vision_n_layers", &C::vision_num_hidden_layers, 1, kMaxLayers, 1, Need::kVision},
    IntField{"hidden_size", "vision_dim", &C::vision_hidden_size, 1, 1 << 15, 1, Need::kVision},
    IntField{"num_attention_heads", "vision_n_heads", &C::vision_num_attention_heads, 1, 1024, 1, Need::kVision},
    IntField{"intermediate_size", "vision_inter_dim", &C::vision_intermediate_size, 1, kMaxWidth, 1, Need::kVision},
    IntField{"patch_size", "vision_patch_size", &C::vision_patch_size, 1, 256, 1, Need::kVision},
    IntField{"downsample_ratio", "vision_downsample_ratio", &C::vision_downsample_ratio, 1, 16, 1, Need::kVision},
    IntField{"max_image_tokens", "vision_max_n_token", &C::vision_max_image_tokens, 1, 1 << 16, 1, Need::kVision},
    IntField{"min_pixels", "vision_min_pixels", &C::vision_min_pixels, 0, kMaxInt32, 1, Need::kOptional},
};

}  // namespace

std::span<const IntField> text_int_fields() { return kTextFields; }
std::span<const IntField> vision_int_fields() { return kVisionFields; }

std::vector<int64_t> engram_bucket_primes(const ModelConfig& config) {
  // "The smallest unused prime >= start" for every bucket in turn is the run of primes from start on. Segmented sieve.
  const auto wanted = config.engram_layer_ids.size() * static_cast<size_t>(config.engram_columns());
  std::vector<int64_t> primes;
  constexpr int64_t kSegment = 1 << 16;
  for (int64_t from = std::max<int64_t>(2, config.engram_vocab_size); primes.size() < wanted; from += kSegment) {
    std::vector<bool> composite(kSegment, false);
    for (int64_t d = 2; d * d < from + kSegment; d = d == 2 ? 3 : d + 2) {
      for (int64_t m = std::max(d * d, (from + d - 1) / d * d); m < from + kSegment; m += d) {
        composite[static_cast<size_t>(m - from)] = true;
      }
    }
    for (int64_t i = 0; i < kSegment && primes.size() < wanted; ++i) {
      if (!composite[static_cast<size_t>(i)]) primes.push_back(from + i);
    }
  }
  return primes;
}

}  // namespace internal

namespace {

using internal::Need;
using internal::needed;

Status bad(std::string_view name, int64_t value, std::string_view rule) {
  return Status::InvalidArgument("{} is {}, {}", name, value, rule);
}

Status check_fields(const ModelConfig& c, std::span<const internal::IntField> fields, std::string_view prefix) {
  for (const internal::IntField& f : fields) {
    const int64_t value = c.*f.member;
    if (!needed(f.need, c) && f.need != Need::kOptional) continue;
    if (value < f.low || value > f.high) {
      return Status::OutOfRange("{}{} is {}, it must lie in [{}, {}]", prefix, f.name, value, f.low, f.high);
    }
    if (value % f.multiple != 0) {
      return Status::InvalidArgument("{}{} is {}, it must be a multiple of {}", prefix, f.name, value, f.multiple);
    }
  }
  return Status::Ok();
}

Status check_float(std::string_view name, float value, float low, float high) {
  if (value >= low && value <= high) return Status::Ok();
  return Status::OutOfRange("{} is {}, it must lie in [{}, {}]", name, value, low, high);
}

Status check_floats(const ModelConfig& c) {
  constexpr float kTiny = std::numeric_limits<float>::min();
  DI_RETURN_IF_ERROR(check_float("swiglu_limit", c.swiglu_limit, 0.0f, 1e6f));
  DI_RETURN_IF_ERROR(check_float("rms_norm_eps", c.rms_norm_eps, kTiny, 1.0f));
  DI_RETURN_IF_ERROR(check_float("hc_eps", c.hc_eps, 0.0f, 1.0f));
  DI_RETURN_IF_ERROR(check_float("rope_theta", c.rope_theta, 1.0001f, 1e12f));
  DI_RETURN_IF_ERROR(check_float("compress_rope_theta", c.compress_rope_theta, 1.0001f, 1e12f));
  DI_RETURN_IF_ERROR(check_float("rope_scaling.factor", c.rope_factor, 1.0f, 1e6f));
  DI_RETURN_IF_ERROR(check_float("rope_scaling.beta_slow", c.beta_slow, 1e-3f, 1e6f));
  DI_RETURN_IF_ERROR(check_float("rope_scaling.beta_fast", c.beta_fast, c.beta_slow, 1e6f));
  DI_RETURN_IF_ERROR(check_float("routed_scaling_factor", c.routed_scaling_factor, 1e-6f, 1e6f));
  DI_RETURN_IF_ERROR(check_float("gate_temp", c.gate_temp, 1e-6f, 1e6f));
  if (c.has_vision) {
    DI_RETURN_IF_ERROR(check_float("vision_config.rope_theta", c.vision_rope_theta, 1.0001f, 1e12f));
    DI_RETURN_IF_ERROR(check_float("vision_config.max_wh_ratio", c.vision_max_wh_ratio, 0.0f, 1e6f));
  }
  return Status::Ok();
}

/// A list of layers: each in [0, num_hidden_layers), strictly ascending.
Status check_layer_list(const ModelConfig& c, std::string_view name, const std::vector<int64_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= c.num_hidden_layers) {
      return Status::OutOfRange("{}[{}] is {}, it must lie in [0, {})", name, i, ids[i], c.num_hidden_layers);
    }
    if (i > 0 && ids[i] <= ids[i - 1]) {
      return Status::InvalidArgument("{}[{}] is {} after {}, the list must ascend", name, i, ids[i], ids[i - 1]);
    }
  }
  return Status::Ok();
}

Status check_heads(const ModelConfig& c) {
  if (c.num_attention_heads % c.o_groups != 0) {
    return bad("o_groups", c.o_groups, fmt::format("it must divide num_attention_heads {}", c.num_attention_heads));
  }
  const int64_t query = c.num_attention_heads * c.head_dim;
  if (query > int64_t{1} << 22) return bad("num_attention_heads x head_dim", query, "the limit is 4194304");
  const int64_t low = c.o_groups * c.o_lora_rank;
  if (low > int64_t{1} << 20) return bad("o_groups x o_lora_rank", low, "the limit is 1048576");
  if (low % 32 != 0) return bad("o_groups x o_lora_rank", low, "it must be a multiple of 32");
  if (c.qk_rope_head_dim > c.head_dim) {
    return bad("qk_rope_head_dim", c.qk_rope_head_dim, fmt::format("it must not exceed head_dim {}", c.head_dim));
  }
  if (!c.kv_source_layer_ids.empty()) {
    if (c.qk_rope_head_dim > c.index_head_dim) {
      return bad("qk_rope_head_dim", c.qk_rope_head_dim, fmt::format("it must not exceed index_head_dim {}", c.index_head_dim));
    }
    const int64_t index = c.index_n_heads * c.index_head_dim;
    if (index > int64_t{1} << 22) return bad("index_n_heads x index_head_dim", index, "the limit is 4194304");
  }
  return Status::Ok();
}

/// Layer modes must be well defined (spec §3.6): who makes the global KV that a layer reads, and who chooses its entries.
Status check_layer_modes(const ModelConfig& c) {
  const int64_t total = c.num_hidden_layers + c.num_nextn_predict_layers;
  const auto given = static_cast<int64_t>(c.compress_ratios.size());
  if (given != total) {
    return bad("the length of compress_ratios", given,
               fmt::format("it must be num_hidden_layers {} or {} with the draft stages", c.num_hidden_layers, total));
  }
  DI_RETURN_IF_ERROR(check_layer_list(c, "kv_source_layer_ids", c.kv_source_layer_ids));
  DI_RETURN_IF_ERROR(check_layer_list(c, "index_source_layer_ids", c.index_source_layer_ids));
  for (int64_t l = 0; l < total; ++l) {
    const int64_t ratio = c.compress_ratio(l);
    const std::string name = fmt::format("compress_ratios[{}]", l);
    if (ratio < 0 || ratio > 2) return bad(name, ratio, "it must be 0, 1 or 2");
    if (l >= c.num_hidden_layers) {
      if (ratio != 0) return bad(name, ratio, "it must be 0 for a draft stage");
      continue;
    }
    if (ratio == 0 && c.is_kv_source(l)) return bad(name, ratio, "but kv_source_layer_ids contains the layer");
    if (ratio == 0 && c.is_index_source(l)) return bad(name, ratio, "but index_source_layer_ids contains the layer");
    if (c.is_kv_source(l) && !c.is_index_source(l)) {
      return bad("kv_source_layer_ids entry", l, "index_source_layer_ids must contain it too (it owns the index keys)");
    }
    if (ratio == 0) continue;
    const int64_t source = c.kv_source_of(l);
    if (source < 0) return bad(name, ratio, "but kv_source_layer_ids has no layer at or before it");
    if (c.compress_ratio(source) != ratio) {
      return bad(name, ratio, fmt::format("but its KV source, layer {}, has ratio {}", source, c.compress_ratio(source)));
    }
  }
  if (c.candidate_source_layer_id < -1) return bad("candidate_source_layer_id", c.candidate_source_layer_id, "it must be >= -1");
  if (c.candidate_source_layer_id < 0) return Status::Ok();
  if (!c.is_index_source(c.candidate_source_layer_id)) {
    return bad("candidate_source_layer_id", c.candidate_source_layer_id, "index_source_layer_ids must contain it");
  }
  // Later layers choose inside its pool, so they must index the same rows.
  if (c.kv_source_layer_ids.back() > c.candidate_source_layer_id) {
    return bad("candidate_source_layer_id", c.candidate_source_layer_id,
               fmt::format("no KV source may follow it, {} does", c.kv_source_layer_ids.back()));
  }
  const int64_t pool = c.candidate_topk_blocks * c.candidate_block_size - (c.candidate_block_size - 1);
  if (pool < c.index_topk) {
    return bad(
        "candidate_topk_blocks", c.candidate_topk_blocks,
        fmt::format("with candidate_block_size {} it must hold index_topk {} entries", c.candidate_block_size, c.index_topk));
  }
  return Status::Ok();
}

Status check_experts(const ModelConfig& c) {
  if (c.num_experts_per_tok > c.n_routed_experts) {
    return bad("num_experts_per_tok", c.num_experts_per_tok, fmt::format("n_routed_experts is {}", c.n_routed_experts));
  }
  int64_t experts = c.num_hidden_layers * c.n_routed_experts;
  if (c.num_nextn_predict_layers > 0) {
    if (c.dspark_n_routed_experts < 1) return bad("dspark_n_routed_experts", c.dspark_n_routed_experts, "it must be >= 1");
    if (c.dspark_num_experts_per_tok < 1 || c.dspark_num_experts_per_tok > c.dspark_n_routed_experts) {
      return bad("dspark_num_experts_per_tok", c.dspark_num_experts_per_tok,
                 fmt::format("it must lie in [1, {}]", c.dspark_n_routed_experts));
    }
    experts += c.num_nextn_predict_layers * c.dspark_n_routed_experts;
  }
  // Bounds the catalogue: six tensors an expert. The released model has 15,744.
  if (experts > int64_t{1} << 18) return bad("layers x n_routed_experts", experts, "the limit is 262144 experts in all");
  return Status::Ok();
}

Status check_engram(const ModelConfig& c) {
  if (c.engram_layer_ids.empty()) return Status::Ok();
  if (c.engram_layer_ids.size() > 64) {
    return bad("the length of engram_layer_ids", static_cast<int64_t>(c.engram_layer_ids.size()), "the limit is 64");
  }
  DI_RETURN_IF_ERROR(check_layer_list(c, "engram_layer_ids", c.engram_layer_ids));
  if (c.engram_num_embeddings.size() != c.engram_layer_ids.size()) {
    return bad("the length of engram_num_embeddings", static_cast<int64_t>(c.engram_num_embeddings.size()),
               fmt::format("engram_layer_ids has {}", c.engram_layer_ids.size()));
  }
  if (c.engram_pad_token_id >= c.vocab_size) {
    return bad("engram_pad_token_id", c.engram_pad_token_id, fmt::format("vocab_size is {}", c.vocab_size));
  }
  if (c.engram_compressed_vocab_size > c.vocab_size) {
    return bad("engram_compressed_vocab_size", c.engram_compressed_vocab_size, fmt::format("vocab_size is {}", c.vocab_size));
  }
  // The hash picks rows below the sum of the bucket primes (spec §5.2): a smaller table would be read past its end.
  const std::vector<int64_t> primes = internal::engram_bucket_primes(c);
  const auto columns = static_cast<size_t>(c.engram_columns());
  for (size_t slot = 0; slot < c.engram_layer_ids.size(); ++slot) {
    int64_t rows = 0;
    for (size_t i = 0; i < columns; ++i) rows += primes[slot * columns + i];
    if (c.engram_num_embeddings[slot] != rows) {
      return bad(fmt::format("engram_num_embeddings[{}]", slot), c.engram_num_embeddings[slot],
                 fmt::format("the bucket primes from engram_vocab_size {} on sum to {}", c.engram_vocab_size, rows));
    }
  }
  return Status::Ok();
}

Status check_tokens(const ModelConfig& c) {
  const auto in_vocab = [&](std::string_view name, int64_t id) {
    if (id >= 0 && id < c.vocab_size) return Status::Ok();
    return Status::OutOfRange("{} is {}, it must lie in [0, {})", name, id, c.vocab_size);
  };
  DI_RETURN_IF_ERROR(in_vocab("bos_token_id", c.bos_token_id));
  DI_RETURN_IF_ERROR(in_vocab("eos_token_id", c.eos_token_id));
  DI_RETURN_IF_ERROR(in_vocab("pad_token_id", c.pad_token_id));
  if (c.has_vision || c.image_token_id != -1) DI_RETURN_IF_ERROR(in_vocab("image_token_id", c.image_token_id));
  if (c.num_nextn_predict_layers > 0) DI_RETURN_IF_ERROR(in_vocab("dspark_noise_token_id", c.dspark_noise_token_id));
  return Status::Ok();
}

Status check_draft(const ModelConfig& c) {
  if (c.num_nextn_predict_layers == 0) return Status::Ok();
  DI_RETURN_IF_ERROR(check_layer_list(c, "dspark_target_layer_ids", c.dspark_target_layer_ids));
  const auto taps = static_cast<int64_t>(c.dspark_target_layer_ids.size());
  if (taps < 1 || taps > 64) return bad("the length of dspark_target_layer_ids", taps, "it must lie in [1, 64]");
  return Status::Ok();
}

Status check_vision(const ModelConfig& c) {
  if (!c.has_vision) return Status::Ok();
  DI_RETURN_IF_ERROR(check_fields(c, internal::vision_int_fields(), "vision_config."));
  // 2-D RoPE rotates pairs along two axes, so a head is a multiple of 4 wide (vision.md §5).
  if (c.vision_hidden_size % (4 * c.vision_num_attention_heads) != 0) {
    return bad("vision_config.hidden_size", c.vision_hidden_size,
               fmt::format("it must be a multiple of 4 x num_attention_heads {}", c.vision_num_attention_heads));
  }
  return Status::Ok();
}

/// Largest entry <= layer, -1 if there is none.
int64_t largest_up_to(const std::vector<int64_t>& ascending, int64_t layer) {
  const auto after = std::upper_bound(ascending.begin(), ascending.end(), layer);
  return after == ascending.begin() ? -1 : *(after - 1);
}

bool contains(const std::vector<int64_t>& ascending, int64_t layer) {
  return std::binary_search(ascending.begin(), ascending.end(), layer);
}

}  // namespace

Status ModelConfig::validate() const {
  if (num_nextn_predict_layers < 0 || num_nextn_predict_layers > 64) {
    return bad("num_nextn_predict_layers", num_nextn_predict_layers, "it must lie in [0, 64]");
  }
  DI_RETURN_IF_ERROR(check_fields(*this, internal::text_int_fields(), ""));
  if (max_position_embeddings < 1 || max_position_embeddings > int64_t{1} << 30) {
    return bad("max_position_embeddings", max_position_embeddings, "it must lie in [1, 1073741824]");
  }
  if (original_max_position_embeddings < 0 || original_max_position_embeddings > int64_t{1} << 30) {
    return bad("original_max_position_embeddings", original_max_position_embeddings, "it must lie in [0, 1073741824]");
  }
  DI_RETURN_IF_ERROR(check_floats(*this));
  DI_RETURN_IF_ERROR(check_heads(*this));
  DI_RETURN_IF_ERROR(check_layer_modes(*this));
  DI_RETURN_IF_ERROR(check_experts(*this));
  DI_RETURN_IF_ERROR(check_engram(*this));
  DI_RETURN_IF_ERROR(check_draft(*this));
  DI_RETURN_IF_ERROR(check_vision(*this));
  return check_tokens(*this);
}

bool ModelConfig::is_kv_source(int64_t layer) const { return contains(kv_source_layer_ids, layer); }
bool ModelConfig::is_index_source(int64_t layer) const { return contains(index_source_layer_ids, layer); }

int64_t ModelConfig::kv_source_of(int64_t layer) const {
  return compress_ratio(layer) == 0 ? -1 : largest_up_to(kv_source_layer_ids, layer);
}

int64_t ModelConfig::index_source_of(int64_t layer) const {
  return compress_ratio(layer) == 0 ? -1 : largest_up_to(index_source_layer_ids, layer);
}

int64_t ModelConfig::engram_slot(int64_t layer) const {
  const auto at = std::find(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  return at == engram_layer_ids.end() ? -1 : at - engram_layer_ids.begin();
}

double ModelConfig::kv_bytes_per_token() const {
  double bytes = 0;
  for (const int64_t layer : kv_source_layer_ids) {
    bytes += static_cast<double>(main_row_bytes() + index_row_bytes()) / static_cast<double>(compress_ratio(layer));
  }
  return bytes;
}

}  // namespace deepinfer
