#include "cache/tiers/open_kv_tiers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>

namespace deepinfer {
namespace {

const KvPageShape kShape{.group_bytes = {1600, 800}};

class OpenKvTiers : public ::testing::Test {
 protected:
  OpenKvTiers() {
    std::string name = (std::filesystem::temp_directory_path() / "deepinfer-kv-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~OpenKvTiers() override { std::filesystem::remove_all(directory_); }
  KvTiersConfig config() const {
    KvTiersConfig config;
    config.host_bytes = 1 << 20;
    config.local_directory = directory_ + "/store";
    return config;
  }
  std::string directory_;
};

TEST_F(OpenKvTiers, ARestartFindsSecretAndPages) {
  const std::vector<uint8_t> page(2400, 5);
  StoreSecret secret;
  {
    auto opened = open_kv_tiers(config(), kShape, "model");
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    secret = opened->secret;
    opened->tiers->write_back({.key = {1, 2}, .parent = {0, 1}, .page = page});
    opened->tiers->flush();
  }
  auto opened = open_kv_tiers(config(), kShape, "model");
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  EXPECT_EQ(opened->secret, secret);
  std::promise<KvTierMatch> promise;
  opened->tiers->match({{1, 2}}, true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
  const KvTierMatch found = promise.get_future().get();
  ASSERT_EQ(found.pages, 1);
  std::vector<uint8_t> into(2400);
  const auto pull = opened->tiers->pull(found, {{1, 2}}, {into.data()}, {});
  EXPECT_TRUE(pull->wait(1));
  EXPECT_TRUE(pull->wait(0));
  EXPECT_EQ(into, page);
}

TEST_F(OpenKvTiers, MachinesOnOneSharedDirectoryHaveSecretAndPagesInCommon) {
  const std::vector<uint8_t> page(2400, 5);
  const std::string shared = directory_ + "/shared";
  KvTiersConfig machine = config();
  machine.shared_directory = shared;
  const auto without = open_kv_tiers(machine, kShape, "model");
  ASSERT_FALSE(without.has_value()) << "a mount point without a mount";
  EXPECT_NE(without.error().message().find(shared), std::string::npos);
  std::filesystem::create_directory(shared);
  StoreSecret secret;
  {
    auto opened = open_kv_tiers(machine, kShape, "model");
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    EXPECT_EQ(opened->tiers->tier_names(), (std::vector<std::string_view>{"host", "local", "shared"}));
    secret = opened->secret;
    opened->tiers->write_back({.key = {1, 2}, .parent = {0, 1}, .page = page});
    opened->tiers->flush();
  }
  machine.local_directory = directory_ + "/another machine's";
  auto opened = open_kv_tiers(machine, kShape, "model");
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  EXPECT_EQ(opened->secret, secret);
  std::promise<KvTierMatch> promise;
  opened->tiers->match({{1, 2}}, true, [&](KvTierMatch found) { promise.set_value(std::move(found)); });
  const KvTierMatch found = promise.get_future().get();
  ASSERT_EQ(found.pages, 1);
  EXPECT_EQ(found.runs[0].tier, 2U);
  std::vector<uint8_t> into(2400);
  const auto pull = opened->tiers->pull(found, {{1, 2}}, {into.data()}, {});
  EXPECT_TRUE(pull->wait(0));
  EXPECT_TRUE(pull->wait(1));
  EXPECT_EQ(into, page);
}

TEST_F(OpenKvTiers, RefusesASecretThatOthersCanRead) {
  { ASSERT_TRUE(open_kv_tiers(config(), kShape, "model").has_value()); }
  const std::string secret = directory_ + "/store/secret";
  std::filesystem::permissions(secret, std::filesystem::perms::others_read, std::filesystem::perm_options::add);
  const auto opened = open_kv_tiers(config(), kShape, "model");
  ASSERT_FALSE(opened.has_value());
  EXPECT_NE(opened.error().message().find("chmod 600"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
