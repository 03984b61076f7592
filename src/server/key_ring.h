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

  /// What keeps the cached prefixes of one tenant from another, here and in the stores that servers share: 32 hexadecimal digits
  /// that depend on the key itself (-1: none), whichever number it has where, on the request's own salt and on the epoch. Nobody
  /// else can ask for them: no request chooses its key's part.
  std::string cache_salt(int64_t key, std::string_view wanted, uint64_t epoch) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  std::optional<int64_t> find(std::string_view key) const;

  std::vector<Digest> digests_;
};

/// A random number other than 0.
uint64_t random_epoch();
/// `bytes` random bytes in hexadecimal.
std::string random_hex(size_t bytes);

}  // namespace deepinfer::server
