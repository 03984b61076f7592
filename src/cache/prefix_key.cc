#include "cache/prefix_key.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "base/status.h"

namespace deepinfer {

// Integers are hashed as they lie in memory; keys that travel between machines must come out alike.
static_assert(std::endian::native == std::endian::little);

namespace {
enum class Tag : uint8_t { kRoot = 1, kPage = 2 };
}  // namespace

/// One hash in the making.
class PrefixHasher::Message {
 public:
  Message(const evp_mac_ctx_st* keyed, Tag tag) : context_(EVP_MAC_CTX_dup(keyed)) {
    DI_CHECK(context_ != nullptr, "libcrypto cannot copy a context");
    add(&tag, sizeof(tag));
  }
  void add(const void* data, size_t bytes) {
    const bool ok = EVP_MAC_update(context_.get(), static_cast<const unsigned char*>(data), bytes) == 1;
    DI_CHECK(ok, "libcrypto cannot hash {} bytes", bytes);
  }
  void add_counted(const void* data, size_t count, size_t element_bytes) {
    const uint64_t prefix = count;
    add(&prefix, sizeof(prefix));
    if (count > 0) add(data, count * element_bytes);
  }
  PrefixKey key() {
    std::array<unsigned char, 32> digest{};
    size_t bytes = 0;
    const bool ok = EVP_MAC_final(context_.get(), digest.data(), &bytes, digest.size()) == 1;
    DI_CHECK(ok && bytes == digest.size(), "libcrypto gave {} bytes of SHA-256", bytes);
    PrefixKey key;
    std::memcpy(&key.high, digest.data(), sizeof(key.high));
    std::memcpy(&key.low, digest.data() + sizeof(key.high), sizeof(key.low));
    return key;
  }

 private:
  Context context_;
};

void PrefixHasher::FreeContext::operator()(evp_mac_ctx_st* context) const { EVP_MAC_CTX_free(context); }

PrefixHasher::PrefixHasher(std::array<uint8_t, 32> secret) {
  EVP_MAC* mac = EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr);
  DI_CHECK(mac != nullptr, "libcrypto has no HMAC");
  keyed_.reset(EVP_MAC_CTX_new(mac));
  EVP_MAC_free(mac);  // the context keeps its own reference
  DI_CHECK(keyed_ != nullptr, "libcrypto cannot make a context");
  char digest[] = "SHA256";
  const std::array<OSSL_PARAM, 2> params = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                            OSSL_PARAM_construct_end()};
  const bool ok = EVP_MAC_init(keyed_.get(), secret.data(), secret.size(), params.data()) == 1;
  DI_CHECK(ok, "libcrypto has no HMAC-SHA-256");
  OPENSSL_cleanse(secret.data(), secret.size());
}

PrefixHasher::~PrefixHasher() = default;
PrefixHasher::PrefixHasher(PrefixHasher&&) noexcept = default;
PrefixHasher& PrefixHasher::operator=(PrefixHasher&&) noexcept = default;

PrefixHasher PrefixHasher::Random() {
  std::array<uint8_t, 32> secret{};
  ssize_t got = 0;
  // Up to 256 bytes come at once, unless a signal arrives while the kernel still gathers its first entropy.
  do {
    got = ::getrandom(secret.data(), secret.size(), 0);
  } while (got < 0 && errno == EINTR);
  DI_CHECK(got == static_cast<ssize_t>(secret.size()), "getrandom: {}", std::strerror(errno));
  return PrefixHasher(secret);
}

PrefixKey PrefixHasher::root(std::string_view salt, std::string_view fingerprint) const {
  Message message(keyed_.get(), Tag::kRoot);
  message.add_counted(salt.data(), salt.size(), 1);
  message.add_counted(fingerprint.data(), fingerprint.size(), 1);
  return message.key();
}

PrefixKey PrefixHasher::next(PrefixKey parent, std::span<const int32_t> page_tokens, std::span<const uint8_t> extra) const {
  Message message(keyed_.get(), Tag::kPage);
  message.add(&parent.high, sizeof(parent.high));
  message.add(&parent.low, sizeof(parent.low));
  message.add_counted(page_tokens.data(), page_tokens.size(), sizeof(int32_t));
  message.add_counted(extra.data(), extra.size(), 1);
  return message.key();
}

std::vector<PrefixKey> page_keys(const PrefixHasher& hasher, PrefixKey root, std::span<const int32_t> tokens,
                                 int64_t page_positions) {
  DI_CHECK(page_positions > 0, "a page of {} positions", page_positions);
  const auto positions = static_cast<size_t>(page_positions);
  std::vector<PrefixKey> keys;
  keys.reserve(tokens.size() / positions);
  PrefixKey parent = root;
  for (; tokens.size() >= positions; tokens = tokens.subspan(positions)) {
    parent = hasher.next(parent, tokens.first(positions));
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace deepinfer
