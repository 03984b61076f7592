#include "cache/tiers/open_kv_tiers.h"

#include <sys/random.h>

#include "cache/tiers/local_store.h"
#include "cache/tiers/page_record.h"
#include "cache/tiers/shared_store.h"

namespace deepinfer {

Status KvTiersConfig::validate() const {
  if (host_bytes < 0) return Status::OutOfRange("host_bytes: {}, must be at least 0", host_bytes);
  if (host_bytes == 0 && local_directory.empty() && shared_directory.empty())
    return Status::InvalidArgument("host_bytes, local_directory, shared_directory: no tier is configured");
  if (shared_bytes < 0) return Status::OutOfRange("shared_bytes: {}, must be at least 0", shared_bytes);
  DI_RETURN_IF_ERROR(host_retention.validate().with_context("host_retention"));
  DI_RETURN_IF_ERROR(local_retention.validate().with_context("local_retention"));
  if (!directory_url.empty() && shared_directory.empty())
    return Status::InvalidArgument("directory_url: is for a shared_directory, and there is none");
  DI_RETURN_IF_ERROR(shared_retention.validate().with_context("shared_retention"));
  return io.validate();
}

namespace {

Result<StoreSecret> secret_of(const KvTiersConfig& config) {
  if (!config.secret_file.empty()) return read_store_secret(config.secret_file);
  // What the machines have in common comes first: with a secret of its own, this one would find nothing of the others.
  for (const std::string& directory : {config.shared_directory, config.local_directory}) {
    if (!directory.empty()) return load_or_create_store_secret(directory + "/secret");
  }
  StoreSecret secret{};
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    return Err(Status::Unavailable("getrandom gave no secret"));
  }
  return secret;
}

}  // namespace

Result<OpenedKvTiers> open_kv_tiers(const KvTiersConfig& config, const KvPageShape& shape, std::string_view fingerprint) {
  DI_RETURN_IF_ERROR(config.validate());
  OpenedKvTiers opened;
  std::vector<std::shared_ptr<KvStore>> stores;
  if (config.host_bytes > 0) {
    auto host =
        HostPool::Create(shape, {.capacity_bytes = config.host_bytes, .retention = config.host_retention}, config.host_arena);
    if (!host) return Err(host.error().with_context("host_bytes"));
    opened.host = *std::move(host);
    stores.push_back(opened.host);
  }
  if (!config.local_directory.empty()) {
    LocalStoreOptions options{.directory = config.local_directory};
    options.capacity_bytes = config.local_bytes;
    options.retention = config.local_retention;
    DI_ASSIGN_OR_RETURN(std::shared_ptr<KvStore> local, LocalStore::Open(shape, kv_fingerprint(fingerprint, shape), options));
    stores.push_back(std::move(local));
  }
  if (!config.shared_directory.empty()) {
    SharedStoreOptions options{.directory = config.shared_directory};
    options.gc.capacity_bytes = config.shared_bytes;
    options.gc.retention = config.shared_retention;
    options.directory_url = config.directory_url;
    DI_ASSIGN_OR_RETURN(std::shared_ptr<KvStore> shared, SharedStore::Open(shape, kv_fingerprint(fingerprint, shape), options));
    stores.push_back(std::move(shared));
  }
  DI_ASSIGN_OR_RETURN(opened.secret, secret_of(config));
  DI_ASSIGN_OR_RETURN(opened.tiers, make_async_tiers(shape, std::move(stores), config.io));
  return opened;
}

}  // namespace deepinfer
