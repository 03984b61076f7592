#pragma once

#include "cache/tiers/shared_admin.h"
#include "cache/tiers/shared_store.h"
#include "cache/tiers/store_fixture.h"

namespace deepinfer::store_testing {

/// The tests' clock is their own, so no file system's is compared with it, and nobody collects garbage unasked.
inline SharedStoreOptions shared_options(const std::string& directory) {
  SharedStoreOptions options{.directory = directory};
  options.gc.max_clock_skew_seconds = std::numeric_limits<double>::infinity();
  options.gc_interval_seconds = 0;
  options.match_check_seconds = 1;
  return options;
}
inline std::unique_ptr<SharedStore> open_shared(const SharedStoreOptions& options, const std::string& model = "model") {
  auto store = SharedStore::Open(kShape, kv_fingerprint(model, kShape), options);
  EXPECT_TRUE(store.has_value()) << store.error().message();
  return store ? *std::move(store) : nullptr;
}
inline std::unique_ptr<SharedStore> open_shared(const std::string& directory, const std::string& model = "model") {
  return open_shared(shared_options(directory), model);
}
inline std::unique_ptr<SharedAdmin> open_shared_admin(const std::string& directory) {
  auto admin = SharedAdmin::Open(directory, shared_options(directory).gc, false);
  EXPECT_TRUE(admin.has_value()) << admin.error().message();
  return admin ? *std::move(admin) : nullptr;
}
inline std::string generation_path(const std::string& directory, const std::string& model = "model") {
  return SharedLayout(directory).generation(kv_fingerprint(model, kShape));
}
inline std::string path_of(const std::string& directory, uint64_t n, bool exact = true) {
  return page_path(generation_path(directory), key(n), exact);
}
/// How many files there are whose names contain `part`.
inline int64_t count_files(const std::string& directory, std::string_view part) {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    count += entry.is_regular_file() && entry.path().filename().string().find(part) != std::string::npos;
  }
  return count;
}

}  // namespace deepinfer::store_testing
