// Reads a JSON array of strings from standard input and prints the array of their id arrays: what tests/e2e compares with
// other implementations.  encode_dump TOKENIZER_JSON [--added | --base64]
//   --added    match added tokens too
//   --base64   the strings are base64 of bytes that need not be UTF-8

#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/tokenizer.h"

namespace {

std::string from_base64(const std::string& text) {
  static const std::string kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t value = kAlphabet.find(c);
    if (value == std::string::npos) continue;
    bits = bits << 6 | static_cast<unsigned>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: encode_dump TOKENIZER_JSON [--added | --base64] < strings.json\n");
    return 2;
  }
  const std::string mode = argc > 2 ? argv[2] : "";
  const auto tokenizer = deepinfer::Tokenizer::Load(argv[1]);
  if (!tokenizer) {
    std::fprintf(stderr, "encode_dump: %s\n", tokenizer.error().message().c_str());
    return 1;
  }
  try {
    const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
    nlohmann::json ids = nlohmann::json::array();
    for (const auto& item : nlohmann::json::parse(input)) {
      const auto text = item.get<std::string>();
      ids.push_back(mode == "--added"    ? (*tokenizer)->encode_with_added_tokens(text)
                    : mode == "--base64" ? (*tokenizer)->encode(from_base64(text))
                                         : (*tokenizer)->encode(text));
    }
    std::cout << ids.dump() << "\n";
  } catch (const std::exception& e) {
    std::fprintf(stderr, "encode_dump: %s\n", e.what());
    return 1;
  }
  return 0;
}
