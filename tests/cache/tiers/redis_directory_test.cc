// A directory in a real Redis: what it knows, and that nothing depends on it.

#include "cache/tiers/redis_directory.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "cache/tiers/process.h"
#include "cache/tiers/redis_server.h"
#include "cache/tiers/shared_fixture.h"

namespace deepinfer {
namespace {

using namespace store_testing;

constexpr double kPatience = 60;

TEST(RedisUrl, EachPartIsReadAndThePasswordIsNeverShown) {
  const RedisUrl url = *parse_redis_url("redis://me:p%40ss@cache.example:7000/3");
  EXPECT_EQ(url.user, "me");
  EXPECT_EQ(url.password, "p@ss");
  EXPECT_EQ(url.host, "cache.example");
  EXPECT_EQ(url.port, 7000);
  EXPECT_EQ(url.database, 3);
  EXPECT_EQ(url.text(), "redis://cache.example:7000/3");
  EXPECT_EQ(parse_redis_url("redis://h")->port, 6379);
  EXPECT_EQ(parse_redis_url("redis://h/")->database, 0);
  EXPECT_EQ(parse_redis_url("redis://:secret@h")->password, "secret");
  EXPECT_EQ(parse_redis_url("redis://[::1]:7000")->host, "::1");
  EXPECT_EQ(parse_redis_url("redis://[::1]:7000")->text(), "redis://[::1]:7000/0");
  const RedisUrl socket = *parse_redis_url("unix://:secret@/run/redis.sock?db=2");
  EXPECT_EQ(socket.socket_path, "/run/redis.sock");
  EXPECT_EQ(socket.password, "secret");
  EXPECT_EQ(socket.database, 2);
  EXPECT_EQ(socket.text(), "unix:///run/redis.sock?db=2");
}

TEST(RedisUrl, WhatIsWrongIsNamedWithoutThePassword) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "redis://"},
      {"http://h", "redis://"},
      {"rediss://h", "TLS"},
      {"redis://", "no host"},
      {"redis://:1", "no host"},
      {"redis://u:hunter2@h:0", "port"},
      {"redis://u:hunter2@h:65536", "port"},
      {"redis://h:", "port"},
      {"redis://h:-1", "port"},
      {"redis://h:12x", "port"},
      {"redis://u:hunter2@h/x", "database"},
      {"redis://h/-1", "database"},
      {"redis://h/65536", "database"},
      {"redis://[::1", "]"},
      {"redis://[::1]7000", "]"},
      {"redis://u:hunter2%4@h", "%"},
      {"unix://", "path"},
      {"unix://relative", "path"},
      {"unix:///s?x=1", "db="},
      {"unix:///s?db=x", "database"},
  };
  for (const auto& [text, names] : cases) {
    const auto url = parse_redis_url(text);
    ASSERT_FALSE(url.has_value()) << text;
    EXPECT_NE(url.error().message().find(names), std::string::npos) << text << ": " << url.error().message();
    EXPECT_EQ(url.error().message().find("hunter2"), std::string::npos) << url.error().message();
  }
  EXPECT_FALSE(parse_redis_url("unix:///" + std::string(200, 'x')).has_value());
  EXPECT_FALSE(parse_redis_url("redis://" + std::string(300, 'x')).has_value());
}

class Redis : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = RedisServer::Start(redis_.path());
    if (server_ == nullptr) GTEST_SKIP() << "redis-server is not installed";
  }
  std::unique_ptr<SharedStore> open(const std::string& model = "model", double check_seconds = 1) {
    SharedStoreOptions options = shared_options(directory_.path());
    options.directory_url = server_->url();
    options.directory_lookup_seconds = 10;  // a busy machine is no fault
    options.match_check_seconds = check_seconds;
    auto store = open_shared(options, model);
    EXPECT_TRUE(store->page_directory()->flush(kPatience)) << store->page_directory()->stats().last_error;
    return store;
  }
  std::vector<PrefixKey> fill(SharedStore& store, uint64_t pages) {
    std::vector<PrefixKey> keys;
    for (uint64_t n = 1; n <= pages; ++n) {
      EXPECT_TRUE(put(store, n).ok());
      keys.push_back(key(n));
    }
    EXPECT_TRUE(store.page_directory()->flush(kPatience));
    return keys;
  }
  /// Waits until the directory's thread has seen what has become of the server.
  static void settle(const SharedStore& store) { EXPECT_TRUE(store.page_directory()->flush(kPatience)); }

  Directory directory_, redis_;
  std::unique_ptr<RedisServer> server_;
};

TEST_F(Redis, AnotherEngineFindsAllPagesInTwoLookups) {
  const auto one = open();
  std::vector<PrefixKey> keys = fill(*one, 300);
  EXPECT_EQ(server_->run({"DBSIZE"}), "300");
  const auto other = open();
  keys.push_back(key(1000));
  const KvStoreMatch match = other->match(keys, true, 1000, {});
  EXPECT_EQ(match.pages, 300);
  EXPECT_TRUE(match.exact);
  EXPECT_EQ(match.reason, KvStoreMiss::kNotStored);
  EXPECT_EQ(match.ttl_seconds, 86400);
  const RedisDirectoryStats stats = other->page_directory()->stats();
  EXPECT_EQ(stats.lookups, 1);
  EXPECT_EQ(stats.lookups_failed, 0);
  EXPECT_EQ(stats.updates, 0) << "nothing had to be looked for in the file system";
  const auto another_model = open("another model");
  EXPECT_EQ(another_model->match(keys, true, 1000, {}).pages, 0);
}

TEST_F(Redis, EntriesExpireWithTheirPagesAndFollowTheirUses) {
  const auto store = open();
  const std::vector<PrefixKey> keys = fill(*store, 3);
  EXPECT_EQ(store->match(keys, true, 1000 + 86400, {}).reason, KvStoreMiss::kExpired);
  ASSERT_TRUE(store->touch(keys, CacheClass::kAgent, 50000, {}).ok());
  settle(*store);
  EXPECT_EQ(store->match(keys, true, 60000, {}).ttl_seconds, 50000 + 3 * 86400 - 60000);
  ASSERT_TRUE(store->erase({&keys[1], 1}, {}).ok());
  settle(*store);
  EXPECT_EQ(store->match(keys, true, 50000, {}).pages, 1);
}

TEST_F(Redis, ItMayBeDownAtFirstAndComeLater) {
  server_->kill();
  SharedStoreOptions options = shared_options(directory_.path());
  options.directory_url = server_->url();
  options.directory_lookup_seconds = 10;
  const auto store = open_shared(options);
  std::vector<PrefixKey> keys;
  for (uint64_t n = 1; n <= 50; ++n) {
    ASSERT_TRUE(put(*store, n).ok());
    keys.push_back(key(n));
  }
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 50);
  EXPECT_GT(store->page_directory()->stats().lookups_failed, 0);
  EXPECT_FALSE(store->page_directory()->stats().connected);
  server_->start();
  settle(*store);
  const int64_t failed = store->page_directory()->stats().lookups_failed;
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 50);
  EXPECT_EQ(store->page_directory()->stats().lookups_failed, failed);
}

TEST_F(Redis, KilledOrEmptiedItIsMissedByNobodyAndFillsAgain) {
  const auto store = open();
  std::vector<PrefixKey> keys = fill(*store, 100);
  server_->kill();
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 100);
  EXPECT_EQ(get(*store, 77), KvStoreMiss::kNone);
  ASSERT_TRUE(put(*store, 101).ok());
  keys.push_back(key(101));
  server_->start();
  settle(*store);
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 101);
  settle(*store);  // what was found in the file system is known again
  server_->run({"FLUSHALL"});
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 101);
  settle(*store);
  const int64_t updates = store->page_directory()->stats().updates;
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 101);
  settle(*store);
  EXPECT_EQ(store->page_directory()->stats().updates, updates) << "the second match found everything in Redis";
}

TEST_F(Redis, OneThatHangsCostsALookupItsLimitAndNothingAfterThat) {
  SharedStoreOptions options = shared_options(directory_.path());
  options.directory_url = server_->url();
  options.directory_lookup_seconds = 0.05;
  const auto store = open_shared(options);
  settle(*store);
  const std::vector<PrefixKey> keys = fill(*store, 60);
  server_->pause();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 60);
  for (uint64_t n = 1; n <= 60; ++n) EXPECT_EQ(get(*store, n), KvStoreMiss::kNone);
  EXPECT_TRUE(put(*store, 61).ok());
  EXPECT_FALSE(store->page_directory()->stats().connected);
  EXPECT_EQ(store->page_directory()->stats().lookups_failed, 5);
  server_->resume();
  settle(*store);
  EXPECT_TRUE(store->page_directory()->stats().connected);
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 60);
}

TEST_F(Redis, GarbageInItIsRefusedAndReplaced) {
  const auto store = open();
  const std::vector<PrefixKey> keys = fill(*store, 40);
  // All of its keys, and one good value that is put where it doesn't belong.
  auto connection = std::move(*RedisConnection::Open(*parse_redis_url(server_->url()), steady_seconds() + kPatience, {}));
  RedisCommands list;
  list.add({"KEYS", "*"});
  std::vector<std::string> names;
  ASSERT_TRUE(connection
                  ->run(list,
                        [&](size_t, const RedisReply& reply) {
                          for (size_t i = 0; i < reply.size(); ++i) names.emplace_back(reply.at(i).text);
                        },
                        steady_seconds() + kPatience, {})
                  .ok());
  ASSERT_EQ(names.size(), 40U);
  const std::string good = server_->run({"GET", names[0]});
  ASSERT_EQ(good.size(), 16U);
  std::mt19937 random(3);
  for (size_t i = 1; i < names.size(); ++i) {
    std::string value = good;
    if (i % 6 == 1) value.clear();
    if (i % 6 == 2) value = "KV1";
    if (i % 6 == 3) value.resize(1 << 16);
    if (i % 6 == 4) value[random() % 16] = static_cast<char>(value[random() % 16] ^ 0x10);
    if (i % 6 == 5) {
      server_->run({"DEL", names[i]});
      server_->run({"RPUSH", names[i], "no", "string"});
    } else {
      server_->run({"SET", names[i], value});
    }
  }
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 40);
  EXPECT_GT(store->page_directory()->stats().entries_refused, 0);
  for (uint64_t n = 1; n <= 40; ++n) EXPECT_EQ(get(*store, n), KvStoreMiss::kNone);
  settle(*store);
  const int64_t refused = store->page_directory()->stats().entries_refused;
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 40);
  EXPECT_EQ(store->page_directory()->stats().entries_refused, refused) << "good values are back";
}

TEST_F(Redis, WhatItWronglyPromisesIsAMissAndIsPutRight) {
  const auto store = open();
  const std::vector<PrefixKey> keys = fill(*store, 60);
  // The last ones are gone: the match looks for one page and then trusts only the files.
  for (uint64_t n = 41; n <= 60; ++n) std::filesystem::remove(path_of(directory_.path(), n));
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 40);
  // One in the middle is gone: it is promised once, and the read says that it isn't there.
  const std::vector<PrefixKey> first(keys.begin(), keys.begin() + 40);
  std::filesystem::remove(path_of(directory_.path(), 7));
  EXPECT_EQ(store->match(first, true, 1000, {}).pages, 40);
  EXPECT_EQ(get(*store, 7), KvStoreMiss::kNotStored);
  settle(*store);
  EXPECT_EQ(store->match(first, true, 1000, {}).pages, 6);
  ASSERT_TRUE(put(*store, 7).ok());
  settle(*store);
  EXPECT_EQ(store->match(first, true, 1000, {}).pages, 40);
  // Damaged on the disk: the same.
  std::filesystem::resize_file(path_of(directory_.path(), 9), 100);
  EXPECT_EQ(get(*store, 9), KvStoreMiss::kCorrupt);
  EXPECT_EQ(store->match(first, true, 1000, {}).pages, 8);
}

TEST_F(Redis, PagesThatAreEvictedAreForgotten) {
  SharedStoreOptions options = shared_options(directory_.path());
  options.directory_url = server_->url();
  options.directory_lookup_seconds = 10;
  options.gc.capacity_bytes = 10 * record_bytes(kShape);
  const auto store = open_shared(options);
  settle(*store);
  fill(*store, 40);
  const auto collected = store->collect_garbage(1000, {});
  ASSERT_TRUE(collected.has_value());
  settle(*store);
  int64_t known = 0;
  for (uint64_t n = 1; n <= 40; ++n) {
    const PrefixKey one = key(n);
    const auto entries = store->page_directory()->look_up(kv_fingerprint("model", kShape), {&one, 1}, {});
    ASSERT_EQ(entries.size(), 1U);
    known += entries[0].known;
  }
  EXPECT_EQ(known, collected->kept.pages);
}

/// The same when it isn't an engine that collects.
TEST_F(Redis, WhatAKeeperEvictsIsForgottenToo) {
  const auto store = open();
  const double now = wall_seconds();
  for (uint64_t n = 1; n <= 40; ++n) ASSERT_TRUE(put(*store, n, now).ok());
  settle(*store);
  ASSERT_EQ(server_->run({"DBSIZE"}), "40");
  const StoreAdminOptions options{.directory = directory_.path(),
                                  .capacity_bytes = 10 * record_bytes(kShape),
                                  .retention = {},
                                  .directory_url = server_->url()};
  const auto collected = (*open_store_admin(options))->gc(now, {});
  ASSERT_TRUE(collected.has_value()) << collected.error().message();
  EXPECT_GT(collected->evicted.pages, 20);
  EXPECT_EQ(collected->entries_removed, collected->evicted.pages);
  EXPECT_EQ(collected->entries_left, 0);
  EXPECT_EQ(server_->run({"DBSIZE"}), std::to_string(collected->kept.pages));

  // One that doesn't answer is said before anything is removed.
  server_->kill();
  StoreAdminOptions smaller = options;
  smaller.capacity_bytes = 5 * record_bytes(kShape);
  const auto refused = (*open_store_admin(smaller))->gc(now, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.error().message().find("redis.sock"), std::string::npos) << refused.error().message();
  EXPECT_EQ(open_shared_admin(directory_.path())->verify(false, {})->checked.pages, collected->kept.pages);
}

constexpr int kEngineRounds = 300;

/// Writes, looks up and reads with a Redis that comes and goes, and collects garbage now and then.
const ProcessRole kEngine("redis-engine", [](const std::vector<std::string>& arguments) {
  SharedStoreOptions options = shared_options(arguments[0]);
  options.directory_url = arguments[1];
  options.gc.capacity_bytes = 40 * record_bytes(kShape);
  const uint64_t seed = std::stoull(arguments[2]);
  const auto store = open_shared(options);
  std::mt19937_64 random(seed);
  for (int i = 0; i < kEngineRounds; ++i) {
    const uint64_t n = 1 + random() % 80;
    if (!put(*store, n, 1000 + i).ok()) return 2;
    std::vector<PrefixKey> keys;
    for (uint64_t k = n; k < n + 10; ++k) keys.push_back(key(k));
    const KvStoreMatch match = store->match(keys, true, 1000 + i, {});
    for (int64_t k = 0; k < match.pages; ++k) {
      const KvStoreMiss miss = get(*store, n + static_cast<uint64_t>(k), 1000 + i);  // fails by itself if bytes are wrong
      if (miss != KvStoreMiss::kNone && miss != KvStoreMiss::kNotStored) return 3;
    }
    if (::testing::Test::HasFailure()) return 4;
    if (i % 50 == 49 && !store->collect_garbage(1000 + i, {}).has_value()) return 5;
    if (i % 10 == 0 && ::write(kProcessOutput, "x", 1) != 1) return 6;
  }
  return 0;
});

TEST_F(Redis, TwoEnginesGoOnWhileItIsKilledStoppedAndEmptied) {
  int outputs[2] = {-1, -1};
  pid_t engines[2] = {-1, -1};
  for (size_t i = 0; i < 2; ++i) {
    engines[i] = start_process("redis-engine", {directory_.path(), server_->url(), std::to_string(i)}, &outputs[i]);
  }
  // A fault for each of the first engine's signs of life.
  char byte = 0;
  for (int fault = 0; ::read(outputs[0], &byte, 1) == 1; ++fault) {
    switch (fault % 5) {
      case 0:
        server_->kill();
        break;
      case 1:
        server_->start();
        break;
      case 2:
        server_->run({"FLUSHALL"});
        break;
      case 3:
        server_->pause();
        break;
      default:
        server_->resume();
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(wait_for_process(engines[i]), 0);
    ::close(outputs[i]);
  }
  const auto checked = open_shared_admin(directory_.path())->verify(false, {});
  ASSERT_TRUE(checked.has_value());
  EXPECT_EQ(checked->checked.pages, checked->by_reason[0].pages);
}

TEST_F(Redis, PasswordAndDatabaseAreUsedAndAWrongOneIsOnlyAnOutage) {
  const Directory other;
  const auto server = RedisServer::Start(other.path(), {"--requirepass", "hunter2"});
  const auto open_with = [&](const std::string& url) {
    SharedStoreOptions options = shared_options(directory_.path());
    options.directory_url = url;
    options.directory_lookup_seconds = 10;
    return open_shared(options);
  };
  const auto right = open_with("unix://:hunter2@" + other.path() + "/redis.sock?db=3");
  EXPECT_TRUE(right->page_directory()->flush(kPatience)) << right->page_directory()->stats().last_error;
  const std::vector<PrefixKey> keys = fill(*right, 5);
  const auto wrong = open_with("unix://:hunter3@" + other.path() + "/redis.sock");
  EXPECT_EQ(wrong->match(keys, true, 1000, {}).pages, 5);
  for (double deadline = steady_seconds() + kPatience;
       wrong->page_directory()->stats().last_error.empty() && steady_seconds() < deadline;) {
    std::this_thread::yield();
  }
  const std::string error = wrong->page_directory()->stats().last_error;
  EXPECT_NE(error.find("refused"), std::string::npos) << error;
  EXPECT_EQ(error.find("hunter3"), std::string::npos) << error;
  EXPECT_FALSE(wrong->page_directory()->stats().connected);
}

TEST_F(Redis, OneWithoutMemoryLeavesEntriesOutAndNothingElse) {
  const Directory other;
  const auto server = RedisServer::Start(other.path(), {"--maxmemory", "1"});
  SharedStoreOptions options = shared_options(directory_.path());
  options.directory_url = server->url();
  const auto store = open_shared(options);
  const std::vector<PrefixKey> keys = fill(*store, 20);
  EXPECT_GT(store->page_directory()->stats().updates_dropped, 0);
  EXPECT_NE(store->page_directory()->stats().last_error.find("OOM"), std::string::npos);
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 20);
  EXPECT_EQ(server->run({"DBSIZE"}), "0");
  // With room again it learns what is found, and what is written.
  server->run({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(store->match(keys, true, 1000, {}).pages, 20);
  ASSERT_TRUE(put(*store, 21).ok());
  EXPECT_TRUE(store->page_directory()->flush(kPatience));
  EXPECT_EQ(server->run({"DBSIZE"}), "21");
}

/// Listens on a port of the loopback and answers everything with `reply`, for a peer that is no Redis at all.
class Stranger {
 public:
  explicit Stranger(std::string reply) : reply_(std::move(reply)), socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 4), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int peer = -1; (peer = ::accept(socket_, nullptr, nullptr)) >= 0; ::close(peer)) {
        char byte = 0;
        if (::recv(peer, &byte, 1, 0) != 1) continue;
        while (::send(peer, reply_.data(), reply_.size(), MSG_NOSIGNAL) > 0 && endless_) {
        }
        // Until the peer has had enough.
        while (::recv(peer, &byte, 1, 0) == 1) {
        }
      }
    });
  }
  ~Stranger() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  RedisUrl url() const { return {.host = "127.0.0.1", .port = port_}; }
  void make_endless() { endless_ = true; }

 private:
  const std::string reply_;
  const int socket_;
  uint16_t port_ = 0;
  std::atomic<bool> endless_{false};
  std::thread thread_;
};

TEST(RedisConnection, AStrangersAnswersEndItAndTakeNoMemory) {
  for (const std::string& reply : {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("*2000000000\r\n"),
                                   std::string("*-5\r\n"), std::string("*1\r\n*1\r\n*1\r\n+x\r\n"), std::string("$-7\r\n"),
                                   std::string("+PONG\r\n+PONG\r\n"), std::string("\0\0\0\0", 4), std::string(":12x\r\n")}) {
    Stranger stranger(reply);
    const auto connection = RedisConnection::Open(stranger.url(), steady_seconds() + kPatience, {});
    EXPECT_FALSE(connection.has_value()) << reply;
    EXPECT_NE(connection.error().message().find("127.0.0.1"), std::string::npos);
  }
  Stranger flood("$500000000\r\n" + std::string(1 << 20, 'x'));
  flood.make_endless();
  const auto connection = RedisConnection::Open(flood.url(), steady_seconds() + kPatience, {});
  ASSERT_FALSE(connection.has_value());
  EXPECT_NE(connection.error().message().find("bytes of replies"), std::string::npos) << connection.error().message();
}

TEST(RedisConnection, SilenceEndsAtTheDeadlineAndCancellingAtOnce) {
  Stranger silent("");
  const auto late = RedisConnection::Open(silent.url(), steady_seconds() + 0.05, {});
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), StatusCode::kUnavailable);
  std::stop_source stop;
  stop.request_stop();
  const auto cancelled = RedisConnection::Open(silent.url(), steady_seconds() + 1e6, stop.get_token());
  ASSERT_FALSE(cancelled.has_value());
  EXPECT_EQ(cancelled.error().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace deepinfer
