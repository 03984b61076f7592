#include "cache/tiers/open_kv_tiers.h"

#include <sys/random.h>

#include "cache/tiers/host_pool.h"
#include "cache/tiers/local_store.h"
#include "cache/tiers/page_record.h"

namespace deepinfer {

Status KvTiersConfig::validate() const {
  if (host_bytes < 0) return Status::OutOfRange("host_bytes: {}, must be at least 0", host_bytes);
  if (host_bytes == 0 && local_directory.empty())
    return Status::InvalidArgument("host_bytes, local_directory: no tier is configured");
  DI_RETURN_IF_ERROR(host_retention.validate().with_context("host_retention"));
  DI_RETURN_IF_ERROR(local_retention.validate().with_context("local_retention"));
  return io.validate();
}

Result<OpenedKvTiers> open_kv_tiers(const KvTiersConfig& config, const KvPageShape& shape, std::string_view fingerprint) {
  DI_RETURN_IF_ERROR(config.validate());
  OpenedKvTiers opened;
  std::vector<std::shared_ptr<KvStore>> stores;
  if (config.host_bytes > 0) {
    DI_ASSIGN_OR_RETURN(std::shared_ptr<KvStore> host,
                        HostPool::Create(shape, {.capacity_bytes = config.host_bytes, .retention = config.host_retention}));
    stores.push_back(std::move(host));
  }
  if (!config.local_directory.empty()) {
    LocalStoreOptions options{.directory = config.local_directory};
    options.capacity_bytes = config.local_bytes;
    options.retention = config.local_retention;
    DI_ASSIGN_OR_RETURN(std::shared_ptr<KvStore> local, LocalStore::Open(shape, kv_fingerprint(fingerprint, shape), options));
    stores.push_back(std::move(local));
  }
  if (!config.secret_file.empty()) {
    DI_ASSIGN_OR_RETURN(opened.secret, read_store_secret(config.secret_file));
  } else if (!config.local_directory.empty()) {
    DI_ASSIGN_OR_RETURN(opened.secret, load_or_create_store_secret(config.local_directory + "/secret"));
  } else if (::getrandom(opened.secret.data(), opened.secret.size(), 0) != static_cast<ssize_t>(opened.secret.size())) {
    return Err(Status::Unavailable("getrandom gave no secret"));
  }
  DI_ASSIGN_OR_RETURN(opened.tiers, make_async_tiers(shape, std::move(stores), config.io));
  return opened;
}

}  // namespace deepinfer
