#include "cache/tiers/store_admin.h"

#include "cache/tiers/local_admin.h"
#include "cache/tiers/shared_admin.h"

namespace deepinfer {

Result<std::unique_ptr<StoreAdmin>> open_store_admin(const StoreAdminOptions& options) {
  if (options.capacity_bytes < 0) {
    return Err(Status::OutOfRange("capacity_bytes: {}, must be at least 0", options.capacity_bytes));
  }
  std::optional<RedisUrl> redis;
  if (!options.directory_url.empty()) {
    DI_ASSIGN_OR_RETURN(redis, parse_redis_url(options.directory_url));
  }
  Result<std::unique_ptr<StoreAdmin>> local = open_local_admin(options);
  if (local && redis)
    return Err(
        Status::InvalidArgument("directory_url: {}, but {} is a local store, which has none", redis->text(), options.directory));
  if (local || local.error().code() != StatusCode::kNotFound) return local;
  const SharedGcOptions gc{.capacity_bytes = options.capacity_bytes, .retention = options.retention};
  auto shared = SharedAdmin::Open(options.directory, gc, options.read_only, std::move(redis));
  if (shared) return std::unique_ptr<StoreAdmin>(*std::move(shared));
  if (shared.error().code() != StatusCode::kNotFound) return Err(std::move(shared).error());
  return Err(Status::NotFound("{}: neither a local nor a shared store lies there", options.directory));
}

}  // namespace deepinfer
