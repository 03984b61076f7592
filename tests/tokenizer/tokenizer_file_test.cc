#include "tokenizer/tokenizer_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "testing/paths.h"
#include "tokenizer/official_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer {
namespace {

using nlohmann::json;

json nano() { return json::parse(testing::nano_tokenizer_json()); }

/// Parsing fails with one line that starts with the source and contains `part`.
void expect_error(const std::string& text, const std::string& part) {
  const auto result = Tokenizer::Parse(text, "file.json");
  ASSERT_FALSE(result.has_value()) << part;
  const std::string& message = result.error().message();
  EXPECT_EQ(message.rfind("file.json: ", 0), 0u) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 500u);
}

void expect_change_rejected(const std::function<void(json&)>& change, const std::string& part) {
  json file = nano();
  change(file);
  expect_error(file.dump(), part);
}

TEST(TokenizerFileTest, ReadsNano) {
  const auto file = TokenizerFile::Parse(testing::nano_tokenizer_json(), "nano");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  EXPECT_EQ(file->tokens.size(), 4096u);
  EXPECT_EQ(file->merges.size(), 3819u);
}

TEST(TokenizerFileTest, TakesMergesAsPairs) {
  json file = nano();
  for (json& merge : file["model"]["merges"]) {
    const std::string text = merge;
    const size_t blank = text.find(' ');
    merge = json::array({text.substr(0, blank), text.substr(blank + 1)});
  }
  const auto tokenizer = Tokenizer::Parse(file.dump(), "pairs");
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message();
  const std::string text = "The answer is 42.\n";
  EXPECT_EQ((*tokenizer)->encode(text), testing::nano_tokenizer()->encode(text));
  // Fields that newer files leave out or spell out.
  file["model"]["ignore_merges"] = false;
  file["post_processor"] = nullptr;
  file["normalizer"] = nullptr;
  file["model"]["continuing_subword_prefix"] = "";
  EXPECT_TRUE(Tokenizer::Parse(file.dump(), "pairs").has_value());
}

TEST(TokenizerFileTest, BrokenJson) {
  const std::string good = testing::nano_tokenizer_json();
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{10}, good.size() / 4, good.size() / 2, good.size() - 2}) {
    expect_error(good.substr(0, cut), "not valid JSON");
  }
  for (size_t cut = 0; cut < good.size(); cut += 1777) EXPECT_FALSE(Tokenizer::Parse(good.substr(0, cut), "cut").has_value());
  expect_error(good + "x", "not valid JSON");
  expect_error("{\"version\": \"1.0\xFF\"}", "not valid JSON");
  expect_error("[]", "not an object");
  expect_error("7", "not an object");
  expect_error("{}", "version is missing");
  expect_error("{\"version\":\"1.0\",\"version\":\"1.0\"}", "appears twice");
}

TEST(TokenizerFileTest, DepthBombs) {
  expect_error(std::string(10'000'000, '['), "deeper than 16");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  expect_error(objects, "deeper than 16");
  expect_error("{\"model\":{\"merges\":[[[\"a\"]]]}}", "merges[0]");
  expect_error("{\"model\":{\"vocab\":{\"a\":[]}}}", "model.vocab[\"a\"] is not an integer");
  expect_error("{\"model\":{\"vocab\":{\"a\":{\"b\":{}}}}}", "model.vocab[\"a\"] is not an integer");
}

TEST(TokenizerFileTest, TooLarge) {
  expect_error(std::string(static_cast<size_t>(TokenizerFile::kMaxFileBytes) + 1, ' '), "the limit is");
  const std::string path = testing::make_temp_dir("giant") + "/tokenizer.json";
  FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  std::fseek(file, 1L << 40, SEEK_SET);  // a hole: nothing is written
  std::fputc('x', file);
  std::fclose(file);
  const auto result = Tokenizer::Load(path);
  std::remove(path.c_str());
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message().find("limit"), std::string::npos) << result.error().message();
  EXPECT_FALSE(Tokenizer::Load("/nonexistent/tokenizer.json").has_value());
  EXPECT_FALSE(Tokenizer::Load("/").has_value());

  std::string merges = "{\"model\":{\"merges\":[\"a b\"";
  for (int64_t i = 0; i < TokenizerFile::kMaxMerges; ++i) merges += ",\"a b\"";
  expect_error(merges + "]}}", "model.merges has more than 1048576");
  std::string values = "{\"added_tokens\":[0";
  for (int i = 0; i < 2'000'001; ++i) values += ",0";
  expect_error(values + "]}", "more than 2000000 values");
  expect_error("{\"model\":{\"merges\":[\"" + std::string(100'000, 'x') + "\"]}}", "merges[0] is longer");
  expect_error("{\"model\":{\"vocab\":{\"" + std::string(100'000, 'x') + "\":1}}}", "the limit is 2048");
}

TEST(TokenizerFileTest, IdsOutOfRange) {
  for (const char* id :
       {"-1", "1048576", "2147483648", "4294967296", "9223372036854775808", "-9223372036854775808", "18446744073709551615"}) {
    expect_error(fmt::format("{{\"model\":{{\"vocab\":{{\"a\":{}}}}}}}", id), "an id is in [0, 1048576)");
  }
  for (const char* id : {"1.5", "1e3", "\"1\"", "null", "true", "18446744073709551616"}) {
    expect_error(fmt::format("{{\"model\":{{\"vocab\":{{\"a\":{}}}}}}}", id), "model.vocab[\"a\"] is not an integer");
  }
  for (const json& id :
       {json(-1), json(1 << 20), json(int64_t{1} << 31), json(uint64_t{1} << 63), json(1.5), json("1"), json()}) {
    expect_change_rejected([&](json& f) { f["added_tokens"][3]["id"] = id; }, "added_tokens[3].id = ");
  }
  expect_change_rejected([](json& f) { f["added_tokens"][3].erase("id"); }, "added_tokens[3].id = missing");
}

TEST(TokenizerFileTest, DuplicatesAndContradictions) {
  expect_change_rejected([](json& f) { f["model"]["vocab"]["Ġt"] = 7; }, "model.vocab gives id 7 to ");
  expect_change_rejected([](json& f) { f["added_tokens"][4]["id"] = f["added_tokens"][3]["id"]; }, "is already the id of");
  expect_change_rejected([](json& f) { f["added_tokens"][4]["content"] = f["added_tokens"][3]["content"]; }, "elsewhere");
  expect_change_rejected([](json& f) { f["added_tokens"][3]["id"] = 100; }, "added_tokens[3].id = 100 is the id of");
  expect_change_rejected([](json& f) { f["model"]["merges"].push_back(f["model"]["merges"][5]); }, "repeats model.merges[5]");
  std::string twice = testing::nano_tokenizer_json();
  const size_t at = twice.find("\"vocab\"");
  twice.insert(twice.find('{', at) + 1, "\"Ġt\": 9000, ");
  expect_error(twice, "model.vocab has \"Ġt\" twice");
  expect_change_rejected([](json& f) { f["model"]["vocab"].erase("a"); }, "no token for the byte 0x61");
  expect_change_rejected([](json& f) { f["model"]["vocab"]["中"] = 5000; }, "outside of the byte alphabet");
  expect_change_rejected([](json& f) { f["model"]["vocab"][""] = 5000; }, "an empty token");
  expect_change_rejected([](json& f) { f["added_tokens"][3]["content"] = ""; }, "has 0 bytes");
  expect_change_rejected([](json& f) { f["added_tokens"][3]["content"] = std::string(5000, 'x'); }, "has 5000 bytes");
  // An added token that ordinary text could merge into.
  expect_change_rejected(
      [](json& f) {
        const int32_t id = f["model"]["vocab"]["Ġt"];
        f["added_tokens"].push_back({{"id", id}, {"content", "Ġt"}, {"special", true}});
      },
      "names the added token \"Ġt\"");
}

TEST(TokenizerFileTest, Merges) {
  const auto merge = [](const json& value, const std::string& part) {
    expect_change_rejected([&](json& f) { f["model"]["merges"][2] = value; }, part);
  };
  merge("a zzzzzz", "model.merges[2] names \"zzzzzz\"");
  merge("zzzzzz a", "model.merges[2] names \"zzzzzz\"");
  merge("Q Q", "model.merges[2] names \"QQ\"");
  merge("ab", "model.merges[2] = \"ab\" is not two tokens");
  merge("a b c", "is not two tokens");
  merge("", "is not two tokens");
  merge(" ", "names \"\"");
  merge(json::array({"a"}), "model.merges[2] is not a pair");
  merge(json::array({"a", "b", "c"}), "more than two strings");
  merge(json::array({"a", 1}), "model.merges[2] is neither");
  merge(7, "model.merges[2] is neither");
  merge(json(), "model.merges[2] is neither");
  merge(json::object(), "model.merges[2] is neither");
  merge("a\nb \"", "model.merges[2] names \"a\\x0ab\"");
}

TEST(TokenizerFileTest, UnsupportedOrMissingFields) {
  const auto set = [](const std::string& pointer, const json& value, const std::string& part) {
    expect_change_rejected([&](json& f) { f[json::json_pointer(pointer)] = value; }, part);
  };
  set("/version", "2.0", "version = \"2.0\"");
  set("/truncation", {{"max_length", 5}}, "truncation = an object");
  set("/padding", true, "padding = true");
  set("/surprise", 1, "unknown field \"surprise\"");
  set("/model/surprise", 1, "unknown field \"model.surprise\"");
  set("/model/type", "WordPiece", "model.type = \"WordPiece\", only \"BPE\"");
  set("/model/dropout", 0.1, "model.dropout = 0.1");
  set("/model/unk_token", "<unk>", "model.unk_token");
  set("/model/byte_fallback", true, "model.byte_fallback = true");
  set("/model/ignore_merges", true, "model.ignore_merges = true");
  set("/model/fuse_unk", "no", "model.fuse_unk is not a boolean");
  set("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix");
  set("/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix");
  set("/model/vocab", json::array(), "model.vocab is missing or not an object");
  set("/model/merges", json::object(), "model.merges is missing or not an array");
  set("/model", 5, "model is not an object");
  set("/normalizer", {{"type", "NFC"}}, "normalizer.type = \"NFC\"");
  set("/normalizer/normalizers", json::array({{{"type", "NFC"}}}), "normalizer.normalizers has 1 entries");
  set("/normalizer/normalizers", 1, "normalizer.normalizers is not an array");
  set("/pre_tokenizer", nullptr, "pre_tokenizer is not an object");
  set("/pre_tokenizer/type", "Whitespace", "pre_tokenizer.type = \"Whitespace\"");
  set("/pre_tokenizer/pretokenizers", json::array(), "pre_tokenizer.pretokenizers has 0 entries");
  set("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{N}{1,2}", "pretokenizers[0].pattern.Regex = \"\\\\p{N}{1,2}\" is not");
  set("/pre_tokenizer/pretokenizers/0/pattern", {{"String", "x"}}, "unknown field");
  set("/pre_tokenizer/pretokenizers/1/behavior", "Removed", "pretokenizers[1].behavior = \"Removed\"");
  set("/pre_tokenizer/pretokenizers/2/invert", true, "pretokenizers[2].invert = true");
  set("/pre_tokenizer/pretokenizers/3/add_prefix_space", true, "pretokenizers[3].add_prefix_space = true");
  set("/pre_tokenizer/pretokenizers/3/use_regex", true, "pretokenizers[3].use_regex = true");
  set("/pre_tokenizer/pretokenizers/3", "ByteLevel", "pretokenizers[3] is not an object");
  set("/post_processor/type", "TemplateProcessing", "post_processor.type");
  set("/decoder", nullptr, "decoder is not an object");
  set("/decoder/type", "WordPiece", "decoder.type");
  set("/added_tokens", json::object(), "added_tokens is not an array");
  set("/added_tokens/0", 3, "added_tokens[0] is not an object");
  set("/added_tokens/0/content", 3, "added_tokens[0].content is not a string");
  set("/added_tokens/0/lstrip", true, "added_tokens[0].lstrip = true");
  set("/added_tokens/0/single_word", true, "added_tokens[0].single_word = true");
  set("/added_tokens/0/special", 1, "added_tokens[0].special is not a boolean");
  for (const char* field : {"model", "pre_tokenizer", "decoder"}) {
    expect_change_rejected([&](json& f) { f.erase(field); }, std::string(field) + " is missing");
  }
  for (const char* field : {"vocab", "merges"}) {
    expect_change_rejected([&](json& f) { f["model"].erase(field); }, std::string("model.") + field + " is missing");
  }
}

TEST(TokenizerFileTest, Alphabet) {
  EXPECT_EQ(byte_to_alphabet(' '), 0x120u);
  EXPECT_EQ(byte_to_alphabet('\n'), 0x10Au);
  EXPECT_EQ(byte_to_alphabet('a'), uint32_t{'a'});
  EXPECT_EQ(byte_to_alphabet(0xAD), 0x143u);
  EXPECT_EQ(byte_to_alphabet(0xFF), 0xFFu);
}

}  // namespace
}  // namespace deepinfer
