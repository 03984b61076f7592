#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deepinfer {

/// The raw content of a tokenizer.json. Vocabulary and merges, nearly all of the file, are read straight into lists; the small
/// rest becomes a tree. Depth, counts and string lengths are bounded while reading; a key that appears twice is an error.
struct TokenizerJson {
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  bool has_vocabulary = false;
  bool has_merges = false;
  nlohmann::json rest;  ///< the file without model.vocab and model.merges

  static Result<TokenizerJson> Read(std::string_view json, std::string_view source);
};

/// A string of the file for a message: cut to a line's worth, control characters and quotes escaped.
std::string show_text(std::string_view text);

}  // namespace deepinfer
