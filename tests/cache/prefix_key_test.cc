#include "cache/prefix_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "cache/cache_fixture.h"

namespace deepinfer {
namespace {

using testing::test_hasher;

std::vector<int32_t> tokens(int64_t count) {
  std::vector<int32_t> result(static_cast<size_t>(count));
  std::iota(result.begin(), result.end(), 5);
  return result;
}

TEST(PrefixKey, IsAFunctionOfItsInputs) {
  const PrefixHasher a = test_hasher();
  const PrefixHasher b = test_hasher();
  EXPECT_EQ(a.root("tenant", "model"), b.root("tenant", "model"));
  const PrefixKey root = a.root("tenant", "model");
  EXPECT_EQ(a.next(root, tokens(128)), b.next(root, tokens(128)));
  EXPECT_EQ(a.next(root, tokens(128)), a.next(root, tokens(128), {}));
}

// Another process must find the keys of this one in a shared store: the encoding is fixed. Computed with Python's hmac module:
// hmac.new(bytes(range(1, 33)), message, "sha256").digest()[:16], read as two little-endian words.
TEST(PrefixKey, KnownAnswers) {
  const PrefixHasher hasher = test_hasher();
  const PrefixKey root = hasher.root("tenant", "model");
  EXPECT_EQ(root, (PrefixKey{0x511F9C0E9E18700Full, 0x885B82FAE3C7AA0Cull}));
  const std::vector<int32_t> page = {1, 2, -1};
  EXPECT_EQ(hasher.next(root, page), (PrefixKey{0x7312AD3DA414337Dull, 0x54FCD35E4AB8C260ull}));
}

TEST(PrefixKey, SecretSaltFingerprintParentPositionTokensAndExtraAllCount) {
  const PrefixHasher hasher = test_hasher();
  std::array<uint8_t, 32> other_secret{};
  const PrefixHasher other(other_secret);
  const std::vector<int32_t> page = tokens(128);
  const PrefixKey root = hasher.root("tenant", "model");
  const PrefixKey once = hasher.next(root, page);
  std::vector<PrefixKey> keys = {root, once};
  keys.push_back(other.root("tenant", "model"));
  keys.push_back(other.next(root, page));
  keys.push_back(hasher.root("tenant2", "model"));
  keys.push_back(hasher.root("tenant", "model2"));
  keys.push_back(hasher.next(hasher.root("tenant2", "model"), page));
  keys.push_back(hasher.next(once, page));  // the same tokens one page later
  keys.push_back(hasher.next({root.high, root.low ^ 1}, page));
  keys.push_back(hasher.next({root.high ^ 1, root.low}, page));
  keys.push_back(hasher.next({root.low, root.high}, page));
  std::vector<int32_t> changed = page;
  changed.back() ^= 1 << 30;
  keys.push_back(hasher.next(root, changed));
  std::swap(changed[0], changed[1]);
  keys.push_back(hasher.next(root, changed));
  keys.push_back(hasher.next(root, std::span(page).first(127)));
  const std::vector<uint8_t> image = {1, 2, 3};
  keys.push_back(hasher.next(root, page, image));
  keys.push_back(hasher.next(root, page, std::span(image).first(2)));
  std::set<std::pair<uint64_t, uint64_t>> distinct;
  for (const PrefixKey& key : keys) distinct.emplace(key.high, key.low);
  EXPECT_EQ(distinct.size(), keys.size());
}

TEST(PrefixKey, NoTwoInputsAreEncodedAlike) {
  const PrefixHasher hasher = test_hasher();
  EXPECT_FALSE(hasher.root("ab", "c") == hasher.root("a", "bc"));
  EXPECT_FALSE(hasher.root("ab", "") == hasher.root("", "ab"));
  EXPECT_FALSE(hasher.root("", "") == hasher.root(std::string_view("\0", 1), ""));
  // A salt that spells the length and the text of the fingerprint.
  const std::string spelled("a\1\0\0\0\0\0\0\0b", 10);
  EXPECT_FALSE(hasher.root(spelled, "") == hasher.root("a", "b"));
  // Bytes may be tokens or extra; they are not the same.
  const PrefixKey root = hasher.root("", "");
  const std::vector<int32_t> two = {7, 9};
  const std::vector<uint8_t> as_bytes = {9, 0, 0, 0};
  EXPECT_FALSE(hasher.next(root, two) == hasher.next(root, std::span(two).first(1), as_bytes));
  // A salt that spells the message of a page under another tag.
  std::string page(reinterpret_cast<const char*>(&root), sizeof(root));
  EXPECT_FALSE(hasher.root(page, "") == hasher.next(root, {}));
}

TEST(PrefixKey, RandomSecretsDiffer) {
  const PrefixHasher a = PrefixHasher::Random();
  const PrefixHasher b = PrefixHasher::Random();
  EXPECT_FALSE(a.root("", "") == b.root("", ""));
}

TEST(PrefixKey, MovesWithItsSecret) {
  PrefixHasher a = test_hasher();
  const PrefixKey expected = a.root("x", "y");
  PrefixHasher b = std::move(a);
  EXPECT_EQ(b.root("x", "y"), expected);
  a = PrefixHasher::Random();
  a = std::move(b);
  EXPECT_EQ(a.root("x", "y"), expected);
}

TEST(PageKeys, OnlyFullPages) {
  const PrefixHasher hasher = test_hasher();
  const PrefixKey root = hasher.root("tenant", "model");
  const std::vector<int32_t> all = tokens(128 * 3 + 1);
  for (int64_t boundary = 0; boundary <= 3; ++boundary) {
    for (int64_t offset = -1; offset <= 1; ++offset) {
      const int64_t count = boundary * 128 + offset;
      if (count < 0) continue;
      const auto keys = page_keys(hasher, root, std::span(all).first(static_cast<size_t>(count)), 128);
      EXPECT_EQ(static_cast<int64_t>(keys.size()), count / 128) << count;
    }
  }
}

TEST(PageKeys, AreTheChainOfNext) {
  const PrefixHasher hasher = test_hasher();
  const PrefixKey root = hasher.root("tenant", "model");
  const std::vector<int32_t> all = tokens(20);
  const auto keys = page_keys(hasher, root, all, 8);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0], hasher.next(root, std::span(all).first(8)));
  EXPECT_EQ(keys[1], hasher.next(keys[0], std::span(all).subspan(8, 8)));
}

TEST(PageKeysDeathTest, PageWithoutPositions) {
  const PrefixHasher hasher = test_hasher();
  EXPECT_DEATH(page_keys(hasher, {}, {}, 0), "a page of 0 positions");
}

}  // namespace
}  // namespace deepinfer
