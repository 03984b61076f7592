#include "cache/tiers/device_tiers.h"

#include <utility>

#include "cache/tiers/device_pull.h"
#include "cache/tiers/device_writer.h"
#include "cache/tiers/tier_workers.h"

namespace deepinfer {
namespace {

class Pull final : public KvPull {
 public:
  explicit Pull(std::shared_ptr<DevicePull> pull) : pull_(std::move(pull)) {}
  ~Pull() override {
    pull_->cancel();
    pull_->wait_done();
  }
  bool wait(int64_t group) override { return pull_->wait(group); }
  bool done() const override { return pull_->done(); }
  void cancel() override { pull_->cancel(); }
  const Result& result() const override { return pull_->result(); }

 private:
  std::shared_ptr<DevicePull> pull_;
};

class TiersOfDevice final : public KvTiers {
 public:
  TiersOfDevice(DevicePull::Places places, std::shared_ptr<StagingPages> writes, int64_t threads)
      : places_(std::move(places)),
        below_(places_.below),
        writer_(below_, places_.copies, std::move(writes)),
        threads_(threads) {}

  std::vector<std::string_view> tier_names() const override { return below_->tier_names(); }
  const KvPageShape& shape() const override { return below_->shape(); }
  void match(std::vector<PrefixKey> keys, bool exact_only, std::function<void(KvTierMatch)> done) override {
    below_->match(std::move(keys), exact_only, std::move(done));
  }
  std::unique_ptr<KvPull> pull(const KvTierMatch& match, std::vector<PrefixKey> keys, std::vector<uint8_t*> pages,
                               const KvPullTerms& terms) override {
    auto pull =
        std::make_shared<DevicePull>(places_, match, std::move(keys), std::move(pages), terms, places_.copies->last_fence());
    ++places_.counts->pulls;
    threads_.post([pull] { pull->run(); });
    return std::make_unique<Pull>(std::move(pull));
  }
  double pull_seconds(const KvTierMatch& match) const override { return below_->pull_seconds(match); }
  void probe(const KvTierMatch& match, std::span<const PrefixKey> keys) override { below_->probe(match, keys); }
  bool writes(CacheClass cache_class) const override { return below_->writes(cache_class); }
  int64_t write_back(const KvStoreWrite& page) override { return writer_.push(page); }
  int64_t copied() const override { return writer_.copied(); }
  void touch(std::span<const PrefixKey> keys, CacheClass cache_class) override { below_->touch(keys, cache_class); }
  void flush() override {
    writer_.flush();
    below_->flush();
  }
  KvTiersStats stats() const override {
    const int64_t queued = writer_.queued();  // some of them may be below meanwhile, and are counted twice rather than not at all
    const int64_t dropped = writer_.dropped();
    KvTiersStats stats = below_->stats();
    stats.pages_queued += queued;
    stats.pages_retained += queued + dropped;
    for (KvTierStats& tier : stats.tiers) tier.pages_dropped += dropped;
    // Below there may be several for one, or none.
    const DevicePull::Counts& counts = *places_.counts;
    stats.pulls = counts.pulls;
    stats.pulls_failed = counts.failed;
    if (places_.host != nullptr) {
      KvTierStats& host = stats.tiers.front();
      host.pages_read += counts.lent_pages;
      host.bytes_read += counts.lent_pages * shape().page_bytes();
      for (size_t miss = 0; miss < kKvStoreMissCount; ++miss) host.read_misses[miss] += counts.lent_misses[miss];
    }
    return stats;
  }

 private:
  const DevicePull::Places places_;
  const std::shared_ptr<KvTiers> below_;
  DeviceWriter writer_;
  TierWorkers threads_;
};

}  // namespace

Status DeviceTiersOptions::validate(const KvPageShape& shape) const {
  const int64_t page = shape.page_bytes();
  if (pull_bytes < page) return Status::OutOfRange("pull_bytes: {}, must hold a page of {} bytes", pull_bytes, page);
  if (write_bytes < page) return Status::OutOfRange("write_bytes: {}, must hold a page of {} bytes", write_bytes, page);
  if (most_pages < 1) return Status::OutOfRange("most_pages: {}, must be at least 1", most_pages);
  if (pull_threads < 1 || pull_threads > 256) return Status::OutOfRange("pull_threads: {}, must be from 1 to 256", pull_threads);
  return Status::Ok();
}

Result<DeviceTiers> make_device_tiers(std::shared_ptr<KvTiers> below, PageCopies* copies, const DeviceTiersOptions& options,
                                      std::shared_ptr<HostPool> host) {
  const KvPageShape& shape = below->shape();
  DI_RETURN_IF_ERROR(options.validate(shape));
  const int64_t page = shape.page_bytes();
  DI_ASSIGN_OR_RETURN(std::shared_ptr<StagingPages> pulls,
                      StagingPages::Create(copies, page, options.pull_bytes, options.most_pages));
  DI_ASSIGN_OR_RETURN(std::shared_ptr<StagingPages> writes,
                      StagingPages::Create(copies, page, options.write_bytes, options.most_pages));
  copies->fence();  // behind what made the pages
  DeviceTiers out;
  out.pinned_bytes = pulls->bytes() + writes->bytes();
  DevicePull::Places places{.below = std::move(below),
                            .host = std::move(host),
                            .copies = copies,
                            .staging = std::move(pulls),
                            .counts = std::make_shared<DevicePull::Counts>()};
  out.tiers = std::make_unique<TiersOfDevice>(std::move(places), std::move(writes), options.pull_threads);
  return out;
}

}  // namespace deepinfer
