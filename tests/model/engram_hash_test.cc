#include "model/engram_hash.h"

#include <gtest/gtest.h>

#include <numeric>

#include "testing/paths.h"

namespace deepinfer {
namespace {

ModelConfig released() {
  auto config = ModelConfig::Load(testing::source_dir() + "/tests/data/released_config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message();
  return *config;
}

constexpr int32_t kDead = EngramHash::kDead;
constexpr int32_t kPad = 2;

std::vector<int64_t> rows_of(const EngramHash& hash, int64_t slot, std::vector<int32_t> history) {
  std::vector<int64_t> rows(static_cast<size_t>(hash.columns()));
  hash.rows(slot, history, rows.data());
  return rows;
}

// spec §5.2.
TEST(EngramHash, Primes) {
  const ModelConfig c = released();
  const EngramHash hash(c, kPad);
  const std::vector<std::vector<int64_t>> want = {
      {16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183, 16000189, 16000207, 16000211, 16000253,
       16000277, 16000289, 16000307, 16000321, 16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463},
      {16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627, 16000667, 16000669, 16000693, 16000697,
       16000711, 16000729, 16000759, 16000769, 16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889}};
  EXPECT_EQ(hash.primes(), want);
  for (size_t slot = 0; slot < 2; ++slot) {
    EXPECT_EQ(std::accumulate(want[slot].begin(), want[slot].end(), int64_t{0}), c.engram_num_embeddings[slot]);
    EXPECT_EQ(std::accumulate(hash.primes()[slot].begin(), hash.primes()[slot].end(), int64_t{0}), c.engram_num_embeddings[slot]);
  }
  // One after the other, none left out.
  std::vector<int64_t> first;
  for (int64_t n = 16000000; first.size() < 48; ++n) {
    bool prime = true;
    for (int64_t f = 2; f * f <= n && prime; ++f) prime = n % f != 0;
    if (prime) first.push_back(n);
  }
  std::vector<int64_t> all = hash.primes()[0];
  all.insert(all.end(), hash.primes()[1].begin(), hash.primes()[1].end());
  EXPECT_EQ(all, first);
}

// spec §5.3.
TEST(EngramHash, Multipliers) {
  const EngramHash hash(released(), kPad);
  const std::vector<std::vector<int64_t>> want = {{76632096046245, 4839876093313, 35959672319349, 73987337458391},
                                                  {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
  EXPECT_EQ(hash.multipliers(), want);
}

// spec §12.3.
TEST(EngramHash, Rows) {
  const EngramHash hash(released(), kPad);
  ASSERT_EQ(hash.columns(), 24);
  EXPECT_EQ(rows_of(hash, 0, {0}),
            (std::vector<int64_t>{5702652,   24393184,  39183301,  61503783,  78984481,  90144770,  103724983, 121476532,
                                  131476717, 152385926, 164143652, 191599181, 198145581, 217419202, 238329687, 247482304,
                                  257520185, 283540304, 288689443, 315264704, 322314652, 348890037, 367865216, 380066193}));
  const std::vector<int32_t> history = {0, 17, 4242, 99091};
  EXPECT_EQ(rows_of(hash, 0, history),
            (std::vector<int64_t>{10758324,  24779415,  42020388,  60472324,  68565841,  94841369,  109399929, 115298951,
                                  130326290, 146788273, 172607272, 188893333, 199373781, 217401913, 228428379, 253821629,
                                  266948377, 281504228, 293415827, 310568755, 333855025, 338559696, 364514235, 380806667}));
  EXPECT_EQ(rows_of(hash, 1, history),
            (std::vector<int64_t>{9121122,   29256405,  47609819,  53415669,  73590273,  94650684,  96563991,  115261222,
                                  141010595, 159312795, 171454237, 181777291, 192579882, 214864716, 226136160, 240485778,
                                  258296032, 283310426, 289739436, 311673259, 333739062, 339316051, 363861866, 377762488}));
  const auto dead = rows_of(hash, 0, {0, 17, kDead, 99091});
  EXPECT_EQ((std::vector<int64_t>(dead.begin(), dead.begin() + 3)), (std::vector<int64_t>{2008568, 17698461, 32185018}));
}

TEST(EngramHash, LookBack) {
  const EngramHash hash(released(), kPad);
  // Everything behind a dead token is blocked, whatever it is.
  EXPECT_EQ(rows_of(hash, 0, {5, 9, kDead, 99091}), rows_of(hash, 0, {0, 17, kDead, 99091}));
  EXPECT_EQ(rows_of(hash, 0, {5, kDead, 7, 8}), rows_of(hash, 0, {kDead, 7, 8}));
  // The start of the sequence blocks in the same way, and a blocked place counts as padding.
  EXPECT_EQ(rows_of(hash, 0, {7, 8}), rows_of(hash, 0, {kDead, 7, 8}));
  EXPECT_EQ(rows_of(hash, 0, {7, 8}), rows_of(hash, 0, {kPad, kPad, 7, 8}));
  // A dead token itself blocks everything.
  EXPECT_EQ(rows_of(hash, 1, {1, 2, 3, kDead}), rows_of(hash, 1, {kPad, kPad, kPad, kPad}));
  // Only the last four tokens count.
  EXPECT_EQ(rows_of(hash, 1, {1, 2, 3, 4, 5, 6}), rows_of(hash, 1, {9, 9, 3, 4, 5, 6}));
  EXPECT_NE(rows_of(hash, 1, {1, 2, 3, 4, 5, 6}), rows_of(hash, 1, {1, 2, 4, 4, 5, 6}));
}

TEST(EngramHash, RowsLieInTheirColumns) {
  const ModelConfig c = released();
  const EngramHash hash(c, kPad);
  for (int32_t a = 0; a < 2000; ++a) {
    const auto rows = rows_of(hash, a % 2, {99091 - a, a, 7 * a % 99092, 99091});
    int64_t offset = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_GE(rows[i], offset);
      offset += hash.primes()[static_cast<size_t>(a % 2)][i];
      ASSERT_LT(rows[i], offset);
    }
  }
}

}  // namespace
}  // namespace deepinfer
