#include "cache/tiers/redis_directory.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "cache/tiers/kv_retention.h"
#include "cache/tiers/redis_connection.h"

namespace deepinfer {
namespace {

constexpr std::string_view kPrefix = "kv1:";
constexpr size_t kFingerprintBytes = 8;
constexpr size_t kKeyBytes = kPrefix.size() + kFingerprintBytes + sizeof(PrefixKey);
constexpr size_t kValueBytes = 16;
constexpr std::array<char, 3> kMagic = {'K', 'V', '1'};

std::string entry_key(const KvFingerprint& fingerprint, const PrefixKey& key) {
  std::string text;
  text.reserve(kKeyBytes);
  text.append(kPrefix);
  text.append(reinterpret_cast<const char*>(fingerprint.data()), kFingerprintBytes);
  for (const uint64_t half : {key.high, key.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) text.push_back(static_cast<char>(half >> shift));
  }
  return text;
}

// A value: magic[3] "KV1", u8 exact, i64 seconds (the file's mtime: expiry and class), u32 of XXH3 of all before, seeded with
// that of the key. Little-endian.

uint32_t value_checksum(std::string_view key, std::string_view value) {
  const uint64_t seed = XXH3_64bits(key.data(), key.size());
  return static_cast<uint32_t>(XXH3_64bits_withSeed(value.data(), value.size(), seed));
}

std::string entry_value(std::string_view key, const DirectoryEntry& entry) {
  std::string value(kMagic.begin(), kMagic.end());
  value.push_back(entry.exact ? '\1' : '\0');
  const int64_t seconds = to_file_time(entry.time).tv_sec;
  value.append(reinterpret_cast<const char*>(&seconds), sizeof(seconds));
  const uint32_t checksum = value_checksum(key, value);
  return value.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
}

/// Nothing if it is no value of ours for that key.
std::optional<DirectoryEntry> parse_value(std::string_view key, std::string_view value) {
  if (value.size() != kValueBytes || !std::equal(kMagic.begin(), kMagic.end(), value.begin())) return std::nullopt;
  uint32_t checksum = 0;
  std::memcpy(&checksum, value.data() + kValueBytes - sizeof(checksum), sizeof(checksum));
  if (checksum != value_checksum(key, value.substr(0, kValueBytes - sizeof(checksum)))) return std::nullopt;
  int64_t seconds = 0;
  std::memcpy(&seconds, value.data() + kMagic.size() + 1, sizeof(seconds));
  return DirectoryEntry{
      .known = true, .exact = value[kMagic.size()] == '\1', .time = to_page_time({.tv_sec = seconds, .tv_nsec = 0})};
}

struct Update {
  std::string key;
  std::string value;        ///< empty: the key goes
  std::string ttl_seconds;  ///< relative, so that Redis's clock doesn't matter
};

}  // namespace

Status RedisDirectoryOptions::validate() const {
  // Written so that a NaN is refused.
  if (!(lookup_seconds > 0 && lookup_seconds <= 60))
    return Status::OutOfRange("lookup_seconds: {}, must be above 0, at most 60", lookup_seconds);
  if (!(update_seconds > 0 && update_seconds <= 60))
    return Status::OutOfRange("update_seconds: {}, must be above 0, at most 60", update_seconds);
  if (!(longest_backoff_seconds > 0 && longest_backoff_seconds <= 3600))
    return Status::OutOfRange("longest_backoff_seconds: {}, must be above 0, at most 3600", longest_backoff_seconds);
  if (queued_updates < 1) return Status::OutOfRange("queued_updates: {}, must be at least 1", queued_updates);
  return Status::Ok();
}

struct RedisDirectory::State {
  const RedisDirectoryOptions options;
  std::stop_source stop;
  mutable std::mutex mutex;  ///< of everything below
  std::condition_variable changed;
  std::unique_ptr<RedisConnection> lookups;  ///< absent: not connected, or in use
  bool connected = false;
  double backoff = 0;  ///< before the next attempt, seconds
  std::deque<Update> updates;
  bool updating = false;
  RedisDirectoryStats stats;

  explicit State(const RedisDirectoryOptions& o) : options(o) {}

  // With the lock held.
  void lost(const Status& status);
  void queue(Update update);

  void run();
  bool connect(std::unique_ptr<RedisConnection>& connection);
  Status send(RedisConnection& connection, const std::vector<Update>& batch);
  Status ask(RedisConnection& connection, const KvFingerprint& fingerprint, std::span<const PrefixKey> keys,
             std::vector<DirectoryEntry>& entries, int64_t& refused, double deadline, const std::stop_token& cancelled) const;
};

void RedisDirectory::State::lost(const Status& status) {
  connected = false;
  lookups.reset();
  stats.last_error = status.message();
  changed.notify_all();
}

void RedisDirectory::State::queue(Update update) {
  if (static_cast<int64_t>(updates.size()) >= options.queued_updates) {
    ++stats.updates_dropped;
    return;
  }
  updates.push_back(std::move(update));
  changed.notify_all();
}

/// Connects twice, for lookups and for updates.
bool RedisDirectory::State::connect(std::unique_ptr<RedisConnection>& connection) {
  const double deadline = steady_seconds() + options.update_seconds;
  auto mine = RedisConnection::Open(options.url, deadline, stop.get_token());
  auto for_lookups = mine ? RedisConnection::Open(options.url, deadline, stop.get_token()) : Err(mine.error());
  const std::lock_guard lock(mutex);
  if (!for_lookups) {
    stats.last_error = for_lookups.error().message();
    return false;
  }
  connection = *std::move(mine);
  lookups = *std::move(for_lookups);
  connected = true;
  changed.notify_all();
  return true;
}

Status RedisDirectory::State::send(RedisConnection& connection, const std::vector<Update>& batch) {
  RedisCommands commands;
  for (const Update& update : batch) {
    if (update.value.empty()) {
      commands.add({"DEL", update.key});
    } else {
      commands.add({"SET", update.key, update.value, "EX", update.ttl_seconds});
    }
  }
  int64_t confirmed = 0;
  Status refused;  // such as "OOM command not allowed": the connection is all right
  Status status = connection.run(
      commands,
      [&](size_t, const RedisReply& reply) {
        if (reply.kind != RedisReply::Kind::kError) {
          ++confirmed;
        } else if (refused.ok()) {
          refused = Status::Unavailable("{}: {}", options.url.text(), reply.text().substr(0, 200));
        }
      },
      steady_seconds() + options.update_seconds, stop.get_token());
  const std::lock_guard lock(mutex);
  stats.updates += confirmed;
  stats.updates_dropped += static_cast<int64_t>(batch.size()) - confirmed;
  if (!refused.ok()) stats.last_error = refused.message();
  return status;
}

void RedisDirectory::State::run() {
  constexpr double kShortestBackoff = 0.1;
  constexpr size_t kBatch = 512;
  std::unique_ptr<RedisConnection> connection;
  std::unique_lock lock(mutex);
  while (!stop.stop_requested()) {
    if (!connected) {
      connection.reset();
      const double pause = std::exchange(backoff, std::clamp(backoff * 2, kShortestBackoff, options.longest_backoff_seconds));
      changed.wait_for(lock, std::chrono::duration<double>(pause), [this] { return stop.stop_requested(); });
      if (stop.stop_requested()) break;
      lock.unlock();
      connect(connection);
      lock.lock();
      continue;
    }
    changed.wait(lock, [this] { return stop.stop_requested() || !connected || !updates.empty(); });
    if (stop.stop_requested() || !connected) continue;
    const size_t count = std::min(kBatch, updates.size());
    const std::vector<Update> batch(std::make_move_iterator(updates.begin()),
                                    std::make_move_iterator(updates.begin() + static_cast<std::ptrdiff_t>(count)));
    updates.erase(updates.begin(), updates.begin() + static_cast<std::ptrdiff_t>(count));
    updating = true;
    lock.unlock();
    const Status status = send(*connection, batch);
    lock.lock();
    updating = false;
    if (!status.ok()) lost(status);
    changed.notify_all();
  }
}

RedisDirectory::RedisDirectory(std::shared_ptr<State> state) : state_(std::move(state)), thread_(1) {
  thread_.post([s = state_] { s->run(); });
}

RedisDirectory::~RedisDirectory() {
  const std::lock_guard lock(state_->mutex);
  state_->stop.request_stop();
  state_->changed.notify_all();
}

Result<std::unique_ptr<RedisDirectory>> RedisDirectory::Open(const RedisDirectoryOptions& options) {
  DI_RETURN_IF_ERROR(options.validate());
  return std::unique_ptr<RedisDirectory>(new RedisDirectory(std::make_shared<State>(options)));
}

/// Appends the entries of the keys. In commands of some hundred keys each: while Redis is at the next one, this reads the last.
Status RedisDirectory::State::ask(RedisConnection& connection, const KvFingerprint& fingerprint, std::span<const PrefixKey> keys,
                                  std::vector<DirectoryEntry>& entries, int64_t& refused, double deadline,
                                  const std::stop_token& cancelled) const {
  constexpr size_t kBatch = 512;
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const PrefixKey& key : keys) names.push_back(entry_key(fingerprint, key));
  RedisCommands commands;
  for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
    std::vector<std::string_view> words = {"MGET"};
    words.insert(words.end(), names.begin() + static_cast<std::ptrdiff_t>(begin),
                 names.begin() + static_cast<std::ptrdiff_t>(std::min(begin + kBatch, keys.size())));
    commands.add(words);
  }
  std::string wrong;
  Status status = connection.run(
      commands,
      [&](size_t command, const RedisReply& reply) {
        const size_t begin = command * kBatch;
        const size_t count = std::min(kBatch, keys.size() - begin);
        if (reply.size() != count) wrong = reply.kind == RedisReply::Kind::kError ? reply.text().substr(0, 200) : "another reply";
        for (size_t i = 0; i < count && wrong.empty(); ++i) {
          const RedisReply::Element element = reply.at(i);
          const std::optional<DirectoryEntry> entry =
              element.nil ? DirectoryEntry{} : parse_value(names[begin + i], element.text);
          refused += !entry.has_value();
          entries.push_back(entry.value_or(DirectoryEntry{}));
        }
      },
      deadline, cancelled);
  if (status.ok() && !wrong.empty()) return Status::DataLoss("{}: MGET: {}", options.url.text(), wrong);
  return status;
}

std::vector<DirectoryEntry> RedisDirectory::look_up(const KvFingerprint& fingerprint, std::span<const PrefixKey> keys,
                                                    const std::stop_token& stop) {
  std::vector<DirectoryEntry> entries;
  std::unique_ptr<RedisConnection> connection;
  {
    const std::lock_guard lock(state_->mutex);
    connection = std::move(state_->lookups);
    ++state_->stats.lookups;
    if (connection == nullptr) {
      ++state_->stats.lookups_failed;
      return entries;
    }
  }
  // Most prompts are new or short: a few keys first, and all others only if those are known.
  constexpr size_t kFirst = 32;
  const double deadline = steady_seconds() + state_->options.lookup_seconds;
  int64_t refused = 0;
  Status status =
      state_->ask(*connection, fingerprint, keys.first(std::min(kFirst, keys.size())), entries, refused, deadline, stop);
  const auto known = [](const DirectoryEntry& entry) { return entry.known; };
  if (status.ok() && keys.size() > kFirst && std::all_of(entries.begin(), entries.end(), known)) {
    status = state_->ask(*connection, fingerprint, keys.subspan(kFirst), entries, refused, deadline, stop);
  }
  const std::lock_guard lock(state_->mutex);
  state_->stats.entries_refused += refused;
  if (status.ok()) {
    state_->lookups = std::move(connection);
    state_->backoff = 0;  // not after updates, which have more time: they may go on while every lookup fails
    return entries;
  }
  ++state_->stats.lookups_failed;
  state_->lost(status);
  return {};
}

void RedisDirectory::put(const KvFingerprint& fingerprint, const PrefixKey& key, const DirectoryEntry& entry, double now) {
  const double ttl = std::floor(entry.time.expiry - now);
  if (!(ttl >= 1)) return;
  const std::string name = entry_key(fingerprint, key);
  Update update{.key = name,
                .value = entry_value(name, entry),
                .ttl_seconds = std::to_string(static_cast<int64_t>(std::min(ttl, kMaxKvTtlSeconds)))};
  const std::lock_guard lock(state_->mutex);
  state_->queue(std::move(update));
}

void RedisDirectory::remove(const KvFingerprint& fingerprint, const PrefixKey& key) {
  Update update{.key = entry_key(fingerprint, key), .value = {}, .ttl_seconds = {}};
  const std::lock_guard lock(state_->mutex);
  state_->queue(std::move(update));
}

RedisDirectoryStats RedisDirectory::stats() const {
  const std::lock_guard lock(state_->mutex);
  RedisDirectoryStats stats = state_->stats;
  stats.connected = state_->connected;
  return stats;
}

bool RedisDirectory::flush(double seconds) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                  [this] { return state_->connected && state_->updates.empty() && !state_->updating; });
}

}  // namespace deepinfer
