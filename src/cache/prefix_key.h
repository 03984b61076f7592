#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

struct evp_mac_ctx_st;  // OpenSSL's EVP_MAC_CTX; its headers stay out of ours

namespace deepinfer {

/// Names a page of tokens together with everything before it: two sequences have a page's key in common exactly when they share
/// salt, model and every token up to the end of that page.
struct PrefixKey {
  uint64_t high = 0;
  uint64_t low = 0;

  bool operator==(const PrefixKey&) const = default;
};

/// A key is the output of a keyed hash already: any 64 bits of it are as good as any others.
struct PrefixKeyHash {
  using is_avalanching = void;
  size_t operator()(const PrefixKey& key) const { return static_cast<size_t>(key.low ^ key.high); }
};

/// Makes prefix keys: HMAC-SHA-256 under a secret, cut to 128 bits. Without the secret nobody can compute a key or look for two
/// prompts with the same one, so neither keys nor the time of a lookup tell a tenant about the prompts of another. Everything of
/// variable length is preceded by its length, and each kind of input by its own tag: no two inputs are encoded alike.
///
/// Const members may be called from several threads at once.
class PrefixHasher {
 public:
  explicit PrefixHasher(std::array<uint8_t, 32> secret);
  ~PrefixHasher();
  PrefixHasher(PrefixHasher&&) noexcept;
  PrefixHasher& operator=(PrefixHasher&&) noexcept;

  /// A secret of this process, from the kernel. Processes that exchange keys need a common secret instead.
  static PrefixHasher Random();

  /// The parent of first pages. `salt` separates tenants, `fingerprint` models and page layouts.
  PrefixKey root(std::string_view salt, std::string_view fingerprint) const;
  /// The key of the page that holds `page_tokens` and follows `parent`. `extra`: whatever else the rows depend on, such as the
  /// hashes of the images in the page; empty is the same as none.
  PrefixKey next(PrefixKey parent, std::span<const int32_t> page_tokens) const { return next(parent, page_tokens, {}); }
  PrefixKey next(PrefixKey parent, std::span<const int32_t> page_tokens, std::span<const uint8_t> extra) const;

 private:
  struct FreeContext {
    void operator()(evp_mac_ctx_st* context) const;
  };
  using Context = std::unique_ptr<evp_mac_ctx_st, FreeContext>;

  class Message;

  Context keyed_;  ///< has absorbed the secret; copied for each message
};

/// Keys of the full pages of `tokens`, in order: tokens.size() / page_positions of them.
std::vector<PrefixKey> page_keys(const PrefixHasher& hasher, PrefixKey root, std::span<const int32_t> tokens,
                                 int64_t page_positions);

}  // namespace deepinfer
