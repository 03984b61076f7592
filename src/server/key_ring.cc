#include "server/key_ring.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/status.h"

namespace deepinfer::server {
namespace {

std::array<unsigned char, 32> sha256(std::string_view text) {
  std::array<unsigned char, 32> out{};
  unsigned int length = 0;
  DI_CHECK(EVP_Digest(text.data(), text.size(), out.data(), &length, EVP_sha256(), nullptr) == 1, "OpenSSL has no SHA-256");
  return out;
}

std::string hex(const unsigned char* bytes, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

}  // namespace

KeyRing::KeyRing(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(sha256(key));
}

std::optional<int64_t> KeyRing::find(std::string_view key) const {
  const Digest given = sha256(key);
  int64_t found = -1;
  for (size_t i = 0; i < digests_.size(); ++i) {
    const bool equal = CRYPTO_memcmp(given.data(), digests_[i].data(), given.size()) == 0;
    found = equal ? static_cast<int64_t>(i) : found;
  }
  if (found < 0) return std::nullopt;
  return found;
}

std::optional<int64_t> KeyRing::find(const HttpRequest& request) const {
  if (open()) return -1;
  constexpr std::string_view kBearer = "bearer ";
  std::string_view bearer = request.header("authorization");
  if (bearer.size() > kBearer.size() && equal_ignoring_case(bearer.substr(0, kBearer.size()), kBearer)) {
    bearer.remove_prefix(kBearer.size());
    if (const auto key = find(bearer)) return key;
  }
  const std::string_view plain = request.header("x-api-key");
  return plain.empty() ? std::nullopt : find(plain);
}

std::string KeyRing::cache_salt(int64_t key, std::string_view wanted, uint64_t epoch) const {
  const Digest of_key = key < 0 ? Digest{} : digests_[static_cast<size_t>(key)];
  std::string text = "deepinfer cache salt 1";
  text.append(reinterpret_cast<const char*>(of_key.data()), of_key.size());
  text += fmt::format("{:016x}", epoch);
  text += wanted;
  return hex(sha256(text).data(), 16);
}

uint64_t random_epoch() {
  uint64_t epoch = 0;
  while (epoch == 0) {
    DI_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&epoch), sizeof(epoch)) == 1, "no random numbers from OpenSSL");
  }
  return epoch;
}

std::string random_hex(size_t bytes) {
  std::string raw(bytes, '\0');
  DI_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(raw.data()), static_cast<int>(bytes)) == 1,
           "no random numbers from OpenSSL");
  return hex(reinterpret_cast<const unsigned char*>(raw.data()), bytes);
}

}  // namespace deepinfer::server
