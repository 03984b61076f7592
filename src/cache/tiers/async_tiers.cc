#include "cache/tiers/async_tiers.h"

#include "cache/tiers/tier_lookup.h"
#include "cache/tiers/tier_reader.h"
#include "cache/tiers/tier_writer.h"
#include "cache/tiers/tiers_core.h"

namespace deepinfer {
namespace {

class AsyncTiers : public KvTiers {
 public:
  explicit AsyncTiers(const std::shared_ptr<TiersCore>& core)
      : core_(core), writer_(std::make_shared<TierWriter>(core)), reader_(core, writer_), lookup_(core) {}
  ~AsyncTiers() override { core_->stop.request_stop(); }

  std::vector<std::string_view> tier_names() const override {
    std::vector<std::string_view> names;
    for (const auto& tier : core_->tiers) names.push_back(tier->store->tier());
    return names;
  }
  const KvPageShape& shape() const override { return core_->shape; }
  void match(std::vector<PrefixKey> keys, bool exact_only, std::function<void(KvTierMatch)> done) override {
    lookup_.start(std::move(keys), exact_only, std::move(done));
  }
  std::unique_ptr<KvPull> pull(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
                               const KvPullTerms& terms) override {
    return reader_.start(match, std::move(keys), std::move(pages), terms);
  }
  double pull_seconds(const KvTierMatch& match) const override { return reader_.estimate(match); }
  void probe(const KvTierMatch& match, std::span<const PrefixKey> keys) override { reader_.probe(match, keys); }
  bool writes(CacheClass cache_class) const override { return core_->options.writes_class[static_cast<size_t>(cache_class)]; }
  int64_t write_back(const KvStoreWrite& page) override {
    writer_->push(page);
    return 0;
  }
  void touch(std::span<const PrefixKey> keys, CacheClass cache_class) override { writer_->touch_all(keys, cache_class); }
  void flush() override { writer_->flush(); }
  KvTiersStats stats() const override {
    KvTiersStats stats;
    {
      const std::lock_guard lock(core_->mutex);
      stats = core_->stats;
    }
    for (const auto& tier : core_->tiers) {
      const std::lock_guard lock(tier->mutex);
      const bool available = tier->usable(core_->options.write_seconds);
      stats.tiers.push_back(tier->stats);
      stats.tiers.back().name = tier->store->tier();
      stats.tiers.back().pages = tier->store->pages();
      stats.tiers.back().available = available;
    }
    stats.pages_queued = writer_->queued_pages();
    return stats;
  }

 private:
  std::shared_ptr<TiersCore> core_;
  // Lookups end first: whoever waits for one must hear of it before the other threads are waited for.
  std::shared_ptr<TierWriter> writer_;
  TierReader reader_;
  TierLookup lookup_;
};

}  // namespace

Status AsyncTiersOptions::validate() const {
  // Written so that a NaN is refused.
  if (!(match_seconds > 0 && match_seconds <= 60))
    return Status::OutOfRange("match_seconds: {}, must be above 0, at most 60", match_seconds);
  if (!(pull_seconds > 0 && pull_seconds <= 3600))
    return Status::OutOfRange("pull_seconds: {}, must be above 0, at most 3600", pull_seconds);
  if (!(write_seconds > 0 && write_seconds <= 3600))
    return Status::OutOfRange("write_seconds: {}, must be above 0, at most 3600", write_seconds);
  if (read_threads < 1 || read_threads > 256) return Status::OutOfRange("read_threads: {}, must be from 1 to 256", read_threads);
  if (write_queue_bytes < 0) return Status::OutOfRange("write_queue_bytes: {}, must be at least 0", write_queue_bytes);
  if (!(write_bytes_per_second > 0))
    return Status::OutOfRange("write_bytes_per_second: {}, must be above 0", write_bytes_per_second);
  return Status::Ok();
}

Result<std::unique_ptr<KvTiers>> make_async_tiers(const KvPageShape& shape, std::vector<std::shared_ptr<KvStore>> stores,
                                                  const AsyncTiersOptions& options) {
  DI_RETURN_IF_ERROR(options.validate());
  auto core = std::make_shared<TiersCore>();
  core->shape = shape;
  core->options = options;
  for (std::shared_ptr<KvStore>& store : stores) {
    auto tier = std::make_unique<TierState>();
    tier->in_memory = store->tier() == "host";
    tier->store = std::move(store);
    core->tiers.push_back(std::move(tier));
  }
  return std::unique_ptr<KvTiers>(std::make_unique<AsyncTiers>(std::move(core)));
}

}  // namespace deepinfer
