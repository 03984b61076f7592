#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "grammar/support.h"

namespace deepinfer {
namespace {

using grammar::JsonSchemaSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

struct Row {
  int schemas = 0;
  int refused = 0;
  int valid = 0, accepted = 0;
  int invalid = 0, rejected = 0;
  std::vector<std::string> wrong;
  std::map<std::string, int> reasons;
};

/// The suite takes `format` as an annotation; here it is enforced. Vocabularies that switch keywords off are not looked at.
bool expected_difference(const std::string& file, const std::string& description) {
  if (file == "vocabulary") return description.find("no validation") != std::string::npos;
  return file == "format" && description.find("only an annotation") != std::string::npos;
}

TEST(SchemaSuite, EveryKeyword) {
  const std::string folder = public_vectors("json-schema-test-suite/tests/draft2020-12");
  if (folder.empty()) GTEST_SKIP() << "the JSON-Schema-Test-Suite is absent: set DEEPINFER_PUBLIC_VECTORS";
  std::map<std::string, Row> rows;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem();
    Row& row = rows[name];
    for (const Json& group : read_json_file(entry.path())) {
      ++row.schemas;
      auto made = compile_grammar(JsonSchemaSpec{group["schema"].dump()}, small_vocabulary());
      if (!made) {
        ++row.refused;
        ++row.reasons[made.error().message()];
        // A schema without any valid value is refused: nothing valid may be among its tests.
        if (made.error().message() == "the grammar allows no text at all") {
          for (const Json& test : group["tests"]) {
            if (test["valid"].get<bool>())
              row.wrong.push_back(group["description"].get<std::string>() + ": refused as impossible");
          }
        }
        continue;
      }
      for (const Json& test : group["tests"]) {
        const std::string what = group["description"].get<std::string>() + ": " + test["description"].get<std::string>();
        if (expected_difference(name, test["description"].get<std::string>())) continue;
        const bool accepted = spelling_of(*made, group["schema"], test["data"]).has_value();
        const bool valid = test["valid"].get<bool>();
        (valid ? row.valid : row.invalid) += 1;
        if (accepted == valid) (valid ? row.accepted : row.rejected) += 1;
        if (accepted != valid) row.wrong.push_back((valid ? "not accepted: " : "not rejected: ") + what);
      }
    }
  }
  for (const auto& [name, row] : rows) {
    std::printf("| %s | %d of %d | %d of %d | %d of %d |\n", name.c_str(), row.schemas - row.refused, row.schemas, row.accepted,
                row.valid, row.rejected, row.invalid);
  }
  for (const auto& [name, row] : rows) {
    for (const auto& wrong : row.wrong) ADD_FAILURE() << name << ": " << wrong;
    if (std::getenv("DEEPINFER_VERBOSE") == nullptr) continue;
    for (const auto& [reason, count] : row.reasons) std::printf("refused %s: %s\n", name.c_str(), reason.c_str());
  }
}

}  // namespace
}  // namespace deepinfer
