// The tiers of an engine, opened for pages wherever they lie.

#include "engine/open_tiers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <thread>

#include "engine/core_harness.h"
#include "testing/paths.h"

namespace deepinfer::testing {
namespace {

class CoreOpenTiers : public ::testing::Test {
 protected:
  CoreOpenTiers() : directory_(make_temp_dir("open-tiers")), memory_(nano_model().backend->memory()) {
    options_.model = nano_dir();
    options_.max_num_batched_tokens = 256;
    options_.max_model_len = 4096;
    options_.kv_cache_memory = int64_t{64} << 20;
  }
  ~CoreOpenTiers() override { std::filesystem::remove_all(directory_); }

  const std::string directory_;
  DeviceMemory& memory_;
  EngineOptions options_;
};

TEST_F(CoreOpenTiers, PagesGoDownAndComeBack) {
  options_.kv_tiers.host_bytes = int64_t{1} << 20;
  options_.kv_tiers.store = directory_ + "/store";
  auto opened = open_tiers(options_, nano_model(), {});
  ASSERT_TRUE(opened.has_value() && opened->has_value()) << (opened ? "" : opened.error().message());
  EngineTiers& tiers = **opened;
  EXPECT_EQ(tiers.copies == nullptr, memory_.is_host());
  EXPECT_EQ(tiers.pinned_bytes > options_.kv_tiers.host_bytes, !memory_.is_host());
  KvTiers& kv = *tiers.opened.tiers;
  const int64_t bytes = kv.shape().page_bytes();
  const auto groups = static_cast<int64_t>(kv.shape().group_bytes.size());
  constexpr int64_t kPages = 40;
  const DeviceBuffer<uint8_t> from(&memory_, kPages * bytes), to(&memory_, kPages * bytes);
  const auto page = [&](const DeviceBuffer<uint8_t>& buffer, int64_t i) {
    return const_cast<uint8_t*>(buffer.data()) + i * bytes;
  };
  std::vector<uint8_t> want(static_cast<size_t>(kPages * bytes));
  for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  memory_.upload(page(from, 0), want.data(), kPages * bytes);
  memory_.fill(page(to, 0), 0, kPages * bytes);
  if (tiers.copies != nullptr) tiers.copies->fence();  // as behind a step
  std::vector<PrefixKey> keys;
  int64_t number = 0;
  for (int64_t i = 0; i < kPages; ++i) {
    keys.push_back({static_cast<uint64_t>(i) + 1, 7});
    number = std::max(number, kv.write_back({.key = keys.back(),
                                             .parent = i > 0 ? keys[static_cast<size_t>(i) - 1] : PrefixKey{},
                                             .page = {page(from, i), static_cast<size_t>(bytes)}}));
  }
  while (kv.copied() < number) std::this_thread::yield();
  kv.flush();
  // The host's memory may hold fewer of them than the store.
  std::promise<KvTierMatch> promise;
  kv.match(keys, true, [&](KvTierMatch match) { promise.set_value(std::move(match)); });
  const KvTierMatch found = promise.get_future().get();
  ASSERT_EQ(found.pages, kPages);
  std::vector<uint8_t*> into;
  for (int64_t i = 0; i < kPages; ++i) into.push_back(page(to, i));
  const auto pull = kv.pull(found, keys, into, {});
  for (int64_t group = 0; group < groups; ++group) ASSERT_TRUE(pull->wait(group));
  std::vector<uint8_t> got(want.size());
  memory_.download(got.data(), page(to, 0), kPages * bytes);
  EXPECT_TRUE(got == want);
  while (!pull->done()) std::this_thread::yield();
  EXPECT_EQ(pull->result().good_pages, kPages);
}

TEST_F(CoreOpenTiers, PinnedMemoryHasALimit) {
  if (memory_.is_host()) GTEST_SKIP() << "the host's own memory is not pinned";
  options_.kv_tiers.host_bytes = int64_t{1} << 49;
  const auto opened = open_tiers(options_, nano_model(), {});
  ASSERT_FALSE(opened.has_value());
  EXPECT_TRUE(opened.error().message().starts_with("kv_tiers.host_bytes is 562949953421312, of pinned memory it must be at most"))
      << opened.error().message();
}

TEST_F(CoreOpenTiers, ComputingIsMeasuredOnlyWhereItIsWeighed) {
  EXPECT_FALSE(measure_prefill(options_, nano_model())->known()) << "no tiers";
  options_.kv_tiers.host_bytes = int64_t{1} << 20;
  EXPECT_TRUE(measure_prefill(options_, nano_model())->known());
  options_.kv_tiers.cut_over = false;
  EXPECT_FALSE(measure_prefill(options_, nano_model())->known());
}

}  // namespace
}  // namespace deepinfer::testing
