#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "grammar/schema_document.h"

namespace deepinfer::grammar {

/// Lowers a JSON Schema to a grammar. A place in the output is described by a conjunction of schemas: `$ref` and allOf add to it,
/// anyOf and oneOf multiply it into alternatives, and a conjunction without any of those is lowered type by type. Equal
/// conjunctions share a rule, which is how recursion ends.
class SchemaCompiler {
 public:
  SchemaCompiler(SchemaDocument& document, JsonForms& forms, bool strict)
      : document_(document), forms_(forms), grammar_(forms.grammar()), work_(document.work()), strict_(strict) {}

  /// A value that the document allows. Bodies of rules are complete when it returns.
  Result<ExprId> compile();
  /// For callers that place parts themselves (DSML): compile_parts as often as wanted, then finish.
  Result<ExprId> finish(ExprId value);
  const std::vector<std::string>& ignored() const { return ignored_; }

  /// What one schema contributes to a conjunction.
  struct Part {
    enum class Mode : uint8_t {
      kFull,   ///< all of it
      kCore,   ///< all but what combines schemas ($ref, allOf, anyOf, oneOf, not, if, dependent...)
      kAnyOf,  ///< its anyOf
      kOneOf,  ///< its oneOf
    };
    const Json* schema;
    Mode mode = Mode::kFull;
    auto operator<=>(const Part&) const = default;
  };
  using Parts = std::vector<Part>;
  /// A conjunction with references and allOf resolved.
  struct Flat {
    std::vector<const Json*> cores;
    Parts groups;
    bool never = false;
    bool single = false;  ///< all of it comes from one schema
  };
  struct Types {
    bool null = true, boolean = true, number = true, fraction = true, string = true, array = true, object = true;
  };

  ExprId compile_parts(const Parts& parts);
  Flat flatten(const Parts& parts);
  Types types_of(const Flat& flat);
  /// The strings of a conjunction, as the characters between the quotes; `within`: only those of this automaton.
  ExprId string_body(const Flat& flat, Spelling spelling, const CharDfa* within = nullptr);
  /// How members are written.
  struct MemberStyle {
    FunctionRef<ExprId(const std::string& name, const Parts& value)> named;
    FunctionRef<ExprId(const CharDfa* names, const Parts& value)> other;  ///< null: any name
    ExprId separator;
  };
  /// The members of the objects of a conjunction. False where no object is allowed; then, or with a `max` of 0, nothing is
  /// written.
  bool object_members(const Flat& flat, const MemberStyle& style, Members& members, bool& can_be_empty);
  std::vector<Parts> alternatives(const Part& group);
  /// A keyword that is not enforced: an error, or a note.
  void unsupported(const Json& schema, std::string_view keyword, std::string_view why);
  void fail(Status status) { work_.fail(std::move(status)); }
  const Json& root() const { return document_.root(); }
  /// Values of enum and const, if there are any, that the whole conjunction allows.
  bool listed_values(const Flat& flat, std::vector<const Json*>& values);

 private:
  void note(std::string text);
  void check_keywords(const Json& schema);
  void flatten_schema(const Json& schema, Flat& flat, std::vector<Part>& todo);
  void flatten_conditions(const Json& schema, std::vector<Part>& todo);
  void build_rules();
  ExprId build(const Flat& flat);
  ExprId build_group(const Flat& flat);
  ExprId build_types(const Flat& flat);
  bool is_scalar(const Flat& flat);
  /// Whether `unevaluated...` of this schema sees all that is evaluated; if not, it is reported as unsupported.
  bool sees_all(const Flat& flat, const Json& schema, const char* keyword);

  // schema_scalars.cc
  ExprId build_number(const Flat& flat, bool fraction);
  ExprId build_string(const Flat& flat);
  // schema_objects.cc
  ExprId build_object(const Flat& flat);
  ExprId build_array(const Flat& flat);
  struct ObjectView;
  ObjectView view_object(const Flat& flat);
  void collect_member(const Flat& flat, const ObjectView& view, const std::string& name, Parts& parts);
  ExprId other_members(const Flat& flat, const ObjectView& view, const MemberStyle& style);
  CharDfa name_dfa(const Flat& flat);
  // schema_disjoint.cc
  bool disjoint(const Json& a, const Json& b, int depth);
  bool disjoint_objects(const Flat& a, const Flat& b, int depth);

  /// Whole number of a keyword, over all schemas the largest (smallest).
  uint32_t highest(const Flat& flat, const char* keyword, uint32_t otherwise);
  uint32_t lowest(const Flat& flat, const char* keyword, uint32_t otherwise);
  uint32_t count_of(const Json& schema, const char* keyword);

  SchemaDocument& document_;
  JsonForms& forms_;
  Grammar& grammar_;
  Work& work_;
  bool strict_;
  std::map<std::pair<std::vector<const Json*>, Parts>, RuleId> rules_;
  std::vector<std::pair<RuleId, Flat>> pending_;
  std::set<const Json*> checked_;
  std::map<std::pair<const Json*, std::string>, const Json*> derived_;
  std::vector<std::string> ignored_;
  std::set<std::string> noted_;
  int64_t alternatives_ = 0;
};

}  // namespace deepinfer::grammar
