#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "grammar/support.h"
#include "tokenizer/official_tokenizer.h"

namespace deepinfer {
namespace {

using grammar::JsonSchemaSpec;
using namespace testing;  // NOLINT(google-build-using-namespace): the fixture

/// The text token by token, each one in the mask before it is accepted.
bool accepts_tokens(const std::shared_ptr<const CompiledGrammar>& g, const Tokenizer& tokenizer, const std::string& text) {
  GrammarMatcher matcher(g);
  std::vector<uint32_t> mask(g->vocabulary().mask_words());
  for (const int32_t id : tokenizer.encode(text)) {
    matcher.fill_mask(mask);
    const bool allowed = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
    if (allowed != matcher.accept(id)) ADD_FAILURE() << "mask and accept differ at token " << id << " of " << text;
    if (!allowed) return false;
  }
  return matcher.can_stop();
}

TEST(Maskbench, Sample) {
  const std::string folder = public_vectors("maskbench-sample");
  if (folder.empty()) GTEST_SKIP() << "maskbench-sample is absent: set DEEPINFER_PUBLIC_VECTORS";
  const auto tokenizer = official_tokenizer("v4.1");
  if (tokenizer == nullptr) GTEST_SKIP() << official_tokenizer_missing();
  int files = 0;
  int passed = 0;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    if (path.extension() != ".json") continue;
    ++files;
    const Json file = read_json_file(path);
    auto made = compile_grammar(JsonSchemaSpec{file["schema"].dump()}, large_vocabulary());
    if (!made) {
      std::printf("refused %s: %s\n", path.filename().c_str(), made.error().message().c_str());
      EXPECT_NE(made.error().code(), StatusCode::kInternal);
      continue;
    }
    bool right = true;
    for (const Json& test : file["tests"]) {
      const auto text = spelling_of(*made, file["schema"], test["data"]);
      const bool accepted = text.has_value() && accepts_tokens(*made, *tokenizer, *text);
      if (accepted == test["valid"].get<bool>()) continue;
      right = false;
      ADD_FAILURE() << path.filename() << (accepted ? ": accepted, but invalid: " : ": not accepted: ")
                    << test["description"].dump() << " " << test["data"].dump().substr(0, 300);
    }
    passed += right ? 1 : 0;
  }
  std::printf("maskbench: %d of %d pass\n", passed, files);
  EXPECT_GE(passed, files * 85 / 100);
}

}  // namespace
}  // namespace deepinfer
