#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::grammar {

/// Bytes in groups, for a glance at what a whole subtree consists of.
using ByteGroups = uint8_t;
inline constexpr ByteGroups kWordBytes = 1;     ///< ASCII letters and digits
inline constexpr ByteGroups kSpaceByte = 2;     ///< ' '
inline constexpr ByteGroups kJoiners = 4;       ///< '-', '_'
inline constexpr ByteGroups kDot = 8;           ///< '.'
inline constexpr ByteGroups kSlash = 16;        ///< '/'
inline constexpr ByteGroups kMarkBytes = 32;    ///< other visible ASCII that JSON strings take as it is
inline constexpr ByteGroups kBeyondAscii = 64;  ///< well-formed UTF-8 of other characters; the last one may be cut off
inline constexpr ByteGroups kOtherBytes = 128;  ///< everything else
/// Of an ASCII byte.
ByteGroups byte_group(uint8_t byte);
/// The second bytes of UTF-8 behind a first one, and how many bytes follow those; {1, 0, 0}: no character begins with it.
struct Utf8Range {
  uint8_t low = 1, high = 0;
  int more = 0;
};
Utf8Range utf8_range(uint8_t first);

/// The byte strings of a set of tokens as a tree, flat and in preorder: a walk that enters a node goes on with the next one,
/// a walk that turns away from a node goes on at `end`. Immutable.
class TokenTrie {
 public:
  struct Node {
    uint32_t end;    ///< first node behind the subtree
    int32_t token;   ///< a token that ends here, or -1
    uint16_t depth;  ///< 1 for the first byte
    uint8_t byte;
    ByteGroups below;  ///< of what lies below this node, taken as text that begins there
  };

  TokenTrie() = default;
  /// Sorts `tokens`. Empty strings are left out; of two tokens with one spelling the second is kept in `twins`.
  explicit TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens);

  std::span<const Node> nodes() const { return nodes_; }
  /// (token of a node, another token with the same bytes).
  const std::vector<std::pair<int32_t, int32_t>>& twins() const { return twins_; }
  size_t max_depth() const { return max_depth_; }
  size_t bytes() const { return nodes_.capacity() * sizeof(Node); }

 private:
  std::vector<Node> nodes_;
  std::vector<std::pair<int32_t, int32_t>> twins_;
  size_t max_depth_ = 0;
};

}  // namespace deepinfer::grammar
