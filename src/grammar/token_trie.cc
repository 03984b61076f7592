#include "grammar/token_trie.h"

#include <algorithm>

namespace deepinfer::grammar {

ByteGroups byte_group(uint8_t byte) {
  if ((byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z')) return kWordBytes;
  if (byte == ' ') return kSpaceByte;
  if (byte == '-' || byte == '_') return kJoiners;
  if (byte == '.') return kDot;
  if (byte == '/') return kSlash;
  return byte > ' ' && byte < 0x7F && byte != '"' && byte != '\\' ? kMarkBytes : kOtherBytes;
}

Utf8Range utf8_range(uint8_t first) {
  if (first >= 0xC2 && first <= 0xDF) return {0x80, 0xBF, 0};
  if (first == 0xE0) return {0xA0, 0xBF, 1};
  if (first == 0xED) return {0x80, 0x9F, 1};
  if (first >= 0xE1 && first <= 0xEF) return {0x80, 0xBF, 1};
  if (first == 0xF0) return {0x90, 0xBF, 2};
  if (first >= 0xF1 && first <= 0xF3) return {0x80, 0xBF, 2};
  if (first == 0xF4) return {0x80, 0x8F, 2};
  return {};
}

namespace {

/// groups[i]: of the bytes from i on, taken as text.
void suffix_groups(std::string_view bytes, std::vector<ByteGroups>& groups) {
  groups.assign(bytes.size() + 1, 0);
  for (size_t i = bytes.size(); i-- > 0;) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (byte < 0x80) {
      groups[i] = groups[i + 1] | byte_group(byte);
      continue;
    }
    const Utf8Range range = utf8_range(byte);
    const size_t end = i + 2 + static_cast<size_t>(range.more);
    bool good = range.low <= range.high;
    for (size_t k = i + 1; k < std::min(end, bytes.size()) && good; ++k) {
      const auto next = static_cast<uint8_t>(bytes[k]);
      good = k == i + 1 ? next >= range.low && next <= range.high : next >= 0x80 && next <= 0xBF;
    }
    const ByteGroups behind = end < bytes.size() ? groups[end] : ByteGroups{0};
    groups[i] = good ? behind | kBeyondAscii : kOtherBytes;
  }
}

}  // namespace

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<uint32_t> open;  // nodes on the path of the token before
  std::vector<ByteGroups> groups;
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
      nodes_.push_back({0, -1, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(bytes[i]), 0});
    }
    nodes_.back().token = token;
    suffix_groups(bytes, groups);
    for (size_t i = 0; i < bytes.size(); ++i) nodes_[open[i]].below |= groups[i + 1];
    owner = token;
    max_depth_ = std::max(max_depth_, bytes.size());
    before = bytes;
  }
  close_to(0);
  nodes_.shrink_to_fit();
}

}  // namespace deepinfer::grammar
