#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "grammar/limits.h"
#include "grammar/token_vocabulary.h"

namespace deepinfer::grammar {

class Machine;
class Program;

/// The whole output matches the pattern (`regex.h` says which patterns).
struct RegexSpec {
  std::string pattern;
  bool operator==(const RegexSpec&) const = default;
};

/// Where white space may stand in JSON output.
enum class JsonSpace : uint8_t {
  kFlexible,  ///< between tokens: nothing, one space, or one line end and up to 32 spaces or tabs; never without a bound
  kCompact,   ///< none
  kSpaced,    ///< exactly `", "` and `": "`, as json.dumps of Python
};

/// JSON that a JSON Schema (2020-12) allows. docs/guides/structured-output.md lists what is supported.
struct JsonSchemaSpec {
  std::string schema;
  /// false: keywords that can't be enforced are left out and listed in CompiledGrammar::ignored().
  bool strict = true;
  JsonSpace space = JsonSpace::kFlexible;
  bool operator==(const JsonSchemaSpec&) const = default;
};

/// Any JSON object.
struct JsonObjectSpec {
  JsonSpace space = JsonSpace::kFlexible;
  bool operator==(const JsonObjectSpec&) const = default;
};

/// A grammar in the GBNF/XGrammar dialect; the rule `root` is the whole output.
struct EbnfSpec {
  std::string text;
  bool operator==(const EbnfSpec&) const = default;
};

/// One of these texts.
struct ChoiceSpec {
  std::vector<std::string> choices;
  bool operator==(const ChoiceSpec&) const = default;
};

/// The DSML tool-call form (spec/protocol §4.7, §14).
struct DsmlSpec {
  struct Tool {
    std::string name;
    std::string parameters;  ///< JSON Schema of the arguments; empty: any object
    /// false: argument keys and values are free but for the form.
    bool strict = true;
    bool operator==(const Tool&) const = default;
  };
  enum class Mode : uint8_t {
    kAuto,      ///< free text, then perhaps one block of calls, then the end
    kRequired,  ///< "\n\n", then a block
    kInside,    ///< the block's opening line is in the prompt already
  };
  std::vector<Tool> tools;
  Mode mode = Mode::kAuto;
  bool parallel = true;  ///< false: exactly one call
  bool v4 = false;       ///< spelling of V4: `tool_calls` without the space before it
  /// Literal of the added token; spelled-out text of it does not count. Vocabularies without it take the text.
  std::string dsml_token = "｜DSML｜";
  bool operator==(const DsmlSpec&) const = default;
};

using GrammarSpec = std::variant<RegexSpec, JsonSchemaSpec, JsonObjectSpec, EbnfSpec, ChoiceSpec, DsmlSpec>;

/// Identifies a spec by content: equal keys, equal grammars.
std::string spec_key(const GrammarSpec& spec);

/// A grammar for a vocabulary. Immutable for its users, who share it between requests and threads; inside it caches matcher
/// states and masks within CompileLimits::live_bytes, behind a mutex.
class CompiledGrammar {
 public:
  ~CompiledGrammar();
  const TokenVocabulary& vocabulary() const { return *vocabulary_; }
  /// Keywords that are not enforced, with their paths (JsonSchemaSpec::strict == false).
  const std::vector<std::string>& ignored() const { return ignored_; }
  /// Memory that this grammar may come to hold, for GrammarCache.
  size_t bytes() const;

 private:
  friend class GrammarMatcher;
  friend Result<std::shared_ptr<const CompiledGrammar>> compile_grammar(const GrammarSpec&,
                                                                        std::shared_ptr<const TokenVocabulary>,
                                                                        const CompileLimits&);
  struct Live;  // a machine and its masks
  CompiledGrammar() = default;
  /// The machine that new work goes to; a full one is replaced, and matchers move over as they are used.
  std::shared_ptr<Live> live() const;

  std::shared_ptr<const TokenVocabulary> vocabulary_;
  std::shared_ptr<const Program> program_;
  std::vector<std::string> ignored_;
  CompileLimits limits_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Live> live_;
};

/// Errors (InvalidArgument, Unimplemented) name the keyword and its path, or the position; ResourceExhausted names the budget.
/// Safe to call from any thread; takes milliseconds for usual schemas.
Result<std::shared_ptr<const CompiledGrammar>> compile_grammar(const GrammarSpec& spec,
                                                               std::shared_ptr<const TokenVocabulary> vocabulary,
                                                               const CompileLimits& limits = {});

/// Where one output stands in its grammar. Thread-compatible; matchers of one grammar may run on different threads. What it
/// answers depends on the accepted tokens alone.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);

  /// Advances over one token. False, and nothing changes, if the grammar does not allow it. A stop token is allowed where the
  /// output may end, and terminates.
  bool accept(int32_t token);
  /// Advances over plain bytes, for tests and for text that stands in the prompt already; counts as one token.
  bool accept_bytes(std::string_view bytes);
  /// Fills the mask of allowed tokens (bit v%32 of word v/32; words beyond the vocabulary become 0). False: everything is
  /// allowed. After termination stop tokens alone are allowed, though accept refuses them. Never empty for a vocabulary with a
  /// stop token.
  bool fill_mask(std::span<uint32_t> words);
  /// Takes back the last `tokens` accepted ones (all of them if there are fewer).
  void rollback(int64_t tokens);
  int64_t accepted_tokens() const { return static_cast<int64_t>(history_.size()) - 1; }
  /// Whether a stop token is allowed now.
  bool can_stop() const;
  bool terminated() const;
  /// The one token that is allowed, if there is only one.
  std::optional<int32_t> forced_token();
  /// An independent matcher in the same place.
  GrammarMatcher fork() const { return *this; }

  const CompiledGrammar& grammar() const { return *grammar_; }

 private:
  void move_to_current();

  std::shared_ptr<const CompiledGrammar> grammar_;
  std::shared_ptr<CompiledGrammar::Live> live_;
  std::vector<uint32_t> history_;  ///< state behind each accepted token, the start first
};

}  // namespace deepinfer::grammar
