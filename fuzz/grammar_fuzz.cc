// Any bytes as a regular expression, a JSON Schema, a grammar, or the arguments of a tool: compiled within small budgets or
// refused; then the rest of the input drives a matcher, whose masks must agree with what it accepts and must never be empty.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "grammar/grammar.h"

namespace {

using namespace deepinfer::grammar;  // NOLINT(google-build-using-namespace): a program of one file

const std::shared_ptr<const TokenVocabulary>& vocabulary() {
  static const auto made = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"ab", "\":", "{\"", "\"}", "],", "12", "true", "é", "\xC3\xA9t"}) tokens.emplace_back(text);
    tokens.emplace_back("｜DSML｜");
    tokens.emplace_back("<end>");
    const auto stop = static_cast<int32_t>(tokens.size()) - 1;
    return *TokenVocabulary::Make(std::move(tokens), {stop - 1, stop}, {stop});
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t length = std::min<size_t>(size - 2, size_t{4} * data[1] + 16);
  const std::string text(reinterpret_cast<const char*>(data) + 2, length);
  GrammarSpec spec = RegexSpec{text};
  const int kind = data[0] % 8;
  if (kind % 4 == 1) spec = JsonSchemaSpec{text};
  if (kind % 4 == 2) spec = JsonSchemaSpec{text, false, JsonSpace::kCompact};
  if (kind % 4 == 3) spec = EbnfSpec{text};
  if (kind > 4) {
    // The same text as the arguments of a tool, inside a block of calls, behind one, or beside an answer.
    DsmlSpec tools;
    tools.tools.push_back({"f", text, true});
    tools.tools.push_back({"g", "", false});
    tools.mode = kind == 5 ? DsmlSpec::Mode::kInside : kind == 6 ? DsmlSpec::Mode::kRequired : DsmlSpec::Mode::kAuto;
    tools.parallel = data[0] % 16 < 8;
    if (kind == 7 && data[0] % 16 < 8) tools.answer = RegexSpec{"[a-z]+"};
    spec = std::move(tools);
  }
  CompileLimits limits;
  limits.nodes = 100000;
  limits.steps = 1 << 20;
  limits.dfa_states = 500;
  limits.live_bytes = 1 << 20;
  const auto compiled = compile_grammar(spec, vocabulary(), limits);
  if (!compiled) return 0;
  GrammarMatcher matcher(*compiled);
  std::vector<uint32_t> mask(vocabulary()->mask_words());
  const size_t end = std::min(size, 2 + length + 64);
  for (size_t i = 2 + length; i < end && !matcher.terminated(); ++i) {
    matcher.fill_mask(mask);
    uint32_t any = 0;
    for (const uint32_t word : mask) any |= word;
    if (any == 0) __builtin_trap();
    int32_t token = data[i];
    for (int32_t tries = 0; (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0; ++tries) {
      if (tries == 0 && matcher.accept(token)) __builtin_trap();
      token = (token + 1) % vocabulary()->size();
    }
    if (!matcher.accept(token)) __builtin_trap();
    if (data[i] % 7 == 0) matcher.rollback(data[i] % 3);
  }
  return 0;
}
