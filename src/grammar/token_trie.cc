#include "grammar/token_trie.h"

#include <algorithm>

namespace deepinfer::grammar {

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<uint32_t> open;  // nodes on the path of the token before
  std::string_view before;
  int32_t owner = -1;
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
  };
  for (const auto& [bytes, token] : tokens) {
    if (bytes.empty()) continue;
    if (bytes == before) {
      twins_.emplace_back(owner, token);
      continue;
    }
    const size_t common =
        static_cast<size_t>(std::mismatch(bytes.begin(), bytes.end(), before.begin(), before.end()).first - bytes.begin());
    close_to(common);
    for (size_t i = common; i < bytes.size(); ++i) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, -1, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(bytes[i])});
    }
    nodes_.back().token = token;
    owner = token;
    max_depth_ = std::max(max_depth_, bytes.size());
    before = bytes;
  }
  close_to(0);
  nodes_.shrink_to_fit();
}

}  // namespace deepinfer::grammar
