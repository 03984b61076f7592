#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::grammar {

/// The byte strings of a set of tokens as a tree, flat and in preorder: a walk that enters a node goes on with the next one,
/// a walk that turns away from a node goes on at `end`. Immutable.
class TokenTrie {
 public:
  struct Node {
    uint32_t end;    ///< first node behind the subtree
    int32_t token;   ///< a token that ends here, or -1
    uint16_t depth;  ///< 1 for the first byte
    uint8_t byte;
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
