#include "checkpoint/random_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/scalar_types.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/safetensors.h"

namespace deepinfer {
namespace {

/// xorshift64*: eight random bytes for about a nanosecond. Statistical quality is not the point here.
class Xorshift {
 public:
  explicit Xorshift(uint64_t seed) : state_(seed != 0 ? seed : 1) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1dULL;
  }

 private:
  uint64_t state_;
};

/// FNV-1a over the name, mixed with the seed (splitmix64), so that every tensor has a stream of its own.
uint64_t stream_seed(uint64_t seed, std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ULL;
  for (const char ch : name) h = (h ^ static_cast<unsigned char>(ch)) * 0x100000001b3ULL;
  h += seed * 0x9e3779b97f4a7c15ULL;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  return h ^ (h >> 31);
}

/// Inverse of the normal distribution function by bisection; used for tables only.
double normal_quantile(double p) {
  double low = -9, high = 9;
  for (int i = 0; i < 60; ++i) {
    const double mid = (low + high) / 2;
    (0.5 * std::erfc(-mid / std::sqrt(2.0)) < p ? low : high) = mid;
  }
  return (low + high) / 2;
}

/// Maps a random byte to a code of a quantised normal distribution, and the root mean square of the decoded values.
struct CodeTable {
  std::array<uint8_t, 256> codes;
  double rms;
};

/// E4M3 codes of a normal distribution with deviation 64: the largest quantile stays far below 448, and NaN never occurs.
const CodeTable& e4m3_table() {
  static const CodeTable kTable = [] {
    CodeTable t{};
    double sum = 0;
    for (size_t i = 0; i < 256; ++i) {
      t.codes[i] = float_to_e4m3(static_cast<float>(64 * normal_quantile((static_cast<double>(i) + 0.5) / 256)));
      sum += std::pow(e4m3_to_float(t.codes[i]), 2);
    }
    t.rms = std::sqrt(sum / 256);
    return t;
  }();
  return kTable;
}

/// Two E2M1 codes, each one of 16 quantiles of a normal distribution with deviation 2.9.
const CodeTable& e2m1_table() {
  static const CodeTable kTable = [] {
    CodeTable t{};
    std::array<uint8_t, 16> codes{};
    double sum = 0;
    for (size_t i = 0; i < 16; ++i) {
      codes[i] = float_to_e2m1(static_cast<float>(2.9 * normal_quantile((static_cast<double>(i) + 0.5) / 16)));
      sum += std::pow(e2m1_to_float(codes[i]), 2);
    }
    for (size_t i = 0; i < 256; ++i) t.codes[i] = static_cast<uint8_t>(codes[i & 15] | (codes[i >> 4] << 4));
    t.rms = std::sqrt(sum / 16);
    return t;
  }();
  return kTable;
}

/// 4096 quantiles of the standard normal distribution.
const std::array<float, 4096>& normal_table() {
  static const std::array<float, 4096> kTable = [] {
    std::array<float, 4096> t{};
    for (size_t i = 0; i < t.size(); ++i) t[i] = static_cast<float>(normal_quantile((static_cast<double>(i) + 0.5) / 4096));
    return t;
  }();
  return kTable;
}

RandomFill fill_codes(const CodeTable& table, uint64_t seed) {
  return [&table, rng = Xorshift(seed)](int64_t, std::span<std::byte> out) mutable {
    auto* p = reinterpret_cast<uint8_t*>(out.data());
    size_t i = 0;
    for (; i + 8 <= out.size(); i += 8) {
      uint64_t r = rng.next();
      for (size_t b = 0; b < 8; ++b, r >>= 8) p[i + b] = table.codes[r & 255];
    }
    for (uint64_t r = rng.next(); i < out.size(); ++i, r >>= 8) p[i] = table.codes[r & 255];
    return Status::Ok();
  };
}

/// Scale bytes, drawn from two neighbouring powers of two so that the mean square of scale x code is std^2.
RandomFill fill_scales(double code_rms, double std, uint64_t seed) {
  const double want = std / code_rms;
  const double lower = std::floor(std::log2(want));
  // p 4^(e+1) + (1-p) 4^e = want^2
  const double p = (std::exp2(2 * (std::log2(want) - lower)) - 1) / 3;
  const auto threshold = static_cast<uint64_t>(std::lround(p * 256));
  const auto base = static_cast<uint8_t>(std::clamp(127 + static_cast<int>(lower), 1, 253));
  return [=, rng = Xorshift(seed)](int64_t, std::span<std::byte> out) mutable {
    auto* bytes = reinterpret_cast<uint8_t*>(out.data());
    for (size_t i = 0; i < out.size();) {
      uint64_t r = rng.next();
      for (size_t b = 0; b < 8 && i < out.size(); ++b, ++i, r >>= 8)
        bytes[i] = static_cast<uint8_t>(base + ((r & 255) < threshold));
    }
    return Status::Ok();
  };
}

template <typename T>
T convert(float x) {
  if constexpr (sizeof(T) == 2) {
    return to_bf16(x);
  } else {
    return x;
  }
}

/// mean + std x normal, as bf16 or fp32.
template <typename T>
RandomFill fill_normal(float mean, float std, uint64_t seed) {
  std::vector<T> values;
  for (const float z : normal_table()) values.push_back(convert<T>(mean + std * z));
  return [values = std::move(values), rng = Xorshift(seed)](int64_t, std::span<std::byte> out) mutable {
    const T* table = values.data();
    std::byte* to = out.data();
    const size_t count = out.size() / sizeof(T);
    size_t i = 0;
    for (; i + 4 <= count; i += 4, to += 4 * sizeof(T)) {
      const uint64_t r = rng.next();
      const T four[4] = {table[r & 4095], table[(r >> 16) & 4095], table[(r >> 32) & 4095], table[(r >> 48) & 4095]};
      std::memcpy(to, four, sizeof(four));
    }
    for (uint64_t r = rng.next(); i < count; ++i, r >>= 16, to += sizeof(T)) std::memcpy(to, &table[r & 4095], sizeof(T));
    return Status::Ok();
  };
}

/// Mean of entry i of the hyper-connection base, as training starts with: `pre` about 1/m each, `comb` near the identity.
float hc_base(int64_t m, int64_t i) {
  if (i < m) return m > 1 ? -std::log(static_cast<float>(m - 1)) : 0.0f;
  const int64_t comb = i - 2 * m;
  return comb >= 0 && comb / m == comb % m ? 3.0f : 0.0f;
}

/// hc_base plus a little noise, for the copies must differ to be of use. A few dozen values.
RandomFill fill_hc_base(int64_t m, uint64_t seed) {
  return [m, rng = Xorshift(seed)](int64_t offset, std::span<std::byte> out) mutable {
    for (size_t at = 0; at + 4 <= out.size(); at += 4) {
      const int64_t i = (offset + static_cast<int64_t>(at)) / 4;
      const float x = hc_base(m, i) + 0.1f * normal_table()[rng.next() & 4095];
      std::memcpy(out.data() + at, &x, 4);
    }
    return Status::Ok();
  };
}

struct Moments {
  float mean;
  float std;
};

Moments float_moments(const CatalogueEntry& e) {
  const std::string& name = e.name;
  const auto fan_in = [&] { return 1.0f / std::sqrt(static_cast<float>(e.shape.back())); };
  if (name.ends_with("attn_sink")) return {0.0f, 0.0f};
  if (name.ends_with("hc_attn_scale") || name.ends_with("hc_ffn_scale")) return {0.1f, 0.0f};
  if (name.ends_with("bias") || name.ends_with("bias_vl")) return {0.0f, 0.01f};
  if (name.ends_with("q_weight") || name.ends_with("k_weight")) return {1.0f, 0.05f};
  if (name == "embed.weight" || name.starts_with("image_")) return {0.0f, 1.0f};
  if (name == "head.weight") return {0.0f, 0.5f * fan_in()};
  if (name.ends_with("markov_head.embed.weight") || name.ends_with("confidence_head.proj.weight")) return {0.0f, 0.02f};
  if (e.shape.size() == 1) return {1.0f, 0.05f};  // what is left are norms
  return {0.0f, fan_in()};
}

/// Deviation of the weights behind a scale tensor: rows of an Engram table 0.5, a matrix of K columns K^-1/2.
double scale_std(const CatalogueEntry& e) {
  if (e.name.ends_with("engram.embed.scale")) return 0.5;
  return 1.0 / std::sqrt(static_cast<double>(e.shape.back()) * 32);
}

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? Status::Ok() : Status::InvalidArgument("{}: cannot write", path);
}

}  // namespace

Result<RandomFill> random_fill(const ModelConfig& config, const CatalogueEntry& e, uint64_t seed_of_all) {
  const uint64_t seed = stream_seed(seed_of_all, e.name);
  switch (e.dtype) {
    case DType::kF8E4M3:
      return fill_codes(e4m3_table(), seed);
    case DType::kI8:
      return fill_codes(e2m1_table(), seed);
    case DType::kF8E8M0: {
      const bool fp4 = e.group == "experts" || e.group == "draft_experts";
      return fill_scales(fp4 ? e2m1_table().rms : e4m3_table().rms, scale_std(e), seed);
    }
    case DType::kBF16:
      return fill_normal<bf16>(float_moments(e).mean, float_moments(e).std, seed);
    case DType::kF32:
      if (e.name.ends_with("_base")) return fill_hc_base(config.hc_mult, seed);
      return fill_normal<float>(float_moments(e).mean, float_moments(e).std, seed);
    default:
      return Err(Status::Internal("{}: no random fill for {}", e.name, dtype_name(e.dtype)));
  }
}

Status write_random_checkpoint(const ModelConfig& config, const std::string& config_json_text, const std::string& directory,
                               const RandomCheckpointOptions& options) {
  DI_RETURN_IF_ERROR(config.validate());
  if (options.shard_bytes < 1) return Status::InvalidArgument("shard_bytes is {}, it must be >= 1", options.shard_bytes);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Status::InvalidArgument("{}: cannot create: {}", directory, error.message());

  const std::vector<CatalogueEntry> catalogue = make_catalogue(config);
  DI_ASSIGN_OR_RETURN(const ModelConfig described, ModelConfig::Parse(config_json_text, "config_json_text"));
  const auto same = [](const CatalogueEntry& a, const CatalogueEntry& b) { return a.name == b.name && a.shape == b.shape; };
  const std::vector<CatalogueEntry> other = make_catalogue(described);
  if (!std::equal(catalogue.begin(), catalogue.end(), other.begin(), other.end(), same)) {
    return Status::InvalidArgument("config_json_text describes other tensors than the config");
  }

  std::vector<std::vector<const CatalogueEntry*>> shards(1);
  int64_t total = 0, in_shard = 0;
  for (const CatalogueEntry& e : catalogue) {
    if (!shards.back().empty() && in_shard + e.bytes() > options.shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(&e);
    in_shard += e.bytes();
    total += e.bytes();
  }

  std::string index = fmt::format("{{\"metadata\":{{\"total_size\":{}}},\"weight_map\":{{", total);
  bool first = true;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    // Wide elements first, so that every tensor of the shard is aligned to its element type.
    std::stable_sort(shards[s].begin(), shards[s].end(), [](const CatalogueEntry* a, const CatalogueEntry* b) {
      return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
    });
    std::vector<SafetensorsWrite> writes;
    writes.reserve(shards[s].size());
    for (const CatalogueEntry* e : shards[s]) {
      DI_ASSIGN_OR_RETURN(RandomFill fill, random_fill(config, *e, options.seed));
      writes.push_back({e->name, e->dtype, e->shape, std::move(fill)});
      index += fmt::format("{}\"{}\":\"{}\"", first ? "" : ",", e->name, name);
      first = false;
    }
    const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
    DI_RETURN_IF_ERROR(write_safetensors(directory + "/" + name, writes, metadata));
  }
  DI_RETURN_IF_ERROR(write_text(directory + "/" + internal::kIndexFile, index + "}}\n"));
  return write_text(directory + "/config.json", config_json_text);
}

}  // namespace deepinfer
