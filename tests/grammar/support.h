#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "testing/random.h"

namespace deepinfer::testing {

using grammar::CompiledGrammar;
using grammar::GrammarMatcher;
using grammar::GrammarSpec;
using grammar::TokenVocabulary;
using Json = nlohmann::ordered_json;

/// 256 single bytes, tokens of several bytes that cut across what grammars see as one thing, an added token "｜DSML｜", and a
/// stop token, which is the last.
std::shared_ptr<const TokenVocabulary> small_vocabulary();
/// The 128k vocabulary, or null where its package is not installed.
std::shared_ptr<const TokenVocabulary> large_vocabulary();

std::shared_ptr<const CompiledGrammar> compile(const GrammarSpec& spec,
                                               const std::shared_ptr<const TokenVocabulary>& vocabulary = small_vocabulary());
std::string compile_error(const GrammarSpec& spec);
/// The whole text is allowed, byte by byte.
bool accepts(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text);
/// The text can go on, or end.
bool accepts_prefix(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text);

/// The value as compact JSON with its members in an order that the grammar allows, if there is one: properties of the schema
/// first, in its order, then the others; where that fails, other orders are tried.
std::optional<std::string> spelling_of(const std::shared_ptr<const CompiledGrammar>& grammar, const Json& schema,
                                       const Json& value);

/// Folder below the public vectors, or empty.
std::string public_vectors(const std::string& name);
Json read_json_file(const std::string& path);

/// Random tokens under the masks until a stop token is drawn or `limit` tokens are there; then, towards an end, single bytes of
/// the shortest kind. Nothing if it got stuck. Checks on the way that accept and mask agree.
std::optional<std::string> generate(const std::shared_ptr<const CompiledGrammar>& grammar, Random& random, int limit);

}  // namespace deepinfer::testing
