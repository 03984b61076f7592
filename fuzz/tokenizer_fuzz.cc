// First byte even: the rest is a tokenizer.json. Odd: the rest is text for the nano tokenizer ($DEEPINFER_NANO, default
// models/nano, relative to the working folder or to the source tree).

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace {

using deepinfer::Tokenizer;

std::shared_ptr<const Tokenizer> nano() {
  static const std::shared_ptr<const Tokenizer> tokenizer = []() -> std::shared_ptr<const Tokenizer> {
    std::vector<std::string> folders{"models/nano", "../models/nano", "../../../models/nano"};
    if (const char* set = std::getenv("DEEPINFER_NANO")) folders.insert(folders.begin(), set);
    for (const std::string& folder : folders) {
      if (auto loaded = Tokenizer::Load(folder + "/tokenizer.json")) return *loaded;
    }
    std::fprintf(stderr, "models/nano/tokenizer.json not found: set DEEPINFER_NANO\n");
    std::abort();
  }();
  return tokenizer;
}

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

void round_trip(const Tokenizer& tokenizer, std::string_view text) {
  std::string repaired;
  deepinfer::utf8_append_lossy(text, /*last=*/true, repaired);
  require(deepinfer::utf8_valid_prefix(repaired) == repaired.size(), "repaired text is valid");
  std::string joined;
  for (const std::string_view piece : deepinfer::pre_tokenize(repaired)) {
    require(!piece.empty(), "pieces are not empty");
    joined += piece;
  }
  require(joined == repaired, "pieces together are the text");
  const std::vector<int32_t> plain = tokenizer.encode(text);
  for (const int32_t id : plain) require(!tokenizer.is_added(id), "plain text has no added tokens");
  require(tokenizer.decode(plain) == repaired, "plain ids decode to the text");
  require(tokenizer.decode(tokenizer.encode_with_added_tokens(text)) == repaired, "ids decode to the text");
}

void stream(std::string_view bytes) {
  // Two bytes an id: arbitrary ids, also ones that exist not.
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(static_cast<int32_t>(static_cast<uint8_t>(bytes[i]) << 8 | static_cast<uint8_t>(bytes[i + 1])) % 4500 - 2);
  }
  const bool skip = ids.size() % 2 == 1;
  deepinfer::Detokenizer detokenizer(nano(), skip);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  require(text + detokenizer.finish() == nano()->decode(ids, skip), "the stream equals the whole");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    if (const auto tokenizer = Tokenizer::Parse(rest, "fuzz")) {
      round_trip(**tokenizer, "The cat \xE4\xB8\xAD 123\n<think> \xFF");
      (void)make_engram_token_map(**tokenizer);
    }
  } else {
    round_trip(*nano(), rest);
    stream(rest);
  }
  return 0;
}
