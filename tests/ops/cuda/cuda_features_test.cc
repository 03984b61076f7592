#include "ops/cuda/cuda_features.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(CudaFeatures, AreReadAndWritten) {
  EXPECT_EQ(*parse_cuda_features("none"), CudaFeatures{});
  const auto some = parse_cuda_features("fused,overlap");
  ASSERT_TRUE(some);
  EXPECT_TRUE(some->overlap && some->fused);
  EXPECT_FALSE(some->beside);
  EXPECT_EQ(cuda_features_text(*some), "overlap,fused");
  const auto all = parse_cuda_features("all");
  ASSERT_TRUE(all);
  EXPECT_EQ(*parse_cuda_features(cuda_features_text(*all)), *all);
  EXPECT_EQ(cuda_features_text(CudaFeatures{}), "none");
}

TEST(CudaFeatures, AnUnknownNameIsAnError) {
  for (const char* text : {"", "overlaps", "overlap,", "overlap,none", ",overlap", "overlap fused", "ALL"}) {
    const auto features = parse_cuda_features(text);
    ASSERT_FALSE(features) << text;
    EXPECT_NE(features.error().message().find("cuda_features: \""), std::string::npos);
    EXPECT_NE(features.error().message().find("overlap"), std::string::npos);
  }
}

}  // namespace
}  // namespace deepinfer
