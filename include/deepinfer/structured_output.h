#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace deepinfer {

namespace grammar {

/// The whole output matches the pattern (docs/guides/structured-output.md says which patterns).
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
  /// false: keywords that can't be enforced are left out and listed in RequestHandle::unenforced().
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

/// Every form but tool calls.
using AnswerSpec = std::variant<RegexSpec, JsonSchemaSpec, JsonObjectSpec, EbnfSpec, ChoiceSpec>;

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
    kAuto,      ///< free text, then perhaps one block of calls, then the end; with `answer`, either that or a block
    kRequired,  ///< "\n\n", then a block
    kInside,    ///< the block's opening line is in the prompt already
  };
  std::vector<Tool> tools;
  Mode mode = Mode::kAuto;
  std::optional<AnswerSpec> answer = {};  ///< kAuto alone: what an answer without calls has to be; none: free text
  bool parallel = true;                   ///< false: exactly one call
  bool v4 = false;                        ///< spelling of V4: `tool_calls` without the space before it
  /// Literal of the added token; spelled-out text of it does not count. Vocabularies without it take the text.
  std::string dsml_token = "｜DSML｜";
  bool operator==(const DsmlSpec&) const = default;
};

using GrammarSpec = std::variant<RegexSpec, JsonSchemaSpec, JsonObjectSpec, EbnfSpec, ChoiceSpec, DsmlSpec>;

}  // namespace grammar

/// A form that an answer cannot leave. It ends with EOS, and only where the form allows an end; `max_tokens`, stop strings and
/// stop tokens of the request can cut it short.
struct StructuredOutput {
  grammar::GrammarSpec form;
  /// The answer is free until this token (`</think>`) has been drawn, and the form begins behind it. Before it the answer cannot
  /// end, and a tool call cannot begin. None: the form begins with the first token.
  std::optional<int32_t> start_after = {};
  /// What the prompt already holds of the form: the answer continues it. Not together with `start_after`.
  std::string prefix = {};
  bool operator==(const StructuredOutput&) const = default;
};

}  // namespace deepinfer
