#include "checkpoint/random_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/mapped_file.h"
#include "base/scalar_types.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/temp_dir.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

struct Fixture {
  std::string text;
  ModelConfig config;
};

Fixture config_of(const std::string& path) {
  Fixture out;
  out.text = read_text_file(path, 1 << 20).value_or("");
  const auto config = ModelConfig::Parse(out.text, path);
  EXPECT_TRUE(config.has_value()) << config.error().message();
  if (config) out.config = *config;
  return out;
}

double dense_std(const Checkpoint& c, const std::string& name) {
  const TensorView& w = *c.find(name + ".weight");
  const TensorView& s = *c.find(name + ".scale");
  double sum = 0;
  for (int64_t o = 0; o < w.shape[0]; ++o) {
    for (int64_t i = 0; i < w.shape[1]; ++i) {
      const double v =
          e4m3_to_float(w.as<uint8_t>()[o * w.shape[1] + i]) * e8m0_to_float(s.as<uint8_t>()[o / 32 * s.shape[1] + i / 32]);
      sum += v * v;
    }
  }
  return std::sqrt(sum / static_cast<double>(w.elements()));
}

double expert_std(const Checkpoint& c, const std::string& name) {
  const TensorView& w = *c.find(name + ".weight");
  const TensorView& s = *c.find(name + ".scale");
  double sum = 0;
  for (int64_t o = 0; o < w.shape[0]; ++o) {
    for (int64_t k = 0; k < w.shape[1]; ++k) {
      const uint8_t byte = w.as<uint8_t>()[o * w.shape[1] + k];
      const double scale = e8m0_to_float(s.as<uint8_t>()[o * s.shape[1] + k / 16]);
      sum += std::pow(e2m1_to_float(byte & 15) * scale, 2) + std::pow(e2m1_to_float(byte >> 4) * scale, 2);
    }
  }
  return std::sqrt(sum / static_cast<double>(2 * w.elements()));
}

TEST(RandomCheckpoint, RoundTrip) {
  const Fixture f = config_of(testing::nano_dir() + "/config.json");
  const std::string directory = testing::scratch_dir("random");
  ASSERT_TRUE(write_random_checkpoint(f.config, f.text, directory, {.seed = 3, .shard_bytes = 5 << 20}).ok());
  Checkpoint::Options full;
  full.verify = VerifyLevel::kFull;
  int64_t last = -1, total = -1;
  full.progress = [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  const auto c = Checkpoint::Open(directory, full);
  ASSERT_TRUE(c.has_value()) << c.error().message();
  EXPECT_GT(last, 0);
  EXPECT_EQ(last, total);
  EXPECT_TRUE((*c)->warnings().empty());
  const double d = static_cast<double>(f.config.hidden_size), q = static_cast<double>(f.config.q_lora_rank);
  EXPECT_NEAR(dense_std(**c, "layers.0.attn.wq_a") * std::sqrt(d), 1.0, 0.1);
  EXPECT_NEAR(dense_std(**c, "layers.0.attn.wq_b") * std::sqrt(q), 1.0, 0.1);
  EXPECT_NEAR(dense_std(**c, "mtp.0.main_proj") * std::sqrt(3 * d), 1.0, 0.1);
  EXPECT_NEAR(expert_std(**c, "layers.0.ffn.experts.3.w1") * std::sqrt(d), 1.0, 0.1);
  EXPECT_NEAR(expert_std(**c, "layers.0.ffn.experts.3.w2") * std::sqrt(static_cast<double>(f.config.moe_intermediate_size)), 1.0,
              0.1);
  const TensorView& base = *(*c)->find("layers.0.hc_attn_base");
  EXPECT_NEAR(base.as<float>()[0], -std::log(3.0f), 0.5f);
  EXPECT_NEAR(base.as<float>()[4], 0.0f, 0.5f);
  EXPECT_NEAR(base.as<float>()[8], 3.0f, 0.5f);
  EXPECT_NEAR(base.as<float>()[9], 0.0f, 0.5f);
  EXPECT_EQ((*c)->find("layers.0.hc_ffn_scale")->as<float>()[2], 0.1f);
  EXPECT_EQ((*c)->find("layers.0.attn.attn_sink")->as<float>()[0], 0.0f);
  EXPECT_NEAR(to_float((*c)->find("norm.weight")->as<bf16>()[0]), 1.0f, 0.3f);
}

TEST(RandomCheckpoint, BytesDoNotDependOnSharding) {
  const Fixture f = config_of(testing::source_dir() + "/tests/data/micro_config.json");
  const std::string one = testing::scratch_dir("random"), many = testing::scratch_dir("random"),
                    other = testing::scratch_dir("random");
  ASSERT_TRUE(write_random_checkpoint(f.config, f.text, one).ok());
  ASSERT_TRUE(write_random_checkpoint(f.config, f.text, many, {.seed = 1, .shard_bytes = 20000}).ok());
  ASSERT_TRUE(write_random_checkpoint(f.config, f.text, other, {.seed = 2}).ok());
  const auto a = Checkpoint::Open(one), b = Checkpoint::Open(many), c = Checkpoint::Open(other);
  ASSERT_TRUE(a.has_value() && b.has_value() && c.has_value());
  int differ = 0;
  for (const auto& e : make_catalogue(f.config)) {
    const TensorView *x = (*a)->find(e.name), *y = (*b)->find(e.name), *z = (*c)->find(e.name);
    ASSERT_EQ(std::memcmp(x->data, y->data, static_cast<size_t>(x->bytes)), 0) << e.name;
    differ += std::memcmp(x->data, z->data, static_cast<size_t>(x->bytes)) != 0 ? 1 : 0;
  }
  EXPECT_GT(differ, 100);
}

TEST(RandomCheckpoint, RefusesBadOptions) {
  Fixture f = config_of(testing::source_dir() + "/tests/data/micro_config.json");
  EXPECT_FALSE(write_random_checkpoint(f.config, f.text, testing::scratch_dir("random"), {.seed = 1, .shard_bytes = 0}).ok());
  EXPECT_FALSE(write_random_checkpoint(f.config, f.text, "/proc/none/such").ok());
  const Fixture nano = config_of(testing::nano_dir() + "/config.json");
  EXPECT_FALSE(write_random_checkpoint(f.config, nano.text, testing::scratch_dir("random")).ok());
  f.config.hidden_size = 33;
  EXPECT_FALSE(write_random_checkpoint(f.config, f.text, testing::scratch_dir("random")).ok());
}

}  // namespace
}  // namespace deepinfer
