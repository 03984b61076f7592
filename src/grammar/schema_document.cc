#include "grammar/schema_document.h"

namespace deepinfer::grammar {
namespace {

std::string without_fragment(const std::string& uri) { return uri.substr(0, uri.find('#')); }

/// Enough of RFC 3986 for the ids within one document.
std::string join_uri(const std::string& base, const std::string& reference) {
  if (reference.find("://") != std::string::npos || reference.starts_with("urn:") || reference.starts_with("tag:"))
    return reference;
  if (reference.empty() || reference[0] == '#') return without_fragment(base) + reference;
  const size_t scheme = base.find("://");
  if (reference[0] == '/') {
    if (scheme == std::string::npos) return reference;
    return base.substr(0, base.find('/', scheme + 3)) + reference;
  }
  const size_t slash = without_fragment(base).rfind('/');
  if (slash == std::string::npos || (scheme != std::string::npos && slash < scheme + 3))
    return scheme == std::string::npos ? reference : base + "/" + reference;
  return base.substr(0, slash + 1) + reference;
}

std::string decode_pointer_part(std::string_view part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '%' && i + 2 < part.size()) {
      out.push_back(static_cast<char>(std::strtol(std::string(part.substr(i + 1, 2)).c_str(), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(part[i]);
    }
  }
  for (size_t at = 0; (at = out.find('~', at)) != std::string::npos; ++at) {
    if (at + 1 < out.size() && (out[at + 1] == '0' || out[at + 1] == '1')) out.replace(at, 2, out[at + 1] == '0' ? "~" : "/");
  }
  return out;
}

bool holds_values(std::string_view keyword) {
  return keyword == "enum" || keyword == "const" || keyword == "default" || keyword == "examples" || keyword == "required";
}

bool holds_named_schemas(std::string_view keyword) {
  return keyword == "properties" || keyword == "patternProperties" || keyword == "$defs" || keyword == "definitions" ||
         keyword == "dependentSchemas" || keyword == "dependencies";
}

}  // namespace

Result<std::unique_ptr<SchemaDocument>> SchemaDocument::Parse(std::string_view text, Work& work) {
  DI_ASSIGN_OR_RETURN(Json parsed, parse_json(text, "schema", work.limits()));
  if (!parsed.is_object() && !parsed.is_boolean()) return Err(Status::InvalidArgument("schema: neither an object nor a boolean"));
  std::unique_ptr<SchemaDocument> out(new SchemaDocument(work));
  out->root_ = std::move(parsed);
  out->index();
  if (!work.ok()) return Err(work.status());
  return out;
}

void SchemaDocument::index() {
  std::vector<std::pair<const Json*, Place>> todo{{&root_, {"#", ""}}};
  by_uri_[""] = &root_;
  while (!todo.empty() && work_.steps()) {
    const auto [node, place] = std::move(todo.back());
    todo.pop_back();
    index_node(*node, place, todo);
  }
}

void SchemaDocument::index_node(const Json& node, const Place& given, std::vector<std::pair<const Json*, Place>>& todo) {
  Place place = given;
  if (node.is_object()) {
    for (const char* keyword : {"$id", "id"}) {
      if (!node.contains(keyword) || !node[keyword].is_string()) continue;
      const std::string id = join_uri(place.base, node[keyword].get<std::string>());
      if (id.find('#') == std::string::npos || id.back() == '#') place.base = without_fragment(id);
      by_uri_.try_emplace(id.back() == '#' ? without_fragment(id) : id, &node);
    }
    for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
      if (node.contains(keyword) && node[keyword].is_string())
        by_uri_.try_emplace(place.base + "#" + node[keyword].get<std::string>(), &node);
    }
    for (const auto& [key, value] : node.items()) {
      if (!value.is_structured() || holds_values(key)) continue;
      std::string escaped;
      for (const char c : key) escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
      const std::string path = place.path + "/" + escaped;
      if (holds_named_schemas(key) && value.is_object()) {
        places_[&value] = {path, place.base};
        for (const auto& [name, schema] : value.items()) todo.emplace_back(&schema, Place{path + "/" + name, place.base});
      } else {
        todo.emplace_back(&value, Place{path, place.base});
      }
    }
  } else if (node.is_array()) {
    for (size_t i = 0; i < node.size(); ++i) todo.emplace_back(&node[i], Place{place.path + "/" + std::to_string(i), place.base});
  }
  places_[&node] = std::move(place);
}

std::string SchemaDocument::path(const Json& node) const {
  const auto at = places_.find(&node);
  return at == places_.end() ? "#" : at->second.path;
}

const Json& SchemaDocument::derive(Json schema, const Json& origin) {
  const auto at = places_.find(&origin);
  const Place place = at == places_.end() ? Place{"#", ""} : at->second;
  derived_.push_back(std::move(schema));
  std::vector<const Json*> todo{&derived_.back()};
  while (!todo.empty() && work_.steps()) {
    const Json& node = *todo.back();
    todo.pop_back();
    places_[&node] = place;
    if (!node.is_structured()) continue;
    for (const auto& part : node) {
      if (part.is_structured()) todo.push_back(&part);
    }
  }
  return derived_.back();
}

Result<const Json*> SchemaDocument::resolve(const Json& from, const std::string& reference) const {
  const auto at = places_.find(&from);
  const std::string uri = join_uri(at == places_.end() ? "" : at->second.base, reference);
  const auto missing = [&] {
    return Err(Status::InvalidArgument("{}: $ref \"{}\" points to nothing in this schema", path(from), reference));
  };
  const size_t hash = uri.find('#');
  const std::string fragment = hash == std::string::npos ? "" : uri.substr(hash + 1);
  if (fragment.empty() || fragment[0] != '/') {
    const auto found = by_uri_.find(fragment.empty() ? without_fragment(uri) : uri);
    if (found == by_uri_.end()) return missing();
    return found->second;
  }
  const auto base = by_uri_.find(without_fragment(uri));
  if (base == by_uri_.end()) return missing();
  const auto found = follow(*base->second, fragment);
  // Older schemas give parts an id and still mean the document by "#/...".
  if (found == nullptr && reference[0] == '#' && base->second != &root_) {
    if (const Json* outer = follow(root_, fragment)) return outer;
  }
  if (found == nullptr) return missing();
  return found;
}

const Json* SchemaDocument::follow(const Json& from, const std::string& fragment) {
  const Json* node = &from;
  std::string_view rest = std::string_view(fragment).substr(1);
  while (true) {
    const std::string part = decode_pointer_part(rest.substr(0, rest.find('/')));
    if (node->is_object() && node->contains(part)) {
      node = &(*node)[part];
    } else if (node->is_array() && !part.empty() && part.size() < 9 &&
               part.find_first_not_of("0123456789") == std::string::npos && std::stoul(part) < node->size()) {
      node = &(*node)[std::stoul(part)];
    } else {
      return nullptr;
    }
    if (rest.find('/') == std::string_view::npos) return node;
    rest.remove_prefix(rest.find('/') + 1);
  }
}

Result<const CharDfa*> SchemaDocument::pattern_dfa(const std::string& pattern) {
  const auto [at, added] = patterns_.try_emplace(pattern);
  if (!added) return &at->second;
  DI_ASSIGN_OR_RETURN(const Regex regex, parse_regex(pattern, RegexScope::kSearch, work_.limits()));
  at->second = dfa_of_regex(regex, work_);
  if (!work_.ok()) return Err(work_.status());
  return &at->second;
}

}  // namespace deepinfer::grammar
