#include <nlohmann/json.hpp>

#include "grammar/dsml.h"
#include "grammar/ebnf.h"
#include "grammar/live.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"

namespace deepinfer::grammar {
namespace {

struct FrontEnd {
  Grammar& grammar;
  const TokenVocabulary& vocabulary;
  std::vector<std::string>& ignored;

  Result<ExprId> operator()(const RegexSpec& spec) const {
    DI_ASSIGN_OR_RETURN(const Regex regex, parse_regex(spec.pattern, RegexScope::kWhole, grammar.work().limits()));
    return lower_regex(regex, Spelling::kText, grammar);
  }
  Result<ExprId> operator()(const JsonSchemaSpec& spec) const {
    DI_ASSIGN_OR_RETURN(const auto document, SchemaDocument::Parse(spec.schema, grammar.work()));
    JsonForms forms(grammar, spec.space);
    SchemaCompiler compiler(*document, forms, spec.strict);
    auto out = compiler.compile();
    ignored.insert(ignored.end(), compiler.ignored().begin(), compiler.ignored().end());
    return out;
  }
  Result<ExprId> operator()(const JsonObjectSpec& spec) const { return JsonForms(grammar, spec.space).any_object(); }
  Result<ExprId> operator()(const EbnfSpec& spec) const { return lower_ebnf(spec.text, grammar); }
  Result<ExprId> operator()(const ChoiceSpec& spec) const {
    if (spec.choices.empty()) return Err(Status::InvalidArgument("choice: no choices"));
    std::vector<ExprId> texts;
    for (size_t i = 0; i < spec.choices.size(); ++i) {
      if (const auto codes = decode_utf8(spec.choices[i]); !codes)
        return Err(codes.error().with_context(fmt::format("choice[{}]", i)));
      texts.push_back(grammar.literal(spec.choices[i]));
    }
    return grammar.alt(std::move(texts));
  }
  Result<ExprId> operator()(const DsmlSpec& spec) const {
    if (!spec.answer.has_value()) return lower_dsml(spec, vocabulary, grammar, ignored);
    if (spec.mode != DsmlSpec::Mode::kAuto)
      return Err(Status::InvalidArgument("tools: an answer beside the calls needs a free choice between them"));
    DI_ASSIGN_OR_RETURN(const ExprId answer, std::visit(*this, *spec.answer));
    DsmlSpec calls = spec;
    calls.mode = DsmlSpec::Mode::kRequired;
    DI_ASSIGN_OR_RETURN(const ExprId block, lower_dsml(calls, vocabulary, grammar, ignored));
    return grammar.alt({answer, block});
  }
};

}  // namespace

Result<std::shared_ptr<const CompiledGrammar>> compile_grammar(const GrammarSpec& spec,
                                                               std::shared_ptr<const TokenVocabulary> vocabulary,
                                                               const CompileLimits& limits) {
  std::shared_ptr<CompiledGrammar> out(new CompiledGrammar());
  Work work(limits);
  Grammar grammar(work);
  grammar.root = grammar.new_rule("root");
  Result<ExprId> body = grammar.never();
  try {
    body = std::visit(FrontEnd{grammar, *vocabulary, out->ignored_}, spec);
  } catch (const nlohmann::json::exception& error) {
    // Keywords are checked before they are read; this is the net below it.
    return Err(Status::InvalidArgument("schema: {}", error.what()));
  }
  DI_RETURN_IF_ERROR(body ? Status() : body.error());  // which may know more about where it was
  if (!work.ok()) return Err(work.status());
  grammar.set_body(grammar.root, *body);
  DI_ASSIGN_OR_RETURN(out->program_, Program::Make(grammar, *vocabulary));
  out->vocabulary_ = std::move(vocabulary);
  out->limits_ = limits;
  out->live_ = std::make_shared<CompiledGrammar::Live>(out->program_);
  return std::shared_ptr<const CompiledGrammar>(std::move(out));
}

std::string spec_key(const GrammarSpec& spec) {
  std::string key;
  const auto add = [&](std::string_view text) { key += fmt::format("{}:{}", text.size(), text); };
  struct Visitor {
    decltype(add)& put;
    void operator()(const RegexSpec& s) const { put("regex"), put(s.pattern); }
    void operator()(const JsonSchemaSpec& s) const {
      put(fmt::format("schema {} {}", s.strict, static_cast<int>(s.space))), put(s.schema);
    }
    void operator()(const JsonObjectSpec& s) const { put(fmt::format("object {}", static_cast<int>(s.space))); }
    void operator()(const EbnfSpec& s) const { put("ebnf"), put(s.text); }
    void operator()(const ChoiceSpec& s) const {
      put("choice");
      for (const auto& choice : s.choices) put(choice);
    }
    void operator()(const DsmlSpec& s) const {
      put(fmt::format("dsml {} {} {}", static_cast<int>(s.mode), s.parallel, s.v4)), put(s.dsml_token);
      for (const auto& tool : s.tools) put(tool.name), put(tool.parameters), put(tool.strict ? "strict" : "free");
      if (s.answer.has_value()) std::visit(*this, *s.answer);
    }
  };
  std::visit(Visitor{add}, spec);
  return key;
}

}  // namespace deepinfer::grammar
