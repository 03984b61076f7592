#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cache/tiers/redis_url.h"
#include "cache/tiers/shared_gc.h"
#include "cache/tiers/shared_layout.h"
#include "cache/tiers/store_admin.h"

namespace deepinfer {

/// The keeper of a shared directory. Others may read, write and collect meanwhile.
class SharedAdmin : public StoreAdmin {
 public:
  /// NotFound if there is no store in the directory. `redis`: is told what `gc` evicts.
  static Result<std::unique_ptr<SharedAdmin>> Open(const std::string& directory, const SharedGcOptions& options, bool read_only,
                                                   std::optional<RedisUrl> redis = {});

  Result<StoreReport> stat(double now, std::stop_token stop) override;
  Result<StoreVerification> verify(bool remove, std::stop_token stop) override;
  Result<StoreCollection> gc(double now, std::stop_token stop) override;
  Status for_each(const Visitor& visitor, std::stop_token stop) override;
  Status import_page(const StoredPage& page) override;

 private:
  SharedAdmin(const std::string& directory, const SharedGcOptions& options, bool read_only, std::optional<RedisUrl> redis)
      : layout_(directory), options_(options), read_only_(read_only), redis_(std::move(redis)) {}

  const SharedLayout layout_;
  const SharedGcOptions options_;
  const bool read_only_;
  const std::optional<RedisUrl> redis_;
  UniqueNames names_;
};

}  // namespace deepinfer
