// Texts that random logits give under many grammars, for validators that know nothing of ours: one JSON object a line.
//   grammar_samples COUNT [SEED]
//   grammar_samples list           kinds and specs alone
// {"kind": "schema" | "regex" | "choice" | "json" | "sum", "spec": ..., "text": ..., "finish": "stop" | "length"}
// Schemas are those of maskbench-sample where it is there, and random ones; the vocabulary is the 128k one where it is there.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "grammar/random_schema.h"
#include "grammar/support.h"
#include "sampling/sampler.h"

namespace deepinfer::testing {
namespace {

constexpr int kFreeTokens = 60;     ///< drawn from any logits; behind them logits that tend to an end
constexpr int kMostTokens = 20000;  ///< finish "length"
constexpr int kRandomSchemas = 120;

struct Source {
  std::string kind;
  Json spec;
  std::shared_ptr<const CompiledGrammar> grammar;
};

const std::array kRegexes = {"[a-z]+@[a-z]+\\.(com|org)",
                             "(\\d{1,3}\\.){3}\\d{1,3}",
                             "(a|b)*abb",
                             "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
                             "\\w+( \\w+){0,5}",
                             "((a{2,3}|b+)c?){1,4}",
                             "[^x]{1,10}x",
                             "(0|[1-9]\\d*)(\\.\\d+)?",
                             "-?\\d+(,\\d{3})*",
                             "(the|name|abc){2,}",
                             "a?b?c?d?e?",
                             "\\$\\{\\w+\\}",
                             "[^\"\\\\\\x00-\\x1f]*",
                             "\\p{Lu}\\p{Ll}+",
                             "[\\u0400-\\u04ff]{3,9}",
                             "(?:[A-Z]{2}\\d{2} ?){1,4}",
                             "#[0-9A-Fa-f]{6}",
                             "\\d{4}-(0[1-9]|1[0-2])-\\d{2}",
                             "(?:\\+|00)[1-9]\\d{6,14}",
                             "[A-Z]\\S*(\\s\\S+){2}",
                             "(yes|no|maybe)(,(yes|no|maybe))*",
                             "\\((\\d+)(, \\d+)*\\)",
                             "[\\s\\S]{5,50}",
                             ".{0,40}",
                             "[ab]{0,3}c{2}d",
                             "(?:0x[0-9a-f]+|\\d+)",
                             "v\\d+\\.\\d+\\.\\d+(-[a-z]+)?",
                             "[一-龥]{2,4}",
                             "\\D+\\d",
                             "(a(b(c(d)?)?)?)?"};

const std::array kJsonGrammars = {
    "root ::= v\nv ::= o | l | s | n | \"true\" | \"null\"\no ::= \"{\" (s \":\" v (\",\" s \":\" v)*)? \"}\"\n"
    "l ::= \"[\" (v (\",\" v)*)? \"]\"\ns ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]* \"\\\"\"\nn ::= \"-\"? (\"0\" | [1-9] [0-9]{0,9})",
    "root ::= \"[\" item{1,5} \"0]\"\nitem ::= (\"{}\" | \"[\" item? \"1]\" | [1-9] [0-9]{0,3}) \",\""};
const std::array kSumGrammars = {"root ::= e\ne ::= e \"+\" t | t\nt ::= \"(\" e \")\" | [1-9] [0-9]{0,3}",
                                 "root ::= f ((\"+\" | \"-\" | \"*\") f)*\nf ::= [1-9] [0-9]{0,2} | \"(\" root \")\""};

std::vector<Source> sources(const std::shared_ptr<const TokenVocabulary>& vocabulary) {
  std::vector<Source> out;
  const auto add = [&](const std::string& kind, Json spec, const GrammarSpec& form) {
    auto made = compile_grammar(form, vocabulary);
    if (made) out.push_back({kind, std::move(spec), *std::move(made)});
  };
  Random random(21);
  for (int i = 0; i < kRandomSchemas; ++i) {
    const Json schema = random_schema(random, 3);
    add("schema", schema, grammar::JsonSchemaSpec{schema.dump()});
  }
  if (const std::string folder = public_vectors("maskbench-sample"); !folder.empty()) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".json") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      const Json schema = read_json_file(path)["schema"];
      add("schema", schema, grammar::JsonSchemaSpec{schema.dump()});
    }
  }
  for (const char* pattern : kRegexes) add("regex", pattern, grammar::RegexSpec{pattern});
  for (const char* text : kJsonGrammars) add("json", nullptr, grammar::EbnfSpec{text});
  for (const char* text : kSumGrammars) add("sum", nullptr, grammar::EbnfSpec{text});
  for (const Json& list : {Json{"yes", "no"}, Json{"a", "ab", "abc", "é", ""}, Json{"中文", "the name", "\n"}})
    add("choice", list, grammar::ChoiceSpec{list.get<std::vector<std::string>>()});
  return out;
}

/// What is favoured on the way to an end, for kPhase tokens each: patterns that may stand anywhere in a string want a run of a
/// few kinds of characters, which any characters seldom are.
constexpr std::array<std::string_view, 5> kFavoured = {"\"}])", "0123456789abcdef", "ab", "abcdefghijklmnopqrstuvwxyz", ""};
constexpr int kPhase = 32;

/// Logits from the seed and the step alone, biased towards an end behind `kFreeTokens`.
void fill_logits(Random& random, int step, const TokenVocabulary& vocabulary, std::span<float> logits) {
  const bool end = step >= kFreeTokens;
  for (size_t id = 0; id < logits.size(); ++id) logits[id] = 2 * static_cast<float>(random.uniform());
  if (!end) return;
  const std::string_view favoured = kFavoured[static_cast<size_t>((step - kFreeTokens) / kPhase) % kFavoured.size()];
  for (size_t id = 0; id < logits.size(); ++id) {
    const std::string_view bytes = vocabulary.bytes(static_cast<int32_t>(id));
    if (bytes.size() == 1 && static_cast<uint8_t>(bytes[0]) < 0x7F)
      logits[id] += favoured.find(bytes[0]) != std::string_view::npos ? 60 : 30;
  }
  for (const int32_t id : vocabulary.stop_ids()) logits[static_cast<size_t>(id)] += 100;
}

Json sample(const Source& source, uint64_t seed) {
  const TokenVocabulary& vocabulary = source.grammar->vocabulary();
  GrammarMatcher matcher(source.grammar);
  SamplingParams params;
  params.temperature = 0;  // the logits are random enough
  Sampler sampler(params, vocabulary.size());
  Random random(seed);
  std::vector<uint32_t> mask(vocabulary.mask_words());
  std::vector<float> logits(static_cast<size_t>(vocabulary.size()));
  std::string text;
  int step = 0;
  while (step < kMostTokens && !matcher.terminated()) {
    matcher.fill_mask(mask);
    fill_logits(random, step, vocabulary, logits);
    const int32_t token = sampler.sample(logits, step++, mask);
    if (!matcher.accept(token)) {
      std::fprintf(stderr, "stuck: token %d of %s\n", token, source.spec.dump().c_str());
      std::exit(1);
    }
    if (!vocabulary.is_stop(token)) text += vocabulary.bytes(token);
  }
  return {{"kind", source.kind}, {"spec", source.spec}, {"text", text}, {"finish", matcher.terminated() ? "stop" : "length"}};
}

std::shared_ptr<const TokenVocabulary> vocabulary_of_samples() {
  auto vocabulary = large_vocabulary();
  return vocabulary != nullptr ? vocabulary : small_vocabulary();
}

void print(const Json& line) { std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str()); }

int list() {
  for (const Source& source : sources(vocabulary_of_samples())) print({{"kind", source.kind}, {"spec", source.spec}});
  return 0;
}

int run(int64_t count, uint64_t seed) {
  const auto vocabulary = vocabulary_of_samples();
  const std::vector<Source> all = sources(vocabulary);
  std::fprintf(stderr, "%zu grammars, %d tokens\n", all.size(), vocabulary->size());
  for (int64_t i = 0; i < count; ++i) {
    print(sample(all[static_cast<size_t>(i) % all.size()], seed + static_cast<uint64_t>(i)));
  }
  return 0;
}

}  // namespace
}  // namespace deepinfer::testing

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) return std::fprintf(stderr, "usage: %s COUNT [SEED] | list\n", argv[0]), 2;
  if (std::string_view(argv[1]) == "list") return deepinfer::testing::list();
  return deepinfer::testing::run(std::strtoll(argv[1], nullptr, 10), argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
}
