#include "tokenizer/pre_tokenizer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <map>

namespace deepinfer {
namespace {

uint8_t category_bits(int8_t category) {
  const uint32_t mask = U_MASK(category);
  if (mask & U_GC_L_MASK) return CharClasses::kLetter;
  if (mask & U_GC_M_MASK) return CharClasses::kMark;
  if (mask & U_GC_N_MASK) return CharClasses::kNumber;
  if (mask & U_GC_P_MASK) return CharClasses::kPunctuation;
  if (mask & U_GC_S_MASK) return CharClasses::kSymbol;
  return 0;
}

bool in_cjk_ranges(uint32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); }

}  // namespace

CharClasses::CharClasses() {
  std::map<std::string, uint16_t> seen;  // most blocks are alike: one letter class, or nothing assigned
  std::string block(256, '\0');
  for (uint32_t high = 0; high < index_.size(); ++high) {
    for (uint32_t low = 0; low < 256; ++low) {
      const uint32_t c = high << 8 | low;
      uint8_t bits = category_bits(u_charType(static_cast<UChar32>(c)));
      if (u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE)) bits |= kWhite;
      if (in_cjk_ranges(c)) bits |= kCjk;
      if (c == '\r' || c == '\n') bits |= kNewline;
      block[low] = static_cast<char>(bits);
    }
    const auto [it, fresh] = seen.emplace(block, static_cast<uint16_t>(seen.size()));
    if (fresh) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_[high] = it->second;
  }
  std::copy_n(blocks_.begin() + (static_cast<std::ptrdiff_t>(index_[0]) << 8), 128, ascii_.begin());
}

const CharClasses& CharClasses::instance() {
  static const CharClasses classes;
  return classes;
}

std::vector<std::string_view> pre_tokenize(std::string_view valid_utf8) {
  std::vector<std::string_view> pieces;
  PreTokenizer pre(valid_utf8);
  std::string_view piece;
  while (pre.next(piece)) pieces.push_back(piece);
  return pieces;
}

int recognise_split(std::string_view pattern) {
  static constexpr std::string_view kStages[3] = {
      R"(\p{N}{1,3})",
      "[一-龥\u3040-ゟ゠-ヿ]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
      "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
  };
  constexpr size_t kMaxPattern = 1024;
  if (pattern.size() > kMaxPattern) return -1;
  std::string plain;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      plain += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == '"') {
      plain += '"';
    } else if (escaped == 'r') {
      plain += '\r';
    } else if (escaped == 'n') {
      plain += '\n';
    } else {
      plain += '\\';
      plain += escaped;
    }
  }
  for (int stage = 0; stage < 3; ++stage) {
    if (plain == kStages[stage]) return stage;
  }
  return -1;
}

}  // namespace deepinfer
