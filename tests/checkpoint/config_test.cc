#include <gtest/gtest.h>

#include "checkpoint/model_config.h"
#include "testing/paths.h"

namespace deepinfer {
namespace {

ModelConfig released(const char* name) {
  auto config = ModelConfig::Load(testing::source_dir() + "/tests/data/" + name);
  EXPECT_TRUE(config.has_value()) << config.error().message();
  return config ? *config : ModelConfig{};
}

TEST(ModelConfig, BytesPerToken) { EXPECT_EQ(released("released_config.json").kv_bytes_per_token(), 890.0); }

}  // namespace
}  // namespace deepinfer
