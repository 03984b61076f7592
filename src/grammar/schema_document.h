#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/json_forms.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {

/// A parsed schema, its references, and schemas derived from its parts. Nodes keep their addresses.
class SchemaDocument {
 public:
  static Result<std::unique_ptr<SchemaDocument>> Parse(std::string_view text, Work& work);

  const Json& root() const { return root_; }
  /// The node a `$ref` of `from` points to; local ones only.
  Result<const Json*> resolve(const Json& from, const std::string& reference) const;
  /// "#/properties/a" of a node.
  std::string path(const Json& node) const;
  /// Takes in a schema made from `origin`, whose references and path it shares.
  const Json& derive(Json schema, const Json& origin);
  /// The automaton of a pattern of JSON Schema (search), kept; null after work has failed.
  Result<const CharDfa*> pattern_dfa(const std::string& pattern);
  Work& work() { return work_; }

 private:
  explicit SchemaDocument(Work& work) : work_(work) {}
  struct Place {
    std::string path;
    std::string base;
  };
  /// The node behind a JSON pointer, or null.
  static const Json* follow(const Json& from, const std::string& fragment);
  void index();
  void index_node(const Json& node, const Place& place, std::vector<std::pair<const Json*, Place>>& todo);

  Work& work_;
  Json root_;
  std::deque<Json> derived_;
  std::unordered_map<const Json*, Place> places_;
  std::map<std::string, const Json*> by_uri_;
  std::map<std::string, CharDfa> patterns_;
};

}  // namespace deepinfer::grammar
