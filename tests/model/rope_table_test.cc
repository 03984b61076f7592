#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "testing/paths.h"

namespace deepinfer {
namespace {

ModelConfig released() {
  auto config = ModelConfig::Load(testing::source_dir() + "/tests/data/released_config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message();
  return *config;
}

// spec §12.4.
const std::vector<uint32_t> kCompressed = {0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4,
                                           0x3d94e963, 0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88,
                                           0x3bad3d5e, 0x3b6e4237, 0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af,
                                           0x39305978, 0x38be904d, 0x383e9b5f, 0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8,
                                           0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d};
const std::vector<uint32_t> kPlain = {0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887,
                                      0x3e088d77, 0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f,
                                      0x3c91ad39, 0x3c5a7bf2, 0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38,
                                      0x3b1b690d, 0x3ae91528, 0x3aaec98e, 0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725,
                                      0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472};

TEST(RopeTable, BitPatterns) {
  const ModelConfig c = released();
  for (bool compressed : {false, true}) {
    RopeTable table(c, compressed);
    const std::vector<uint32_t>& want = compressed ? kCompressed : kPlain;
    ASSERT_EQ(table.pairs(), 32);
    for (size_t k = 0; k < 32; ++k)
      EXPECT_EQ(std::bit_cast<uint32_t>(table.frequencies()[k]), want[k]) << compressed << " pair " << k;
  }
}

// The rule of §3.4 from scratch: pairs up to 15 keep their frequency, from 25 on they are divided by 16.
TEST(RopeTable, YarnBlend) {
  const RopeTable table(released(), true);
  for (int k = 0; k < 32; ++k) {
    const double plain = std::pow(160000.0, -k / 32.0);
    const double ramp = std::clamp((k - 15) / 10.0, 0.0, 1.0);
    const double want = plain / 16 * ramp + plain * (1 - ramp);
    EXPECT_NEAR(static_cast<double>(table.frequencies()[static_cast<size_t>(k)]), want, 4e-7 * want) << k;
  }
  ModelConfig off = released();
  off.original_max_position_embeddings = 0;
  EXPECT_NEAR(RopeTable(off, true).frequencies()[31], std::pow(160000.0, -31 / 32.0), 1e-11);
}

// The angle is a product rounded to fp32; cosine and sine are of that number (profile R).
TEST(RopeTable, AnglesAreRoundedProducts) {
  const ModelConfig c = released();
  for (bool compressed : {false, true}) {
    RopeTable table(c, compressed);
    for (int64_t position :
         {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{65535}, int64_t{65536}, int64_t{65537}, int64_t{100003}, int64_t{1048575},
          int64_t{127}, int64_t{65535}, int64_t{126}, int64_t{0}, int64_t{65537}}) {  // kept ones again, too
      std::vector<float> cosine(32), sine(32);
      table.fill(position, cosine.data(), sine.data());
      for (size_t k = 0; k < 32; ++k) {
        const float angle = static_cast<float>(position) * table.frequencies()[k];
        EXPECT_EQ(cosine[k], static_cast<float>(std::cos(static_cast<double>(angle)))) << position << " pair " << k;
        EXPECT_EQ(sine[k], static_cast<float>(std::sin(static_cast<double>(angle)))) << position << " pair " << k;
        EXPECT_NEAR(cosine[k] * cosine[k] + sine[k] * sine[k], 1.0f, 1e-6f);
      }
      EXPECT_EQ(cosine[0], static_cast<float>(std::cos(static_cast<double>(position))));  // frequency 1: exact
    }
  }
}

}  // namespace
}  // namespace deepinfer
