#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace deepinfer::server {

/// The API keys. Comparison takes the same time whatever is presented: digests of equal length, all of them, no early exit.
/// Immutable; any thread may use it.
class KeyRing {
 public:
  explicit KeyRing(const std::vector<std::string>& keys);

  bool open() const { return digests_.empty(); }
  /// Number of the key that the request carries (`Authorization: Bearer`, or `x-api-key`); -1 if none is needed, nothing if none
  /// fits.
  std::optional<int64_t> find(const HttpRequest& request) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  std::optional<int64_t> find(std::string_view key) const;

  std::vector<Digest> digests_;
};

/// What keeps the cached prefixes of one tenant from another, and, renewed, everything from what was cached before.
class CacheSalts {
 public:
  CacheSalts();
  /// 32 hexadecimal digits that depend on the key, the request's own salt and the epoch.
  std::string salt(int64_t key, std::string_view wanted, int64_t epoch) const;

 private:
  std::array<unsigned char, 32> secret_{};
};

/// `bytes` random bytes in hexadecimal.
std::string random_hex(size_t bytes);

}  // namespace deepinfer::server
