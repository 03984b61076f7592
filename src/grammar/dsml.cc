#include "grammar/dsml.h"

#include "grammar/schema_compiler.h"

namespace deepinfer::grammar {
namespace {

constexpr int kMaxAlternativeDepth = 8;

class DsmlCompiler {
 public:
  DsmlCompiler(const DsmlSpec& spec, const TokenVocabulary& vocabulary, Grammar& grammar)
      : spec_(spec), grammar_(grammar), forms_(grammar, JsonSpace::kFlexible) {
    const auto id = vocabulary.added_token(spec.dsml_token);
    mark_ = id ? grammar.token(*id) : grammar.literal(spec.dsml_token);
    // Raw text must not look like a tag to the parser, which works on text.
    closer_free_ = without("</" + spec.dsml_token);
    opener_free_ = without("<" + spec.dsml_token);
  }

  Result<ExprId> compile(std::vector<std::string>& ignored) {
    std::vector<ExprId> calls;
    for (size_t i = 0; i < spec_.tools.size(); ++i) {
      const auto& tool = spec_.tools[i];
      if (tool.name.empty() || tool.name.find_first_of("\"\n<>") != std::string::npos) {
        return Err(Status::InvalidArgument("tools[{}].name: \"{}\" can't be written in the tool-call form", i, tool.name));
      }
      DI_ASSIGN_OR_RETURN(const ExprId arguments, arguments_of(tool, ignored));
      calls.push_back(grammar_.seq(
          {tag("<", "invoke", " name=\"" + tool.name + "\">\n"), arguments, grammar_.literal("\n"), tag("</", "invoke", ">")}));
    }
    if (calls.empty()) return Err(Status::InvalidArgument("tools: none"));
    const RuleId call_rule = grammar_.new_rule("tool call");
    grammar_.set_body(call_rule, grammar_.alt(std::move(calls)));
    const ExprId call = grammar_.rule(call_rule);
    std::vector<ExprId> list{call};
    if (spec_.parallel) list.push_back(grammar_.repeat(grammar_.seq({grammar_.literal("\n"), call}), 0, kUnbounded));
    list.push_back(grammar_.literal("\n"));
    list.push_back(block_tag("</", ">"));
    const ExprId inside = grammar_.seq(std::move(list));
    const ExprId block = grammar_.seq({block_tag("<", ">\n"), inside});
    switch (spec_.mode) {
      case DsmlSpec::Mode::kInside:
        return inside;
      case DsmlSpec::Mode::kRequired:
        return grammar_.seq({grammar_.literal("\n\n"), block});
      case DsmlSpec::Mode::kAuto:
        break;
    }
    return grammar_.seq({grammar_.dfa(opener_free_, Spelling::kText), grammar_.optional(block)});
  }

 private:
  CharDfa without(const std::string& text) {
    CharNfa nfa;
    nfa.start = nfa.add();
    nfa.nodes[nfa.start].moves.emplace_back(CodeSet::All(), nfa.start);
    uint32_t at = nfa.start;
    for (const uint32_t code : decode_utf8(text).value_or(std::vector<uint32_t>())) {
      const uint32_t next = nfa.add();
      nfa.nodes[at].moves.emplace_back(CodeSet::One(code), next);
      at = next;
    }
    nfa.accept = at;
    nfa.nodes[at].moves.emplace_back(CodeSet::All(), at);
    return complement(determinize(nfa, grammar_.work()), grammar_.work());
  }

  ExprId tag(std::string_view open, std::string_view name, const std::string& rest) {
    return grammar_.seq(
        {grammar_.literal(open), mark_, grammar_.literal(fmt::format("{}{}{}", spec_.v4 ? "" : " ", name, rest))});
  }
  ExprId block_tag(std::string_view open, const std::string& rest) { return tag(open, spec_.v4 ? "tool_calls" : "calls", rest); }

  ExprId parameter(const std::string& key, ExprId name_and_value) {
    return grammar_.seq({tag("<", "parameter", " name=\"" + key), name_and_value, tag("</", "parameter", ">")});
  }
  ExprId raw(ExprId text) { return grammar_.seq({grammar_.literal("\" string=\"true\">"), text}); }
  ExprId json(ExprId value) { return grammar_.seq({grammar_.literal("\" string=\"false\">"), value}); }

  ExprId free_name() {
    return grammar_.repeat(grammar_.chars(CodeSet({{'"', '"'}, {'<', '<'}, {'>', '>'}, {0, 0x1F}}).complement(), Spelling::kText),
                           1, 256);
  }

  Result<ExprId> arguments_of(const DsmlSpec::Tool& tool, std::vector<std::string>& ignored) {
    if (!tool.strict) {
      const ExprId value =
          grammar_.alt({raw(grammar_.dfa(closer_free_, Spelling::kText)),
                        json(grammar_.alt({forms_.number(), forms_.any_object(), forms_.any_array(), grammar_.literal("true"),
                                           grammar_.literal("false"), grammar_.literal("null")}))});
      const ExprId one = parameter("", grammar_.seq({free_name(), value}));
      return grammar_.optional(grammar_.seq({one, grammar_.repeat(grammar_.seq({grammar_.literal("\n"), one}), 0, kUnbounded)}));
    }
    auto document = SchemaDocument::Parse(tool.parameters.empty() ? "{\"type\":\"object\"}" : tool.parameters, grammar_.work());
    if (!document) return Err(document.error().with_context(tool.name));
    documents_.push_back(*std::move(document));
    SchemaCompiler compiler(*documents_.back(), forms_, true);
    const auto out = arguments(compiler);
    const auto finished = compiler.finish(out);
    if (!finished) return Err(finished.error().with_context(fmt::format("tool {}", tool.name)));
    ignored.insert(ignored.end(), compiler.ignored().begin(), compiler.ignored().end());
    return *finished;
  }

  ExprId arguments(SchemaCompiler& compiler) {
    const auto flat = compiler.flatten({{&compiler.root()}});
    if (flat.never) return grammar_.never();
    if (!flat.groups.empty()) {
      compiler.unsupported(compiler.root(), "anyOf", "alternatives of whole argument lists are not supported");
      return grammar_.never();
    }
    const auto named = [&](const std::string& name, const SchemaCompiler::Parts& value) {
      if (name.find_first_of("\"<>\n") != std::string::npos) {
        compiler.fail(Status::Unimplemented("argument name \"{}\" can't be written in the tool-call form", name));
        return grammar_.never();
      }
      const ExprId text = value_of(compiler, value, 0);
      return text == grammar_.never() ? text : parameter(name, text);
    };
    const auto other = [&](const CharDfa* names, const SchemaCompiler::Parts& value) {
      Work& work = grammar_.work();
      const auto any = parse_regex("[^\"<>\\x00-\\x1f]{1,256}", RegexScope::kWhole, work.limits());
      const ExprId key =
          names == nullptr ? free_name() : grammar_.dfa(intersect(dfa_of_regex(*any, work), *names, work), Spelling::kText);
      return parameter("", grammar_.seq({key, value_of(compiler, value, 0)}));
    };
    Members members;
    bool can_be_empty = false;
    if (!compiler.object_members(flat, {named, other, grammar_.literal("\n")}, members, can_be_empty)) {
      compiler.fail(Status::InvalidArgument("no arguments are possible"));
      return grammar_.never();
    }
    if (members.max == 0) return grammar_.empty();
    const ExprId list = grammar_.members(std::move(members));
    return can_be_empty ? grammar_.optional(list) : list;
  }

  /// `" string="...">` and the value: raw text for strings, JSON for the rest.
  ExprId value_of(SchemaCompiler& compiler, const SchemaCompiler::Parts& parts, int depth) {
    const auto flat = compiler.flatten(parts);
    if (flat.never) return grammar_.never();
    std::vector<ExprId> out;
    std::vector<const Json*> values;
    if (compiler.listed_values(flat, values)) {
      for (const Json* value : values) {
        if (!value->is_string()) {
          out.push_back(json(forms_.value(*value)));
        } else if (closer_free_.matches(decode_utf8(value->get<std::string>()).value_or(std::vector<uint32_t>()))) {
          out.push_back(raw(grammar_.literal(value->get<std::string>())));
        }
      }
      return grammar_.alt(std::move(out));
    }
    if (!flat.groups.empty()) {
      if (depth > kMaxAlternativeDepth) {
        compiler.unsupported(*flat.groups.front().schema, "anyOf", "is nested too deep");
        return grammar_.never();
      }
      SchemaCompiler::Parts common;
      for (const Json* schema : flat.cores) common.push_back({schema, SchemaCompiler::Part::Mode::kCore});
      common.insert(common.end(), flat.groups.begin() + 1, flat.groups.end());
      for (const auto& alternative : compiler.alternatives(flat.groups.front())) {
        SchemaCompiler::Parts chosen = common;
        chosen.insert(chosen.end(), alternative.begin(), alternative.end());
        out.push_back(value_of(compiler, chosen, depth + 1));
      }
      return grammar_.alt(std::move(out));
    }
    if (compiler.types_of(flat).string) out.push_back(raw(compiler.string_body(flat, Spelling::kText, &closer_free_)));
    static const Json kNoString{{"type", Json::array({"null", "boolean", "number", "array", "object"})}};
    SchemaCompiler::Parts rest = parts;
    rest.push_back({&kNoString});
    const auto types = compiler.types_of(compiler.flatten(rest));
    if (types.null || types.boolean || types.number || types.array || types.object)
      out.push_back(json(compiler.compile_parts(rest)));
    return grammar_.alt(std::move(out));
  }

  const DsmlSpec& spec_;
  Grammar& grammar_;
  JsonForms forms_;
  ExprId mark_;
  CharDfa closer_free_;
  CharDfa opener_free_;
  std::vector<std::unique_ptr<SchemaDocument>> documents_;
};

}  // namespace

Result<ExprId> lower_dsml(const DsmlSpec& spec, const TokenVocabulary& vocabulary, Grammar& grammar,
                          std::vector<std::string>& ignored) {
  return DsmlCompiler(spec, vocabulary, grammar).compile(ignored);
}

}  // namespace deepinfer::grammar
