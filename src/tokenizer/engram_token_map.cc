#include "tokenizer/engram_token_map.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <unordered_map>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace deepinfer {
namespace {

constexpr UChar32 kLoneBlank = 0xE000;  // stands for a token that is one blank while the ends are stripped

icu::UnicodeString decompose(std::string_view text) {
  // ICU fails here only when its own data is missing, which is a broken installation.
  UErrorCode code = U_ZERO_ERROR;
  const icu::Normalizer2* nfkc = icu::Normalizer2::getNFKCInstance(code);
  const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(code);
  DI_CHECK(U_SUCCESS(code), "ICU normalisation data: {}", u_errorName(code));
  const icu::UnicodeString source =
      icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
  const icu::UnicodeString composed = nfkc->normalize(source, code);
  icu::UnicodeString result = nfd->normalize(composed, code);
  DI_CHECK(U_SUCCESS(code), "ICU normalisation: {}", u_errorName(code));
  return result;
}

/// Lower case of one character, without context: what Rust's char::to_lowercase gives (a final sigma stays the ordinary one).
void append_lower(UChar32 c, std::u32string& out) {
  if (c == 0x130) {  // the only character whose unconditional full mapping is longer than its simple one
    out += U"i\u0307";
  } else {
    out += static_cast<char32_t>(u_tolower(c));
  }
}

bool is_white(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE) != 0; }

}  // namespace

std::string engram_normalise(std::string_view text) {
  const icu::UnicodeString decomposed = decompose(text);
  std::u32string lower;
  for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1)) {
    const UChar32 c = decomposed.char32At(i);
    if (!(U_GET_GC_MASK(c) & U_GC_M_MASK)) append_lower(c, lower);
  }
  std::u32string squeezed;
  bool blank = false;
  for (const char32_t c : lower) {
    const bool now = c == U' ' || c == U'\t' || c == U'\r' || c == U'\n';
    if (!now) squeezed += c;
    if (now && !blank) squeezed += U' ';
    blank = now;
  }
  if (squeezed == U" ") squeezed = kLoneBlank;
  size_t begin = 0, end = squeezed.size();
  while (begin < end && is_white(squeezed[begin])) ++begin;
  while (end > begin && is_white(squeezed[end - 1])) --end;
  std::string key;
  for (size_t i = begin; i < end; ++i) utf8_append(squeezed[i] == kLoneBlank ? U' ' : squeezed[i], key);
  return key;
}

EngramTokenMap make_engram_token_map(const Tokenizer& tokenizer) {
  EngramTokenMap result;
  result.map.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  std::unordered_map<std::string, int32_t> numbers;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    std::string key;
    // A token that is no text of its own (or holds U+FFFD itself, which the rule cannot tell apart) goes by its file spelling.
    if (utf8_valid_prefix(bytes) != bytes.size() || bytes.find(kReplacementCharacter) != std::string_view::npos) {
      key = tokenizer.token_string(id);
    } else {
      key = engram_normalise(bytes);
      if (key.empty()) key = bytes;
    }
    result.map.push_back(numbers.emplace(std::move(key), static_cast<int32_t>(numbers.size())).first->second);
  }
  result.compressed_vocab_size = static_cast<int32_t>(numbers.size());
  return result;
}

}  // namespace deepinfer
