#include "grammar/support.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "testing/paths.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer::testing {

std::shared_ptr<const TokenVocabulary> small_vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* text : {"the",       "name",     "\"name",    "\":",  "\": \"", "\",",      "\", \"",
                             "{\"",       "\"}",      "}}",        "]}",   "],",     "[[",       "[{",
                             "123",       "12",       "00",        "0.",   "true",   "false",    "null",
                             "tr",        "abc",      "ab",        "bc",   "aa",     "aaaa",     "é",
                             "\xC3\xA9t", "\xE4\xB8", "\xAD\xE6",  "中文", " the",   "\n\n",     "\n",
                             "\\\"",      "\\u00",    "-1",        "e+",   ".5",     "\"a\"",    "\"b\":",
                             "  ",        "    ",     "</",        "<",    ">\n",    " name=\"", "\" string=\"true\">",
                             "calls",     " invoke",  " parameter"}) {
      tokens.emplace_back(text);
    }
    const auto dsml = static_cast<int32_t>(tokens.size());
    tokens.emplace_back("｜DSML｜");
    const auto stop = static_cast<int32_t>(tokens.size());
    tokens.emplace_back("<end>");
    auto made = TokenVocabulary::Make(std::move(tokens), {dsml, stop}, {stop});
    DI_CHECK(made.has_value(), "{}", made.error().message());
    return *made;
  }();
  return vocabulary;
}

std::shared_ptr<const TokenVocabulary> large_vocabulary() {
  static const auto vocabulary = []() -> std::shared_ptr<const TokenVocabulary> {
    const auto tokenizer = official_tokenizer("v4.1");
    if (tokenizer == nullptr) return nullptr;
    auto made = TokenVocabulary::Make(*tokenizer, {1});
    DI_CHECK(made.has_value(), "{}", made.error().message());
    return *made;
  }();
  return vocabulary;
}

std::shared_ptr<const CompiledGrammar> compile(const GrammarSpec& spec,
                                               const std::shared_ptr<const TokenVocabulary>& vocabulary) {
  auto made = compile_grammar(spec, vocabulary);
  DI_CHECK(made.has_value(), "{}", made.error().message());
  return *made;
}

std::string compile_error(const GrammarSpec& spec) {
  const auto made = compile_grammar(spec, small_vocabulary());
  return made ? "" : made.error().message();
}

bool accepts(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  return matcher.accept_bytes(text) && matcher.can_stop();
}

bool accepts_prefix(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  return GrammarMatcher(grammar).accept_bytes(text);
}

namespace {

/// Writes a value piece by piece into a matcher, going back where an order of members fails.
class Speller {
 public:
  /// `local`: objects in the order of the one list of properties that fits best; otherwise as names first appear in the schema.
  Speller(const std::shared_ptr<const CompiledGrammar>& grammar, const Json& schema, bool local)
      : matcher_(grammar), local_(local) {
    collect(schema);
  }

  std::optional<std::string> spell(const Json& value) {
    std::string out;
    const bool done = write(value, [&] { return matcher_.can_stop(); });
    for (const auto& piece : pieces_) out += piece;
    return done ? std::optional(out) : std::nullopt;
  }

 private:
  using Then = std::function<bool()>;

  void collect(const Json& schema) {
    if (schema.is_object()) {
      for (const auto& [key, value] : schema.items()) {
        if ((key == "properties" || key == "required") && value.is_structured()) {
          if (value.is_object()) {
            auto& list = lists_.emplace_back();
            for (const auto& [name, part] : value.items()) {
              order_.try_emplace(name, order_.size());
              list.try_emplace(name, list.size());
            }
          }
        }
        collect(value);
      }
    } else if (schema.is_array()) {
      for (const Json& part : schema) collect(part);
    }
  }

  bool put(const std::string& text, const Then& then) {
    if (++steps_ > 60000 || !matcher_.accept_bytes(text)) return false;
    pieces_.push_back(text);
    if (then()) return true;
    pieces_.pop_back();
    matcher_.rollback(1);
    return false;
  }

  static std::string scalar(const Json& value) {
    if (value.is_number_float()) {
      const double number = value.get<double>();
      if (number == static_cast<double>(static_cast<int64_t>(number)) && std::abs(number) < 1e15)
        return std::to_string(static_cast<int64_t>(number));
      std::string text = value.dump();
      if (text.find('e') == std::string::npos) return text;
      text = fmt::format("{:.{}f}", number, std::abs(number) < 1 ? 30 : 0);
      if (std::abs(number) < 1) text.erase(text.find_last_not_of('0') + 1);
      return std::abs(number) < 1e300 && std::stod(text) == number ? text : value.dump();
    }
    return value.dump();
  }

  bool write(const Json& value, const Then& then) {
    if (value.is_array()) {
      return put("[", [&] { return items(value, 0, then); });
    }
    if (value.is_object()) {
      std::vector<std::string> keys;
      for (const auto& [key, item] : value.items()) keys.push_back(key);
      // The order of the list of properties that knows most of the keys.
      const std::map<std::string, size_t>* best = &order_;
      size_t most = 0;
      for (const auto& list : lists_) {
        const auto known =
            static_cast<size_t>(std::count_if(keys.begin(), keys.end(), [&](const auto& key) { return list.contains(key); }));
        if (local_ && known > most) most = known, best = &list;
      }
      const auto rank = [&](const std::string& key) {
        return best->contains(key) ? best->at(key) : order_.contains(key) ? 100000 + order_.at(key) : 200000;
      };
      std::stable_sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
      return put("{", [&] { return members(value, keys, true, then); });
    }
    return put(scalar(value), then) || (value.is_number_float() && put(value.dump(), then));
  }

  bool items(const Json& value, size_t index, const Then& then) {
    if (index == value.size()) return put("]", then);
    const auto item = [&] { return write(value[index], [&] { return items(value, index + 1, then); }); };
    return index == 0 ? item() : put(",", item);
  }

  bool members(const Json& value, std::vector<std::string> keys, bool first, const Then& then) {
    if (keys.empty()) return put("}", then);
    for (size_t i = 0; i < keys.size(); ++i) {
      std::vector<std::string> rest = keys;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      const std::string text = (first ? "" : ",") + Json(keys[i]).dump() + ":";
      if (put(text, [&] { return write(value[keys[i]], [&] { return members(value, rest, false, then); }); })) return true;
    }
    return false;
  }

  GrammarMatcher matcher_;
  bool local_;
  std::map<std::string, size_t> order_;
  std::vector<std::map<std::string, size_t>> lists_;
  std::vector<std::string> pieces_;
  int steps_ = 0;
};

}  // namespace

std::optional<std::string> spelling_of(const std::shared_ptr<const CompiledGrammar>& grammar, const Json& schema,
                                       const Json& value) {
  const auto spelled = Speller(grammar, schema, true).spell(value);
  return spelled ? spelled : Speller(grammar, schema, false).spell(value);
}

std::string public_vectors(const std::string& name) {
  const char* set = std::getenv("DEEPINFER_PUBLIC_VECTORS");
  const std::string root = set != nullptr ? set : shared_dir() + "/vectors/public";
  const std::string path = root + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}

Json read_json_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return Json::parse(text.str());
}

std::optional<std::string> generate(const std::shared_ptr<const CompiledGrammar>& grammar, Random& random, int limit) {
  const TokenVocabulary& vocabulary = grammar->vocabulary();
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> mask(vocabulary.mask_words());
  std::string out;
  // Beyond the limit only tokens that tend to close things are drawn where there are any.
  const std::string closers = "\"}]0123456789tfn:,elsuru{[>\n@abxyz-.";
  for (int step = 0; step < limit * 20; ++step) {
    matcher.fill_mask(mask);
    std::vector<int32_t> allowed;
    for (size_t i = 0; i < mask.size(); ++i) {
      for (uint32_t word = mask[i]; word != 0; word &= word - 1)
        allowed.push_back(static_cast<int32_t>(i * 32) + std::countr_zero(word));
    }
    if (allowed.empty()) return std::nullopt;
    int32_t token = allowed[static_cast<size_t>(random.below(static_cast<int64_t>(allowed.size())))];
    if (step >= limit) {
      if (matcher.can_stop()) return out;
      for (const char closer : closers) {
        const auto at = std::find_if(allowed.begin(), allowed.end(),
                                     [&](int32_t id) { return vocabulary.bytes(id) == std::string_view(&closer, 1); });
        if (at != allowed.end() && random.below(4) != 0) {
          token = *at;
          break;
        }
      }
    }
    if (vocabulary.is_stop(token)) return matcher.can_stop() && matcher.accept(token) ? std::optional(out) : std::nullopt;
    if (!matcher.accept(token)) return std::nullopt;
    const std::string_view bytes = vocabulary.bytes(token);
    out += bytes.starts_with('\xFF') ? "｜DSML｜" : std::string(bytes);
  }
  return matcher.can_stop() ? std::optional(out) : std::optional<std::string>("(endless)");
}

}  // namespace deepinfer::testing
