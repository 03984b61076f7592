// The JSON of --speculative-config.

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "deepinfer/options.h"

namespace deepinfer {

Status EngineOptions::apply_speculative_config(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return Status::InvalidArgument(
        "speculative config is not a JSON object, as {{\"method\": \"dspark\", \"num_speculative_tokens\": 5}}");
  SpeculationMode mode = SpeculationMode::kVariable;
  int64_t tokens = num_speculative_tokens;
  bool method = false;
  for (const auto& [key, value] : json.items()) {
    if (key == "method") {
      if (value != "dspark") return Status::InvalidArgument("speculative config: method is {}, must be \"dspark\"", value.dump());
      method = true;
    } else if (key == "num_speculative_tokens") {
      if (!value.is_number_integer() || value < 0 || value > kMaxDraftTokens) {
        return Status::OutOfRange("speculative config: num_speculative_tokens is {}, must be a whole number from 0 to {}",
                                  value.dump(), kMaxDraftTokens);
      }
      tokens = value.get<int64_t>();
    } else if (key == "mode") {
      const auto parsed = parse_speculation_mode(value.is_string() ? value.get<std::string>() : value.dump());
      if (!parsed) return parsed.error().with_context("speculative config");
      mode = *parsed;
    } else {
      return Status::InvalidArgument("speculative config: unknown key \"{}\"; there are method, num_speculative_tokens and mode",
                                     key);
    }
  }
  if (!method) return Status::InvalidArgument("speculative config: method is missing, must be \"dspark\"");
  speculation = tokens == 0 ? SpeculationMode::kOff : mode;
  num_speculative_tokens = tokens;
  return Status::Ok();
}

}  // namespace deepinfer
